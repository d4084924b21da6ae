// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"testing"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/controller"
)

// Pods are stale by the hash that the pod webhook stamps.
func TestControllerConfigHash(t *testing.T) {
	hash := configHash(adapter.Core(), slog.New(slog.DiscardHandler))
	backend := &v1alpha1.CacheBackend{}
	if got := hash(backend, nil); got != "" {
		t.Errorf("a backend that nobody serves has hash %q", got)
	}
	backend.Spec.Runtime, backend.Spec.Type = v1alpha1.RuntimeVLLM, v1alpha1.BackendMemory
	first := hash(backend, nil)
	backend.Spec.Observation = &v1alpha1.BackendObservation{ModelID: "m"}
	if second := hash(backend, nil); len(first) != 16 || first == second {
		t.Errorf("hashes %q and %q, want two of 16 digits", first, second)
	}
}

func TestControllerFace(t *testing.T) {
	for name, tc := range map[string]struct {
		probe, address string
		discovery      controller.ServerDiscovery
		want           bool
	}{
		"with a self-test":    {"http://s:8081/probe", "s:9090", controller.DiscoverEndpoints, true},
		"without a self-test": {"", "s:9090", controller.DiscoverURL, false},
		"without an address":  {"http://s:8081/probe", "", controller.DiscoverURL, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := &controllerOptions{probeURL: tc.probe, grpcAddress: tc.address}
			o.controller.Discovery = tc.discovery
			if o.setFace(slog.New(slog.DiscardHandler)); (o.controller.Face != nil) != tc.want {
				t.Errorf("face %v", o.controller.Face)
			}
		})
	}
}
