// SPDX-License-Identifier: Apache-2.0

// Package publisher follows the KV events of one engine and reports what the
// engine holds to the servers.
//
// A Session is the pure core: batches in, deltas out. It decides order, gaps,
// restarts and reference counts, and keeps the mirror of resident blocks that
// snapshots are made from. Everything with a socket feeds it or drains it.
package publisher
