// SPDX-License-Identifier: Apache-2.0

// Package cluster tests the installed project in a real Kubernetes cluster of
// one node: its tests, behind the build tag cluster, share one that runs on
// this machine.
//
// A test calls newEnv for a namespace of its own and works in it with kubectl,
// a typed client and the test tool in pods. Those that need the chart call
// installChart; it is the only release at that time. docs/test-cluster.md says
// how to run them.
package cluster
