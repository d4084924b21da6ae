// SPDX-License-Identifier: Apache-2.0

// Package serve measures a running server against the goals of the service:
// lookups over gRPC beside arriving events, the way of an event from an engine
// to a lookup, recovery after a restart, and the cost of idling.
//
// The server is a process of its own. Publishers, engines and clients are in
// the measuring process and reach it over loopback only.
package serve
