// SPDX-License-Identifier: Apache-2.0

// Package nodelocal runs one LMCache server on each node that hosts engines of
// a CacheBackend: what the server's pod looks like (Pod), how an engine waits
// for its server (Gate), which servers are to come and go (Plan), and whether
// the engines are served (Judge). It is pure: clocks and clusters are the
// caller's.
package nodelocal
