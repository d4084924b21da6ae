// SPDX-License-Identifier: Apache-2.0

package routing

import "time"

// Request is what a decision needs to know about a request.
type Request struct {
	Now time.Time
	// Model is the base model; empty admits every replica. Adapter is empty
	// for the base model itself.
	Model, Adapter string
	Role           Role
	// AnyRole admits replicas of all roles.
	AnyRole bool
	// Transport is the only one allowed; empty allows all.
	Transport string
	// PromptTokens is 0 when unknown; PromptBytes then gives an estimate.
	PromptTokens, PromptBytes int
	Hint                      Hint
	// Chain is the prompt as this process remembers it; empty if unknown.
	Chain Chain
	// Target is the only replica allowed, by id. Empty allows all.
	Target string
	// Exclude lists replicas that already failed this request.
	Exclude []string
	// Streamed promises that the first byte tells the end of the prefill.
	// Otherwise that end is estimated.
	Streamed bool
	// LoadOnly sends the request by load, whatever the policy is.
	LoadOnly bool
	// Tenant is the caller's; replicas may be reserved for some.
	Tenant string
	// Sticky is a key whose requests belong together; 0 is none.
	Sticky uint64
	// ShedAbove refuses the request if every replica would begin with it later;
	// 0 refuses none.
	ShedAbove time.Duration
}

// Hint is the index's answer for a request, or why there is none.
type Hint struct {
	// Reason is the answer's reason code, empty when the index was not asked
	// or did not answer.
	Reason string
	// Without says why there is no answer; used when Reason is empty.
	Without Branch
	// Blind means that the index sees nothing of the model, so that its silence
	// says nothing either.
	Blind bool
	// Scores are the named replicas, best first.
	Scores []Score
	// Down means that the index did not answer, or was not asked because it
	// does not. Took is the time of the lookup; 0 when there was none.
	Down bool
	Took time.Duration
	// BlockSize in tokens and RequestBlocks describe the keys looked up.
	BlockSize, RequestBlocks int
}

// Score is one replica of a hint.
type Score struct {
	Replica       string
	MatchedTokens int
	Score         float32
}

// bytesPerToken is the estimate used for prompts of unknown length.
const bytesPerToken = 4

// promptTokens returns the prompt's length, estimated if need be.
func (r *Request) promptTokens() int {
	if r.PromptTokens > 0 {
		return r.PromptTokens
	}
	return r.PromptBytes / bytesPerToken
}

// Decision records a choice and what it was made from.
type Decision struct {
	Policy string
	Origin Origin
	// Replica is empty when none was eligible.
	Replica    string
	Prediction Prediction
	// Hint says what became of the hint's first placeable replica.
	Hint HintOutcome
	// Unplaceable is the first replica the hint named that the fleet does not
	// know; UnplaceableCount counts them.
	Unplaceable      string
	UnplaceableCount int
	TieBreak         TieBreak
	// DelegatedTo names the policy that chose although the request is sticky;
	// empty where the pin decided or there is no key.
	DelegatedTo string
	// Move compares the choice with where the prefix went before.
	Move Move
	// MinWait is the least wait of all eligible replicas before they would begin
	// with the request. Shed means that it
	// was too long, so that nobody was chosen.
	MinWait time.Duration
	Shed    bool
	// AtCapacity means that nobody was eligible, and some only for having as
	// many requests as they may.
	AtCapacity bool
	// Candidates holds the chosen replica first, then falling overlap, then
	// order of id; CandidatesTotal counts those beyond the record limit too.
	Candidates      []Candidate
	CandidatesTotal int
	// GatedTotal counts the candidates that were not eligible.
	GatedTotal int
	// Passed is the holder that a spill gave up, if it was not saturated.
	Passed PassedOver
	// More requests than InflightBound, more tokens waiting than take
	// ToleratedSeconds, or a full cache saturate a candidate.
	InflightBound, ToleratedSeconds float64

	matchedTokens, givenUpTokens int
	// followed is set where a sticky choice agrees with the hint.
	followed bool
}

// Prediction is what a choice expects of the chosen replica's cache. It is an
// estimate, never a hit. Branch is empty when no policy was asked.
type Prediction struct {
	Source        Source
	Branch        Branch
	ReasonCode    string
	OverlapTokens int
	// BestOverlapTokens is the longest overlap any replica of the fleet has.
	BestOverlapTokens int
	PromptTokens      int
	BlockSize         int
	RequestBlocks     int
}

// Candidate is one replica as a decision saw it.
type Candidate struct {
	ID   string
	Gate Gate
	View
}

// View is a replica's load and cache evidence for one request.
type View struct {
	// Inflight counts requests of this process.
	Inflight int
	// QueueTokens are the uncached tokens waiting for prefill.
	QueueTokens int64
	// Usage of the engine's cache memory from 0 to 1; meaningful only if
	// UsageKnown, that is, while the last report is fresh.
	Usage      float64
	UsageKnown bool
	// RateTokens is the prefill speed in tokens per second.
	RateTokens float64
	// Requests counts what the replica was given lately; each dispatch loses
	// half its weight per half-life.
	Requests      float64
	MatchedTokens int
	// HintTokens is the index's part of MatchedTokens.
	HintTokens int
	// Source says what MatchedTokens rests on.
	Source    Source
	HintScore float32
	// HintRank is the position in the hint, -1 when not named.
	HintRank int
	// WaitSeconds is the expected time to the first token.
	WaitSeconds float64
	// Saturated means that the replica should get no more work because of a
	// cached prefix.
	Saturated bool
	// QueuedOnly means that only its queue saturates the replica.
	QueuedOnly bool
	// Young means that the replica is being warmed up.
	Young bool
}
