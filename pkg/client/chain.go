// SPDX-License-Identifier: Apache-2.0

package client

import (
	"github.com/inferencecache/inference-cache/pkg/fingerprint"
)

// Chain names the full blocks of a prompt from its first token on.
type Chain struct {
	// Hashes are the blocks' keys; each depends on all blocks before it.
	Hashes [][]byte
	// TokenCounts are the tokens of each block, parallel to Hashes.
	TokenCounts []int32
}

// ChainFromTokens returns the chain of a prompt under the content fingerprint
// that publishers of this project use. blockSize is the engine's, in tokens; a
// tail shorter than a block is left out, and with no full block or a blockSize
// below 1 the chain is empty.
//
// salt is the request's cache salt, "" for none. Chains with different salts
// share no block, so the engine must get the same salt with the request.
func ChainFromTokens(tokens []uint32, blockSize int, salt string) Chain {
	if blockSize <= 0 || len(tokens) < blockSize {
		return Chain{}
	}
	keys := make([]uint64, 0, len(tokens)/blockSize)
	keys = fingerprint.Append(keys, fingerprint.SaltParent(salt), tokens, blockSize)
	return ChainFromKeys(keys, blockSize)
}

// ChainFromKeys returns the chain of keys made with package fingerprint, as
// needed for prompts with images. Every block has blockSize tokens.
func ChainFromKeys(keys []uint64, blockSize int) Chain {
	if len(keys) == 0 {
		return Chain{}
	}
	counts := make([]int32, len(keys))
	for i := range counts {
		counts[i] = int32(blockSize)
	}
	return Chain{Hashes: fingerprint.Wire(keys), TokenCounts: counts}
}

// Blocks returns the number of blocks.
func (c Chain) Blocks() int { return len(c.Hashes) }

// Tokens returns the tokens of all blocks.
func (c Chain) Tokens() int {
	sum := 0
	for _, count := range c.TokenCounts {
		sum += int(count)
	}
	return sum
}
