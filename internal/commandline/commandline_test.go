// SPDX-License-Identifier: Apache-2.0

package commandline_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/inferencecache/inference-cache/internal/commandline"
)

func TestSet(t *testing.T) {
	for name, tc := range map[string]struct{ command, args, want string }{
		"a flag that is missing comes last": {"run", "--a 1", "run --a 1 --flag new"},
		"a value of its own is replaced":    {"run", "--flag old --a", "run --flag new --a"},
		"a value behind = is replaced":      {"run", "--flag=old --a", "run --flag=new --a"},
		"underscores are dashes":            {"run --the_flag=old", "", "run --the_flag=old --flag new"},
		"a flag of the command is found":    {"run --flag old", "--a", "run --flag new --a"},
		"a longer flag is another":          {"run", "--flags 1", "run --flags 1 --flag new"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &corev1.Container{Command: strings.Fields(tc.command), Args: strings.Fields(tc.args)}
			commandline.Set(c, "--flag", "new")
			if got := strings.Join(slices.Concat(c.Command, c.Args), " "); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestLine(t *testing.T) {
	c := &corev1.Container{
		Command: []string{"serve", "--on"},
		Args:    []string{"--kv_config={\"a_b\":1}", "--size=$(SIZE)", "-p", "$$(SIZE)", "--off", "word", "--last"},
		Env:     []corev1.EnvVar{{Name: "SIZE", Value: "4"}, {Name: "SECRET", ValueFrom: &corev1.EnvVarSource{}}},
	}
	l := commandline.Of(c)
	if got := l.Values("--kv-config"); !slices.Equal(got, []string{`{"a_b":1}`}) {
		t.Errorf("the value is %q: only the flag's own underscores are dashes", got)
	}
	later := commandline.Of(&corev1.Container{
		Args: []string{"--size=$(SIZE)"},
		Env:  []corev1.EnvVar{{Name: "SIZE", Value: "4"}, {Name: "SIZE", ValueFrom: &corev1.EnvVarSource{}}},
	})
	if got := later.Values("--size"); !slices.Equal(got, []string{"$(SIZE)"}) {
		t.Errorf("a variable whose last value is unknown gave %q", got)
	}
	if n, ok := l.Number(9, "--size", "-s"); !ok || n != 4 {
		t.Errorf("the size is %d, %t, want 4", n, ok)
	}
	if got := l.Values("-p"); !slices.Equal(got, []string{"$(SIZE)"}) {
		t.Errorf("an escaped variable gave %q", got)
	}
	for name, want := range map[string]bool{"--on": true, "--off": false, "--last": true, "--size": false, "--absent": true} {
		if l.Bare(name) != want {
			t.Errorf("%s is bare: %t, want %t", name, !want, want)
		}
	}
	if l.Count("--size", "-p") != 2 || l.Count("--last") != 1 || l.Values("--last") != nil {
		t.Errorf("counted %d and %d, values %q", l.Count("--size", "-p"), l.Count("--last"), l.Values("--last"))
	}
	if l := commandline.Of(&corev1.Container{Args: []string{"serve", "--name", "bash", "--async"}}); l.Opaque {
		t.Error("a value that is called like a shell hides the flags")
	}
	for name, c := range map[string]corev1.Container{
		"nothing said":              {},
		"a shell":                   {Command: []string{"/bin/sh", "-c", "serve --on"}},
		"a shell behind a launcher": {Command: []string{"tini", "--"}, Args: []string{"bash", "-lc", "serve --on"}},
		"a shell by args":           {Args: []string{"bash", "-c", "serve --on"}},
	} {
		if l := commandline.Of(&c); !l.Opaque || l.Has("--on") || l.Count("--on") != 0 {
			t.Errorf("%s: %+v, want it opaque", name, l)
		}
	}
}
