// SPDX-License-Identifier: Apache-2.0

package routing

import "slices"

// PairMode says how a request with a decode replica is served.
type PairMode string

// Modes of a pair. All but PairTwoLegs have the decode replica compute the
// prompt.
const (
	// PairTwoLegs computes the prompt on the prefill replica.
	PairTwoLegs PairMode = "two_legs"
	// PairShort means that too little is left to compute.
	PairShort PairMode = "local_short"
	// PairNoPrefill means that no prefill replica is eligible.
	PairNoPrefill PairMode = "local_no_prefill"
	// PairUnsupported means that KV of such a request cannot be passed on.
	PairUnsupported PairMode = "local_unsupported"
	// PairNone means that there is no decode replica that could serve it.
	PairNone PairMode = ""
)

// PairRules say when a request takes two legs.
type PairRules struct {
	// MinUncached is the least number of prompt tokens that the decode replica
	// would have to compute.
	MinUncached int
	// Local forbids two legs to decode replicas that can do without, Given to
	// all: the client has arranged the transfer itself.
	Local, Given bool
}

// Leg is one choice of a pair. Guard is nil if nobody was chosen.
type Leg struct {
	Request  Request
	Decision Decision
	Guard    *Guard
}

// Pair is a choice of a decode replica and, for two legs, of a prefill replica.
// Prefill.Decision is also set when its choice found nobody; Asked tells.
type Pair struct {
	Mode            PairMode
	Decode, Prefill Leg
	Asked           bool
}

// DecidePair chooses a decode replica, by its wait and what it holds, and if
// more than a little is left to compute also a prefill replica. Both loads are
// credited at once. The guards of both must be ended.
func (f *Fleet) DecidePair(r *Request, rules *PairRules) Pair {
	f.mu.Lock()
	defer f.mu.Unlock()
	pair, decode, prefill := f.pairLocked(r, rules)
	if decode == nil {
		return pair
	}
	matched := pair.Decode.Decision.matchedTokens
	if prefill != nil {
		matched = r.promptTokens() // it comes from the prefill replica
		pair.Prefill.Guard = f.takeLocked(&pair.Prefill, prefill, pair.Prefill.Decision.matchedTokens)
	}
	pair.Decode.Guard = f.takeLocked(&pair.Decode, decode, matched)
	return pair
}

// PreviewPair returns what DecidePair would choose now, without any effect on
// load.
func (f *Fleet) PreviewPair(r *Request, rules *PairRules) Pair {
	f.mu.Lock()
	defer f.mu.Unlock()
	pair, _, _ := f.pairLocked(r, rules)
	return pair
}

// HasPairs says whether a decode replica may get the request.
func (f *Fleet) HasPairs(r *Request) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	other := *r
	other.Role, other.AnyRole = RoleDecode, false
	return slices.ContainsFunc(f.ordered, func(m *member) bool { return m.gate(&other) == GateNone })
}

func (f *Fleet) pairLocked(r *Request, rules *PairRules) (pair Pair, decode, prefill *member) {
	pair.Decode.Request, pair.Prefill.Request = *r, *r
	pair.Decode.Request.Role, pair.Prefill.Request.Role = RoleDecode, RolePrefill
	pair.Decode.Decision, decode = f.decideLocked(&pair.Decode.Request)
	if decode == nil {
		return pair, nil, nil
	}
	left := uncached(r.promptTokens(), pair.Decode.Decision.matchedTokens)
	needed := decode.replica.NeedsPrefill
	switch {
	case rules.Given, rules.Local && !needed:
		pair.Mode = PairUnsupported
	case left < int64(rules.MinUncached) && !needed:
		pair.Mode = PairShort
	default:
		// The target names one replica, which is the decoding one. Its first
		// byte tells when a prefill is over.
		p := &pair.Prefill.Request
		p.Transport, p.Target, p.Streamed, p.ShedAbove = decode.replica.Transport, "", true, 0
		pair.Asked, pair.Mode = true, PairTwoLegs
		if pair.Prefill.Decision, prefill = f.decideLocked(p); prefill == nil {
			pair.Mode = PairNoPrefill
		}
	}
	if prefill == nil && needed && !rules.Given {
		pair.Mode, decode = PairNone, nil
		pair.Decode.Decision.Origin, pair.Decode.Decision.Replica = OriginNoneEligible, ""
		pair.Decode.Decision.Prediction.Branch = ""
	}
	return pair, decode, prefill
}

// takeLocked credits the load of one leg.
func (f *Fleet) takeLocked(leg *Leg, chosen *member, matchedTokens int) *Guard {
	r, decision := &leg.Request, &leg.Decision
	decision.Move = f.moveLocked(r, chosen)
	guard := f.creditLocked(chosen, r, matchedTokens)
	f.noteLocked(guard, r)
	f.pinLocked(guard, r)
	f.balance.spend(r.promptTokens(), decision.givenUpTokens)
	return guard
}
