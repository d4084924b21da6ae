// SPDX-License-Identifier: Apache-2.0

// Package commandline reads and extends how a container starts its program:
// the flags among command and arguments, with the variables that the kubelet
// fills in.
package commandline

import (
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Line is how a container is started. It does not follow later changes of the
// container.
type Line struct {
	// Words are command and arguments with known variables filled in.
	Words []string
	// Opaque means that the words say nothing about the program's flags, and
	// that none can be added: a shell or the image itself starts it.
	Opaque bool
	// Commands are the words of each command in the script of such a shell.
	// They may be wrong where the script computes what it starts.
	Commands [][]string
}

// Of reads a container.
func Of(c *corev1.Container) Line {
	literal := &variables{values: map[string]string{}, room: maxWords}
	for _, variable := range c.Env {
		if variable.ValueFrom != nil {
			delete(literal.values, variable.Name)
			continue
		}
		literal.values[variable.Name] = expand(variable.Value, literal)
	}
	var l Line
	for _, word := range slices.Concat(c.Command, c.Args) {
		l.Words = append(l.Words, expand(word, literal))
	}
	l.Opaque = len(l.Words) == 0 || startsShell(c.Command, c.Args)
	if l.Opaque {
		l.Commands = commandsOf(scriptOf(l.Words), literal)
	}
	return l
}

// Linux starts no program with a longer word, or with more of them; in bytes.
const (
	maxWord  = 128 << 10
	maxWords = 2 << 20
)

// variables are those with a known value. Each can double the one before it, so
// what is filled in is bounded.
type variables struct {
	values map[string]string
	room   int
}

// get is the value to fill in for a name. One without room is unknown.
func (v *variables) get(name string) (string, bool) {
	value, known := v.values[name]
	if !known || len(value) > v.room {
		return "", false
	}
	v.room -= len(value)
	return value, true
}

// startsShell says whether the words of a shell decide what is started.
func startsShell(command, args []string) bool {
	start := command
	if len(start) == 0 && len(args) > 0 {
		start = args[:1]
	}
	if slices.ContainsFunc(start, isShell) {
		return true
	}
	for i, word := range args[:max(len(args)-1, 0)] {
		// A shell behind a launcher, with a script.
		if next := args[i+1]; isShell(word) && strings.HasPrefix(next, "-") && !strings.HasPrefix(next, "--") && strings.HasSuffix(next, "c") {
			return true
		}
	}
	return false
}

func isShell(word string) bool {
	switch path.Base(word) {
	case "sh", "bash", "ash", "dash", "zsh", "ksh":
		return true
	}
	return false
}

// expand fills in $(NAME) as the kubelet does; $$ stands for $, and unknown
// names stay.
func expand(text string, values *variables) string {
	if len(text) > maxWord {
		return text
	}
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "$")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		name, after, closed := strings.Cut(strings.TrimPrefix(rest, "("), ")")
		value, known := "", false
		if closed && strings.HasPrefix(rest, "(") {
			value, known = values.get(name)
		}
		switch {
		case strings.HasPrefix(rest, "$"):
			out.WriteString("$")
			text = rest[1:]
		case known:
			out.WriteString(value)
			text = after
		default:
			out.WriteString("$")
			text = rest
		}
	}
}

// Escape keeps the kubelet from reading $(NAME) in a text.
func Escape(text string) string { return strings.ReplaceAll(text, "$(", "$$(") }

// Values returns what a flag was given under any of its names, in order. A
// last word without a value is left out.
func (l Line) Values(names ...string) (values []string) {
	if l.Opaque {
		return nil
	}
	for i, word := range l.Words {
		name, value, inline := strings.Cut(word, "=")
		if !slices.Contains(names, FlagName(name)) {
			continue
		}
		if !inline {
			if i+1 == len(l.Words) {
				continue
			}
			value = l.Words[i+1]
		}
		values = append(values, value)
	}
	return values
}

// Count is how often a flag is given under any of its names, with a value or
// without.
func (l Line) Count(names ...string) (n int) {
	if l.Opaque {
		return 0
	}
	for _, word := range l.Words {
		name, _, _ := strings.Cut(word, "=")
		if slices.Contains(names, FlagName(name)) {
			n++
		}
	}
	return n
}

// Has says whether a flag is given as a word of its own.
func (l Line) Has(name string) bool {
	return !l.Opaque && slices.ContainsFunc(l.Words, func(word string) bool { return FlagName(word) == name })
}

// HasPrefix says whether a flag begins so.
func (l Line) HasPrefix(prefix string) bool {
	return !l.Opaque && slices.ContainsFunc(l.Words, func(word string) bool { return strings.HasPrefix(FlagName(word), prefix) })
}

// Bare says whether every mention of a switch is without a value.
func (l Line) Bare(name string) bool {
	for i, word := range l.Words {
		flag, _, inline := strings.Cut(word, "=")
		if FlagName(flag) == name && (inline || i+1 < len(l.Words) && !strings.HasPrefix(l.Words[i+1], "-")) {
			return false
		}
	}
	return true
}

// Number returns the last value of a flag that is a number from 1 to limit.
func (l Line) Number(limit int, names ...string) (n int32, ok bool) {
	for _, value := range l.Values(names...) {
		if parsed, err := strconv.Atoi(value); err == nil && parsed >= 1 && parsed <= limit {
			n, ok = int32(parsed), true
		}
	}
	return n, ok
}

// FlagName takes underscores in a long flag for dashes, as the engines do.
func FlagName(word string) string {
	if !strings.HasPrefix(word, "--") {
		return word
	}
	flag, value, inline := strings.Cut(word, "=")
	flag = strings.ReplaceAll(flag, "_", "-")
	if inline {
		return flag + "=" + value
	}
	return flag
}

// Set gives a flag a value: in place of the one it has, whose first mention
// must have a value, else at the end of the arguments. The value is taken as
// it is, with what the kubelet fills in.
func Set(c *corev1.Container, name, value string) {
	for _, words := range [][]string{c.Command, c.Args} {
		for i, word := range words {
			flag, _, inline := strings.Cut(word, "=")
			switch {
			case FlagName(flag) != name:
			case inline:
				words[i] = name + "=" + value
				return
			case i+1 < len(words):
				words[i+1] = value
				return
			}
		}
	}
	c.Args = append(c.Args, name, value)
}
