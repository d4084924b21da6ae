// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 holds the Kubernetes resources that steer inference-cache.
//
// A CachePolicy says how lookups of one namespace behave, a CacheTenant what a
// tenant may keep in the index, a CacheBackend which engine pods take part.
// PromptTemplate and PDTopology feed template rendering and prefill/decode
// routing. CacheIndex, written by the controller alone, shows what the servers
// know.
//
// +kubebuilder:object:generate=true
// +groupName=inferencecache.io
package v1alpha1
