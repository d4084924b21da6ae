// SPDX-License-Identifier: Apache-2.0

// Package proxy measures the gateway against its goals: how much of the reuse
// of an all-knowing router it gets, what it adds to the time of a request, and
// what a request and idling cost. Other routers may be measured beside it.
//
// Reuse is measured in the virtual time of package quality. Everything else
// runs as processes: simulated engines, the index with its publishers, and
// gateways; the clients are in the measuring process.
package proxy
