// SPDX-License-Identifier: Apache-2.0

// Package ingest takes what producers report about cached blocks and writes it
// to the index: the contract's updates and events (Contract), and CacheSync
// sessions (SyncServer). Everything is validated here; a bad part is dropped
// alone and counted under a closed list of reasons.
package ingest
