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

// What a shell would start is read from its script.
func TestCommands(t *testing.T) {
	const end = " ; "
	for name, tc := range map[string]struct {
		words []string
		want  string
	}{
		"a command":              {[]string{"sh", "-c", "serve --port 1"}, "serve --port 1"},
		"behind a launcher":      {[]string{"tini", "--", "/bin/bash", "-eo", "pipefail", "-c", "serve"}, "serve"},
		"options after -c":       {[]string{"bash", "-c", "-e", "--", "serve"}, "serve"},
		"a file":                 {[]string{"sh", "start.sh", "--port", "1"}, ""},
		"no script":              {[]string{"sh", "-c"}, ""},
		"several commands":       {[]string{"sh", "-c", "a 1; b 2 && c|d &\ne >/f $(g); if h; then { i; } fi"}, "a 1 ; b 2 ; c ; d ; e $(g) ; g ; h ; i"},
		"lines that go on":       {[]string{"sh", "-c", "serve \\\n --port 1"}, "serve --port 1"},
		"quotes":                 {[]string{"sh", "-c", `serve 'a b' "c d" e\ f "" g"h"'i' "\j\"k" $'l'`}, `serve <a b> <c d> <e f> <> ghi \j"k $'l'`},
		"quotes without an end":  {[]string{"sh", "-c", `first; serve 'a`}, ""},
		"comments":               {[]string{"sh", "-c", "# --port 1\nserve a#b # c"}, "serve a#b"},
		"a document":             {[]string{"sh", "-c", "cat >f <<E\nserve --port 1\nE\nserve"}, "cat ; serve"},
		"known variables":        {[]string{"sh", "-c", `serve $PORT ${PORT} "$PORT" '$PORT' \$PORT`}, "serve 7 7 7 $PORT $PORT"},
		"unknown variables":      {[]string{"sh", "-c", `serve $OTHER "${OTHER}" $@ $ ${#PORT} ${PORT%7} $((1+1))`}, "serve $OTHER ${OTHER} $@ $ ${#PORT} ${PORT%7} $((1+1))"},
		"variables with a value": {[]string{"sh", "-c", `serve ${OTHER:-8} ${PORT:-8} ${EMPTY:-"8"} ${EMPTY-8} ${OTHER:-$PORT}`}, "serve 8 7 8 <> 7"},
		"variables given one":    {[]string{"sh", "-c", `: ${OTHER:=9}; serve $OTHER`}, ": 9 ; serve 9"},
		"variables of a script":  {[]string{"sh", "-c", `OTHER=9; OTHER+=0; export THIRD="1 2" PORT; serve $OTHER $THIRD $PORT`}, "serve 90 <1 2> 7"},
		"variables of a command": {[]string{"sh", "-c", `PORT=9 serve $PORT`}, "serve 7"},
		"computed variables":     {[]string{"sh", "-c", `PORT=$(free); OTHER=(1); serve $PORT $OTHER`}, "free ; serve $PORT $OTHER"},
		"variables of a loop":    {[]string{"sh", "-c", `for PORT in 1 2; do serve $PORT; done`}, "serve $PORT"},
		"a script too large":     {[]string{"sh", "-c", "serve " + strings.Repeat("x", 20<<10)}, ""},
		"a script too deep":      {[]string{"sh", "-c", "serve " + strings.Repeat("$(", 8<<10)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := &corev1.Container{Command: tc.words, Env: []corev1.EnvVar{{Name: "PORT", Value: "7"}, {Name: "EMPTY"}}}
			var commands []string
			for _, command := range commandline.Of(c).Commands {
				for i, word := range command {
					if word == "" || strings.Contains(word, " ") {
						command[i] = "<" + word + ">"
					}
				}
				commands = append(commands, strings.Join(command, " "))
			}
			if got := strings.Join(commands, end); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

// A pod of some kilobytes must not fill the memory.
func TestVariablesThatGrowAreBounded(t *testing.T) {
	c := &corev1.Container{Env: []corev1.EnvVar{{Name: "A", Value: "xx"}}, Args: []string{"serve", "$(A)"}}
	script := "A=xx"
	for range 40 {
		c.Env = append(c.Env, corev1.EnvVar{Name: "A", Value: "$(A)$(A)"})
		script += "; A=$A$A"
	}
	for name, words := range map[string][]string{"of the container": {"serve", "$(A)"}, "of the script": {"sh", "-c", script + "; serve $A"}} {
		c.Command = words
		line := commandline.Of(c)
		for _, word := range slices.Concat(line.Words, slices.Concat(line.Commands...)) {
			if len(word) > 2<<20 {
				t.Errorf("%s: a word of %d bytes", name, len(word))
			}
		}
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
