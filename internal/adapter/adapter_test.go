// SPDX-License-Identifier: Apache-2.0

package adapter_test

import (
	"testing"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
)

func backend(runtime v1alpha1.EngineRuntime, kind v1alpha1.BackendType, mode v1alpha1.IntegrationMode) *v1alpha1.CacheBackend {
	b := &v1alpha1.CacheBackend{Spec: v1alpha1.CacheBackendSpec{Runtime: runtime, Type: kind}}
	if mode != "" {
		b.Spec.Integration = &v1alpha1.BackendIntegration{Mode: mode}
	}
	return b
}

func TestCoreServesBackendsThatOnlyWatch(t *testing.T) {
	const vllm, sglang = v1alpha1.RuntimeVLLM, v1alpha1.RuntimeSGLang
	for name, tc := range map[string]struct {
		backend *v1alpha1.CacheBackend
		want    string // name of the adapter; empty for none
	}{
		"LMCache with EventsOnly":         {backend(vllm, v1alpha1.BackendLMCache, v1alpha1.ModeEventsOnly), "events-only-vllm"},
		"SGLang with EventsOnly":          {backend(sglang, v1alpha1.BackendLMCache, v1alpha1.ModeEventsOnly), "events-only-sglang"},
		"no type is LMCache":              {backend(vllm, "", v1alpha1.ModeEventsOnly), "events-only-vllm"},
		"Memory in the default mode":      {backend(vllm, v1alpha1.BackendMemory, ""), "events-only-vllm"},
		"External in the default mode":    {backend(sglang, v1alpha1.BackendExternal, ""), "events-only-sglang"},
		"no mode is Offload":              {backend(vllm, v1alpha1.BackendLMCache, ""), ""},
		"Offload":                         {backend(vllm, v1alpha1.BackendLMCache, v1alpha1.ModeOffload), ""},
		"HiCache":                         {backend(sglang, v1alpha1.BackendSGLangHiCache, v1alpha1.ModeOffload), ""},
		"HiCache with EventsOnly":         {backend(sglang, v1alpha1.BackendSGLangHiCache, v1alpha1.ModeEventsOnly), ""},
		"a runtime that nobody serves":    {backend("Other", v1alpha1.BackendMemory, ""), ""},
		"a backend that says nothing yet": {&v1alpha1.CacheBackend{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if a, ok := adapter.Core().For(tc.backend); ok {
				got = a.Name()
			}
			if got != tc.want {
				t.Errorf("served by %q, want %q", got, tc.want)
			}
		})
	}
}

func TestUnsupportedNamesThePairs(t *testing.T) {
	got := adapter.Core().Unsupported(backend(v1alpha1.RuntimeVLLM, "", ""))
	want := "VLLM/LMCache with mode Offload is not supported; supported are " +
		"SGLang/External, SGLang/LMCache with mode EventsOnly, SGLang/Memory, " +
		"VLLM/External, VLLM/LMCache with mode EventsOnly, VLLM/Memory; " +
		"offloading takes --adapters=all, the chart's adapters.enabled"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestCoreTakesNoStorage(t *testing.T) {
	b := backend(v1alpha1.RuntimeVLLM, v1alpha1.BackendMemory, "")
	a, _ := adapter.Core().For(b)
	if !a.SupportsBinding(nil) || a.SupportsBinding(&adapter.Binding{Protocol: "resp", Endpoint: "redis:6379"}) {
		t.Error("want no binding supported but the absent one")
	}
	if a.InjectEngineConfig(nil, adapter.Wiring{Backend: b}) == nil {
		t.Error("an adapter that only watches changed an engine")
	}
}
