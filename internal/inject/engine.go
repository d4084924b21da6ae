// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/inferencecache/inference-cache/internal/adapter"
)

// engine is the engine container of a pod and how it is started.
type engine struct {
	container *corev1.Container
	facts     adapter.Engine
	// words are command and arguments with known variables filled in.
	words []string
	// opaque means that words say nothing about the engine's flags, and that
	// none can be added.
	opaque bool
}

// findEngine returns the container with the runtime's name, or the only one.
func findEngine(spec *corev1.PodSpec, facts adapter.Engine) (engine, bool) {
	for i := range spec.Containers {
		if spec.Containers[i].Name == facts.Container {
			return newEngine(&spec.Containers[i], facts), true
		}
	}
	if len(spec.Containers) != 1 {
		return engine{}, false
	}
	return newEngine(&spec.Containers[0], facts), true
}

// engineNamed returns the container with a name that the pod has.
func engineNamed(spec *corev1.PodSpec, name string, facts adapter.Engine) engine {
	i := slices.IndexFunc(spec.Containers, func(c corev1.Container) bool { return c.Name == name })
	return newEngine(&spec.Containers[i], facts)
}

func newEngine(c *corev1.Container, facts adapter.Engine) engine {
	e := engine{container: c, facts: facts}
	literal := map[string]string{}
	for _, variable := range c.Env {
		if variable.ValueFrom == nil {
			literal[variable.Name] = variable.Value
		}
	}
	for _, word := range slices.Concat(c.Command, c.Args) {
		e.words = append(e.words, expand(word, literal))
	}
	e.opaque = len(e.words) == 0 || startsShell(c.Command, c.Args)
	return e
}

// startsShell says whether the words of a shell decide what is started.
func startsShell(command, args []string) bool {
	start := command
	if len(start) == 0 && len(args) > 0 {
		start = args[:1]
	}
	return slices.ContainsFunc(start, func(word string) bool {
		switch path.Base(word) {
		case "sh", "bash", "ash", "dash", "zsh", "ksh":
			return true
		}
		return false
	})
}

// expand fills in $(NAME) as the kubelet does; $$ stands for $, and unknown
// names stay.
func expand(text string, values map[string]string) string {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "$")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		name, after, closed := strings.Cut(strings.TrimPrefix(rest, "("), ")")
		value, known := values[name]
		switch {
		case strings.HasPrefix(rest, "$"):
			out.WriteString("$")
			text = rest[1:]
		case strings.HasPrefix(rest, "(") && closed && known:
			out.WriteString(value)
			text = after
		default:
			out.WriteString("$")
			text = rest
		}
	}
}

// values returns what a flag was given, in order.
func (e engine) values(names ...string) (values []string) {
	if e.opaque {
		return nil
	}
	for i, word := range e.words {
		name, value, inline := strings.Cut(word, "=")
		if !slices.Contains(names, flagName(name)) {
			continue
		}
		if !inline {
			if i+1 == len(e.words) {
				continue
			}
			value = e.words[i+1]
		}
		values = append(values, value)
	}
	return values
}

// has says whether a flag without a value is given.
func (e engine) has(name string) bool {
	return !e.opaque && slices.ContainsFunc(e.words, func(word string) bool { return flagName(word) == name })
}

// flagName takes underscores in a flag for dashes, as the engines do.
func flagName(word string) string {
	if !strings.HasPrefix(word, "--") {
		return word
	}
	return strings.ReplaceAll(word, "_", "-")
}

// number returns the last value of a flag that is a number from 1 to limit.
func (e engine) number(limit int, names ...string) (n int32, ok bool) {
	for _, value := range e.values(names...) {
		if parsed, err := strconv.Atoi(value); err == nil && parsed >= 1 && parsed <= limit {
			n, ok = int32(parsed), true
		}
	}
	return n, ok
}

// httpPort is where the engine serves HTTP.
func (e engine) httpPort() int32 {
	if port, ok := e.number(65535, "--port"); ok {
		return port
	}
	return e.facts.HTTPPort
}

// ranks is how many data-parallel ranks the engine runs; 0 is unknown.
func (e engine) ranks() int32 {
	n, _ := e.number(1024, "--data-parallel-size", "-dp", "--dp-size", "--dp")
	return n
}

// warnings are findings about flags that keep events from being useful.
func (e engine) warnings() (codes []string) {
	if e.opaque {
		return []string{WarnEngineCommandOpaque}
	}
	if e.has("--no-enable-prefix-caching") || e.has("--disable-radix-cache") {
		codes = append(codes, WarnPrefixCachingOff)
	}
	if e.facts.HashScheme == "sglang" {
		if size, ok := e.number(1<<20, "--page-size"); !ok || size == 1 {
			codes = append(codes, WarnPageSizeOne)
		}
	}
	return codes
}
