// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
)

// Decision is the record of one answer. It may be reused for the next one;
// that overwrites its slices.
type Decision struct {
	Reason Reason
	// Scores are the replicas of the answer, best first.
	Scores []Score
	// Ranked are all replicas that matched or were hot, best first, before
	// any floor.
	Ranked []Score

	Form    Form
	Invalid Invalid
	// Gates that fired.
	Gates Gates
	// EffectiveTokens is the length of the described prompt.
	EffectiveTokens int64
	// Blocks is the length of the chain that was looked up.
	Blocks int
	// Serving is the number of replicas that serve the scope.
	Serving int
	// AllHold is set when the score floor withheld a prefix that every
	// serving replica holds.
	AllHold bool
	// Asked is set when the index was asked. Then TenantKnown and ModelKnown
	// say whether it holds keys of the tenant and of its model.
	Asked, TenantKnown, ModelKnown bool

	// Adapter is the adapter to echo, TokenIDs the prompt's tokens when they
	// were made here.
	Adapter string
	// DeepestKey is the last key that the best replica matched, of a
	// delivered prefix match.
	DeepestKey []byte
	TokenIDs   []uint32
	Tokenized  Tokenized

	Timings Timings

	kept []Score
}

// Score is one replica of an answer with the factors of its score.
type Score struct {
	Replica string
	Score   float32
	// MatchedTokens of the request are held by the replica.
	MatchedTokens int32
	// HitProbability is the freshness of a match or the hit rate of a hot
	// replica.
	HitProbability float32
	// Tier is the coldest of the match, 0 when there is no match.
	Tier index.Tier

	MatchedBlocks  int32
	LastSeenMillis int64
	PressureFactor float32
	SLOBias        float32
	// Base is the score without Power.
	Base  float32
	Power float64

	match int // position in evaluation.matches
}

// Timings of one decision.
type Timings struct {
	// Total is the whole decision, Tokenize the part spent in the tokenizer.
	Total, Tokenize time.Duration
	// Resolve, Match, Rank and Fallback are its stages; 0 when a stage did
	// not run.
	Resolve, Match, Rank, Fallback time.Duration
}

// HintUsed reports whether the answer names a replica.
func (d *Decision) HintUsed() bool { return len(d.Scores) > 0 }

// BestMatchedTokens returns the longest match before any floor.
func (d *Decision) BestMatchedTokens() int32 {
	var best int32
	for i := range d.Ranked {
		best = max(best, d.Ranked[i].MatchedTokens)
	}
	return best
}

func (d *Decision) reset() {
	*d = Decision{Ranked: d.Ranked[:0], kept: d.kept[:0], DeepestKey: d.DeepestKey[:0]}
}
