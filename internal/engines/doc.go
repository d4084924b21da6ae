// SPDX-License-Identifier: Apache-2.0

// Package engines knows what differs between LLM engines: ports, metric
// names, how load is computed from them, and what their HTTP API tells about
// models and KV event sockets.
package engines
