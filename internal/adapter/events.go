// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

// eventsOnly watches the engines of one runtime and changes nothing in them.
type eventsOnly struct {
	runtime v1alpha1.EngineRuntime
	engine  Engine
}

var (
	_ Adapter    = eventsOnly{}
	_ PairLister = eventsOnly{}
)

// vllm watches vLLM.
func vllm() eventsOnly {
	return eventsOnly{v1alpha1.RuntimeVLLM, Engine{Container: "vllm", HTTPPort: 8000, HashScheme: "vllm"}}
}

// sglang watches SGLang.
func sglang() eventsOnly {
	return eventsOnly{v1alpha1.RuntimeSGLang, Engine{Container: "sglang", HTTPPort: 30000, HashScheme: "sglang"}}
}

// NamesEngine says whether a container has the usual name of an engine of some
// runtime.
func NamesEngine(container string) bool {
	return container == vllm().engine.Container || container == sglang().engine.Container
}

func (a eventsOnly) Name() string   { return "events-only-" + a.engine.HashScheme }
func (a eventsOnly) Version() int   { return 1 }
func (a eventsOnly) Engine() Engine { return a.engine }

func (a eventsOnly) Supports(runtime v1alpha1.EngineRuntime, backend *v1alpha1.CacheBackend) bool {
	return runtime == a.runtime && WatchesOnly(backend) && Type(backend) != v1alpha1.BackendSGLangHiCache
}

func (a eventsOnly) SupportsBinding(binding *Binding) bool { return binding == nil }

func (a eventsOnly) InjectEngineConfig(*corev1.Pod, Wiring) error {
	return errOnlyWatches
}

func (a eventsOnly) ReservedArgs() []string { return nil }
func (a eventsOnly) ReservedEnv() []string  { return nil }

func (a eventsOnly) SupportedPairs() []Pair {
	return []Pair{
		{a.runtime, v1alpha1.BackendLMCache, v1alpha1.ModeEventsOnly},
		{a.runtime, v1alpha1.BackendMemory, ""},
		{a.runtime, v1alpha1.BackendExternal, ""},
	}
}
