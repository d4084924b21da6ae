// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/commandline"
)

// engine is the engine container of a pod and how it is started.
type engine struct {
	container *corev1.Container
	facts     adapter.Engine
	commandline.Line
}

// findEngine returns the container with the runtime's name, or the only one. An
// engine among the init containers cannot be wired.
func findEngine(spec *corev1.PodSpec, facts adapter.Engine) (engine, bool) {
	for i := range spec.Containers {
		if spec.Containers[i].Name == facts.Container {
			return newEngine(&spec.Containers[i], facts), true
		}
	}
	named := func(c corev1.Container) bool { return c.Name == facts.Container }
	if len(spec.Containers) != 1 || slices.ContainsFunc(spec.InitContainers, named) {
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
	return engine{container: c, facts: facts, Line: commandline.Of(c)}
}

// httpPort is where the engine serves HTTP. Of a shell's script the commands
// count that name the runtime, or all if none does; words behind the script are
// flags that it hands on.
func (e engine) httpPort() int32 {
	var words, named []string
	for _, command := range e.Commands {
		words = append(words, command...)
		if slices.ContainsFunc(command, func(w string) bool { return strings.Contains(w, e.facts.HashScheme) }) {
			named = append(named, command...)
		}
	}
	if named != nil {
		words = named
	}
	line := commandline.Line{Words: append(words, e.Words...)}
	if port, ok := line.Number(65535, "--port"); ok {
		return port
	}
	return e.facts.HTTPPort
}

// warnings are findings about flags that keep events from being useful.
func (e engine) warnings() (codes []string) {
	if e.Opaque {
		return []string{WarnEngineCommandOpaque}
	}
	if e.Has("--no-enable-prefix-caching") || e.Has("--disable-radix-cache") {
		codes = append(codes, WarnPrefixCachingOff)
	}
	if e.facts.HashScheme == "sglang" {
		if size, ok := e.Number(1<<20, "--page-size"); !ok || size == 1 {
			codes = append(codes, WarnPageSizeOne)
		}
	}
	return codes
}
