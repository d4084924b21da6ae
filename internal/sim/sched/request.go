// SPDX-License-Identifier: Apache-2.0

package sched

import (
	"github.com/inferencecache/inference-cache/internal/sim/blockhash"
	"github.com/inferencecache/inference-cache/internal/sim/pool"
)

// Finish tells why a request ended.
type Finish string

// Reasons of a finished request; Running means it goes on.
const (
	Running Finish = ""
	Stop    Finish = "stop"
	Length  Finish = "length"
)

// Request is one sequence. The caller sets the exported fields, adds it to
// one scheduler and leaves it alone from then on.
type Request struct {
	// Prompt holds at least one token.
	Prompt []uint32
	// MaxTokens is the number of tokens to generate, at least 1.
	MaxTokens int
	Identity  blockhash.Identity
	// AdapterID is the engine's number of Identity.Adapter; 0 for none.
	AdapterID int
	// Sample yields the generated token at index, from 0 up, and whether the
	// sequence ends with it.
	Sample func(index int) (token uint32, end bool)
	// ReceivedTokens of the prompt, from its beginning, need not be computed:
	// another engine has sent their KV. A preempted request computes them.
	ReceivedTokens int
	// Hold keeps the blocks of a request that ended by length, until Release.
	Hold bool

	state    state
	tokens   []uint32 // prompt and generated
	digests  []blockhash.Digest
	blocks   []pool.ID
	computed int // tokens whose KV exists or is being computed by the step in flight
	filled   int // leading blocks that have their key
	cached   int // tokens found in the cache when first scheduled; -1 before
}

type state int

const (
	fresh state = iota
	waiting
	running
	held
	done
)

// extendDigests computes the digests of all full blocks of the known tokens.
func (r *Request) extendDigests(chainer blockhash.Chainer, blockSize int) {
	for index := len(r.digests); (index+1)*blockSize <= len(r.tokens); index++ {
		var parent blockhash.Digest
		if index > 0 {
			parent = r.digests[index-1]
		}
		block := r.tokens[index*blockSize:][:blockSize]
		r.digests = append(r.digests, chainer.Next(parent, index, block, r.Identity))
	}
}

func (r *Request) generated() int { return len(r.tokens) - len(r.Prompt) }
