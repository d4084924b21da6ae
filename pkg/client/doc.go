// SPDX-License-Identifier: Apache-2.0

// Package client asks the index which replicas hold a prompt's prefix.
//
// A gateway builds a chain of block keys from a prompt's token ids
// (ChainFromTokens), asks with Client.Lookup and follows Result.Scores as far
// as its own view of load and health allows. The index only ever advises:
// Lookup returns within its own deadline, never fails, and an empty answer
// means route as usual. Result.Reason says why.
//
// Three mistakes look like an empty cache: a tenant, a model or a hash scheme
// that publishers spell differently. The index tells them apart, and the
// Client warns about each wrong key once a minute with its value. The tenant
// is the namespace of the engine pods, not a tenant of the gateway's API.
//
// Reporter is for producers of cache state other than the publisher of this
// project.
package client
