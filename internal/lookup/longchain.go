// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	"github.com/inferencecache/inference-cache/internal/index"
)

// checkBlocks is how many blocks are matched between two looks at the deadline.
const checkBlocks = 4096

// matchChain fills e.matches. A chain so long that the deadline may pass
// meanwhile is matched piece by piece, except where access counts are kept:
// they need the whole chain in one match.
func (e *evaluation) matchChain(ctx context.Context) {
	keys := e.input.keys
	if keys.Len() <= checkBlocks || e.rules.LFU {
		e.matches = e.view.MatchChain(e.matches, keys, e.input.counts)
		return
	}
	// Pieces are matched with one token for each block, so that no run is
	// left out for having no tokens before its end is known.
	one := index.Tokens{First: 1, Step: 1}
	e.matches = e.view.MatchChain(e.matches, slice(keys, 0, checkBlocks), one)
	for from := checkBlocks; from < keys.Len(); from += checkBlocks {
		if e.expired(ctx) || sameKey(keys, from-1, from) {
			break
		}
		piece := slice(keys, from, min(from+checkBlocks, keys.Len()))
		e.piece = e.view.MatchChain(e.piece[:0], piece, one)
		if !e.extend(int32(from)) {
			break
		}
	}
	e.countTokens()
}

// extend lengthens the runs that reach up to block from by those of e.piece
// and reports whether there were any. Both are in the order of slots.
func (e *evaluation) extend(from int32) bool {
	extended, next := false, 0
	for i := range e.matches {
		run := &e.matches[i]
		for next < len(e.piece) && e.piece[next].Slot < run.Slot {
			next++
		}
		if run.Blocks != from || next == len(e.piece) || e.piece[next].Slot != run.Slot {
			continue
		}
		more := e.piece[next]
		run.Blocks += more.Blocks
		run.LastSeenMillis = min(run.LastSeenMillis, more.LastSeenMillis)
		run.Tier = max(run.Tier, more.Tier)
		extended = true
	}
	return extended
}

// countTokens replaces the runs' tokens by the sum of the request's counts and
// drops runs without any.
func (e *evaluation) countTokens() {
	slices.SortFunc(e.matches, func(a, b index.Match) int { return cmp.Compare(a.Blocks, b.Blocks) })
	sum, block := int32(0), 0
	for i := range e.matches {
		for ; block < int(e.matches[i].Blocks); block++ {
			sum += e.input.blockTokens(block)
		}
		e.matches[i].Tokens = sum
	}
	e.matches = slices.DeleteFunc(e.matches, func(m index.Match) bool { return m.Tokens <= 0 })
}

// blockTokens returns the tokens of one block of the chain.
func (in *input) blockTokens(block int) int32 {
	if len(in.counts.Counts) > 0 {
		return in.counts.Counts[block]
	}
	return in.counts.Step
}

func slice(keys index.Keys, from, to int) index.Keys {
	if keys.Long != nil {
		return index.Keys{Long: keys.Long[from:to]}
	}
	return index.Keys{Short: keys.Short[from:to]}
}

func sameKey(keys index.Keys, a, b int) bool {
	if keys.Long != nil {
		return bytes.Equal(keys.Long[a], keys.Long[b])
	}
	return keys.Short[a] == keys.Short[b]
}
