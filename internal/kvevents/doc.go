// SPDX-License-Identifier: Apache-2.0

// Package kvevents decodes the KV event batches that LLM engines publish.
//
// A batch is msgpack: a timestamp, a list of events and a rank. Events come as
// positional arrays or as maps, depending on engine and version, even mixed in
// one batch. Decoding is pure and bounded. A bad event costs itself and is
// returned with the Reason it cannot be used; only broken framing costs the
// batch.
package kvevents
