// SPDX-License-Identifier: Apache-2.0

package client

import (
	"time"

	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// Tier is where a replica holds the coldest block of a match.
type Tier uint8

// Tiers, from fast to slow.
const (
	TierUnspecified Tier = iota
	TierMemory           // the engine's own memory
	TierHost             // host memory or another offload pool
	TierStorage          // disk or remote storage
)

// String returns the tier's name in metrics.
func (t Tier) String() string {
	switch t {
	case TierMemory:
		return "t1"
	case TierHost:
		return "t2"
	case TierStorage:
		return "t3"
	default:
		return "unspecified"
	}
}

// Score is one replica of an answer.
type Score struct {
	// Replica is the engine pod's name, or name#rank with data-parallel ranks.
	Replica string
	// Score orders the replicas of one answer; it compares nothing else.
	Score float32
	// MatchedTokens is the length of the prefix held, 0 without cache evidence.
	MatchedTokens int
	// HitProbability is the index's estimate in [0,1].
	HitProbability float32
	Tier           Tier
}

// Result is what became of a lookup. Every Result lets routing go on.
type Result struct {
	// Scores are the replicas named, best first. Empty means route as usual,
	// whatever the Reason.
	Scores []Score
	Reason Reason
	// Code is reason_code as the index sent it, "" when it did not answer. It
	// differs from Reason for codes this package does not know.
	Code string
	// Err says what went wrong when the index did not answer. It is for logs.
	Err error
	// Took is the time Lookup spent, Server the part the index states.
	Took, Server time.Duration
	// TokenIDs are the tokens of Request.PromptText, if the server made them.
	TokenIDs []uint32
}

// Best returns the first replica that is eligible. A nil eligible accepts all.
func (r Result) Best(eligible func(replica string) bool) (Score, bool) {
	for _, score := range r.Scores {
		if eligible == nil || eligible(score.Replica) {
			return score, true
		}
	}
	return Score{}, false
}

// answered returns the result of a server's answer. Reasons that come without
// scores lose them, and scores without a replica are dropped.
func answered(answer *pb.LookupRouteResponse) Result {
	result := Result{
		Reason:   ParseReason(answer.GetReasonCode()),
		Code:     answer.GetReasonCode(),
		Server:   time.Duration(max(answer.GetLookupLatencyUs(), 0)) * time.Microsecond,
		TokenIDs: answer.GetTokenIds(),
	}
	sent := answer.GetReplicaScores()
	if !result.Reason.Hints() || len(sent) == 0 {
		return result
	}
	result.Scores = make([]Score, 0, len(sent))
	for _, score := range sent {
		if score.GetReplicaId() == "" {
			continue
		}
		result.Scores = append(result.Scores, Score{
			Replica:        score.GetReplicaId(),
			Score:          score.GetScore(),
			MatchedTokens:  int(max(score.GetMatchedTokens(), 0)),
			HitProbability: score.GetEstimatedCacheHitProb(),
			Tier:           tierOf(score.GetTier()),
		})
	}
	return result
}

func tierOf(tier pb.CacheTier) Tier {
	if tier < 0 || tier > pb.CacheTier_CACHE_TIER_T3 {
		return TierUnspecified
	}
	return Tier(tier)
}
