// SPDX-License-Identifier: Apache-2.0

// Package storage says what is known of each kind of storage behind the
// engines' LMCache servers: how one is run in a cluster, how it is spoken to,
// and where it is found.
package storage

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

// Provider knows one kind of storage. Its methods do not block and may be
// called concurrently.
type Provider interface {
	// Supports says whether the provider serves the storage.
	Supports(storage *v1alpha1.RemoteStorageSpec) bool
	// Protocol is how the storage is spoken to.
	Protocol() string
	// Render says how a managed storage is run. The error says what of the
	// backend does not fit.
	Render(backend *v1alpha1.CacheBackend) (Rendered, error)
}

// Rendered is how a storage is run.
type Rendered struct {
	// Component names the storage in the names of objects beside it.
	Component string
	// Pod is the only replica.
	Pod corev1.PodSpec
	// Service has one port; its selector is filled in by Objects.
	Service corev1.ServiceSpec
}

// Registry finds the provider of a storage. It does not change.
type Registry struct{ providers []Provider }

// NewRegistry returns a registry in which the first provider that supports a
// storage serves it.
func NewRegistry(providers ...Provider) *Registry { return &Registry{slices.Clone(providers)} }

// All returns every provider.
func All() *Registry { return NewRegistry(redis{}) }

// For returns the provider that serves a storage.
func (r *Registry) For(storage *v1alpha1.RemoteStorageSpec) (Provider, error) {
	for _, p := range r.providers {
		if p.Supports(storage) {
			return p, nil
		}
	}
	return nil, fmt.Errorf("spec.remoteStorage.provider %q: no storage of this kind is known", storage.Provider)
}
