// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/commandline"
)

// applyOverrides changes what the adapter added to the engine container: what
// it is now, against what it was. The user's own flags and variables stay,
// flags of the command included.
func applyOverrides(now *corev1.Container, was corev1.Container, o *v1alpha1.EngineOverrides) {
	if o == nil {
		return
	}
	groups, before := groupArgs(now.Args), groupArgs(was.Args)
	same := func(a argument) func(argument) bool {
		return func(b argument) bool { return slices.Equal(a.words, b.words) }
	}
	owned := func(a argument) bool { return !slices.ContainsFunc(before, same(a)) }
	suppressed := flagsOf(o.SuppressArgs)
	groups = slices.DeleteFunc(groups, func(a argument) bool { return owned(a) && slices.Contains(suppressed, a.flag) })
	command := flagsOf(was.Command)
	for _, wanted := range groupArgs(o.Args) {
		if wanted.flag != "" && slices.Contains(command, wanted.flag) {
			continue
		}
		i := slices.IndexFunc(groups, func(a argument) bool { return a.flag != "" && a.flag == wanted.flag })
		switch {
		case i >= 0 && owned(groups[i]):
			groups[i] = wanted
		case i < 0 && !slices.ContainsFunc(groups, same(wanted)):
			groups = append(groups, wanted)
		}
	}
	now.Args = nil
	for _, a := range groups {
		now.Args = append(now.Args, a.words...)
	}
	overrideEnv(now, was, o)
}

func overrideEnv(now *corev1.Container, was corev1.Container, o *v1alpha1.EngineOverrides) {
	find := func(list []corev1.EnvVar, name string) int {
		return slices.IndexFunc(list, func(v corev1.EnvVar) bool { return v.Name == name })
	}
	users := func(name string) bool { return find(was.Env, name) >= 0 }
	now.Env = slices.DeleteFunc(now.Env, func(v corev1.EnvVar) bool { return !users(v.Name) && slices.Contains(o.SuppressEnv, v.Name) })
	for _, wanted := range o.Env {
		switch i := find(now.Env, wanted.Name); {
		case i < 0:
			now.Env = append(now.Env, wanted)
		case !users(wanted.Name):
			now.Env[i] = wanted
		}
	}
}

// argument is a flag with its value, or a word without a flag.
type argument struct {
	flag  string // "" without
	words []string
}

// flagsOf are the flags among words, without their values.
func flagsOf(words []string) (flags []string) {
	for _, a := range groupArgs(words) {
		if a.flag != "" {
			flags = append(flags, a.flag)
		}
	}
	return flags
}

func groupArgs(args []string) (groups []argument) {
	open := false // whether the last flag may still take a value
	for _, word := range args {
		flag, _, inline := strings.Cut(word, "=")
		switch {
		case strings.HasPrefix(word, "-"):
			groups = append(groups, argument{commandline.FlagName(flag), []string{word}})
			open = !inline
		case open:
			last := &groups[len(groups)-1]
			last.words = append(last.words, word)
			open = false
		default:
			groups = append(groups, argument{"", []string{word}})
		}
	}
	return groups
}
