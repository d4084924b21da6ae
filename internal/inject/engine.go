// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"slices"

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
	return engine{container: c, facts: facts, Line: commandline.Of(c)}
}

// httpPort is where the engine serves HTTP. Words behind a shell's script are
// flags that it hands on.
func (e engine) httpPort() int32 {
	words := commandline.Line{Words: e.Words}
	if port, ok := words.Number(65535, "--port"); ok {
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
