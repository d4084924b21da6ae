// SPDX-License-Identifier: Apache-2.0

// Package inject wires engine pods at their creation: it adds the publisher
// beside the engine, and stamps that say by which CacheBackend and how.
//
// Injection is all or nothing, and doing it twice is doing it once. It never
// keeps an engine from starting: a pod that cannot be wired is admitted as it
// is, with the reason in an annotation. Only a pod that several backends select
// is denied.
package inject
