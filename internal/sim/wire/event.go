// SPDX-License-Identifier: Apache-2.0

// Package wire encodes the KV events of a simulated engine the way real
// engine versions put them on the wire. It only encodes; it opens no socket.
package wire

import "github.com/inferencecache/inference-cache/internal/sim/blockhash"

// Kind tells what an event reports.
type Kind int

// The kinds of event engines send.
const (
	Stored Kind = iota
	Removed
	Cleared
)

// Media of block holdings as vLLM names them.
const (
	MediumGPU = "GPU"
	MediumCPU = "CPU"
)

// Event is one KV event before it is encoded. Which fields reach the wire
// depends on the shape.
type Event struct {
	Kind   Kind
	Hashes []blockhash.Digest
	Medium string // MediumGPU when empty

	// The following belong to Stored only.

	// Parent is the digest of the block before the first one; nil at the
	// start of a chain.
	Parent *blockhash.Digest
	// FirstIndex is the position of the first block in its chain.
	FirstIndex int
	Tokens     []uint32
	BlockSize  int
	Identity   blockhash.Identity
	// AdapterID is the engine's number for Identity.Adapter, from 1 up.
	AdapterID int
}

func (e *Event) medium() string {
	if e.Medium == "" {
		return MediumGPU
	}
	return e.Medium
}
