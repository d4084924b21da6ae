// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"fmt"
	"slices"
	"strings"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

// Pair is a combination of runtime and type that an adapter supports.
type Pair struct {
	Runtime v1alpha1.EngineRuntime
	Type    v1alpha1.BackendType
	// Mode is the only one supported; empty for all.
	Mode v1alpha1.IntegrationMode
}

func (p Pair) String() string {
	text := string(p.Runtime) + "/" + string(p.Type)
	if p.Mode != "" {
		text += " with mode " + string(p.Mode)
	}
	return text
}

// Registry finds the adapter of a backend. It does not change.
type Registry struct{ adapters []Adapter }

// NewRegistry returns a registry in which the first adapter that supports a
// backend serves it.
func NewRegistry(adapters ...Adapter) *Registry { return &Registry{slices.Clone(adapters)} }

// Core returns the adapters that watch engines: one for each runtime.
func Core() *Registry { return NewRegistry(vllm(), sglang()) }

// All returns those of Core, and those that wire engines to a storage tier.
func All() *Registry {
	return NewRegistry(
		vllm(), sglang(),
		lmcacheVLLM{lmcache{v1alpha1.RuntimeVLLM, vllm().engine}}, lmcacheSGLang{lmcache{v1alpha1.RuntimeSGLang, sglang().engine}}, hicache{},
	)
}

// For returns the adapter that serves a backend.
func (r *Registry) For(backend *v1alpha1.CacheBackend) (Adapter, bool) {
	for _, a := range r.adapters {
		if a.Supports(backend.Spec.Runtime, backend) {
			return a, true
		}
	}
	return nil, false
}

// Reserved returns the flags and variables that no override may touch: those
// of the adapter that serves the backend, or would once it is complete.
func (r *Registry) Reserved(backend *v1alpha1.CacheBackend) (args, env []string) {
	if a, ok := r.For(backend); ok {
		return a.ReservedArgs(), a.ReservedEnv()
	}
	for _, a := range r.adapters {
		if NewRegistry(a).Serves(backend) {
			return a.ReservedArgs(), a.ReservedEnv()
		}
	}
	return nil, nil
}

// Pairs lists what is supported, sorted and without repetition.
func (r *Registry) Pairs() []string {
	pairs := r.pairs()
	var texts []string
	for pair := range pairs {
		if pairs[Pair{pair.Runtime, pair.Type, v1alpha1.ModeOffload}] && pairs[Pair{pair.Runtime, pair.Type, v1alpha1.ModeEventsOnly}] {
			pair.Mode = ""
		}
		texts = append(texts, pair.String())
	}
	slices.Sort(texts)
	return slices.Compact(texts)
}

func (r *Registry) pairs() map[Pair]bool {
	pairs := map[Pair]bool{}
	for _, a := range r.adapters {
		if lister, ok := a.(PairLister); ok {
			for _, pair := range lister.SupportedPairs() {
				pairs[pair] = true
			}
		}
	}
	return pairs
}

// Serves says whether some backends of the runtime, type and mode of this one
// are supported, whatever else it says.
func (r *Registry) Serves(backend *v1alpha1.CacheBackend) bool {
	pair := Pair{backend.Spec.Runtime, Type(backend), Mode(backend)}
	pairs := r.pairs()
	return pairs[pair] || pairs[Pair{pair.Runtime, pair.Type, ""}]
}

// Unsupported explains why no adapter serves a backend.
func (r *Registry) Unsupported(backend *v1alpha1.CacheBackend) string {
	text := fmt.Sprintf("%s with mode %s is not supported; supported are %s",
		Pair{backend.Spec.Runtime, Type(backend), ""}, Mode(backend), strings.Join(r.Pairs(), ", "))
	if Mode(backend) == v1alpha1.ModeOffload && !r.offloads() {
		text += "; offloading takes --adapters=all, the chart's adapters.enabled"
	}
	return text
}

// offloads says whether there is an adapter for the mode Offload.
func (r *Registry) offloads() bool {
	for pair := range r.pairs() {
		if pair.Mode == v1alpha1.ModeOffload {
			return true
		}
	}
	return false
}
