// SPDX-License-Identifier: Apache-2.0

// Package testcluster runs a real Kubernetes API server for tests.
//
// The API server and its etcd are built from their Go modules once and kept in
// a cache outside the repository. Nothing else of Kubernetes runs: there are
// no nodes, controllers or garbage collection.
package testcluster
