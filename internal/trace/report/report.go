// SPDX-License-Identifier: Apache-2.0

// Package report tells people what the trace of a request says: what was
// decided and why, and what the engine found of what was predicted.
package report

import (
	"fmt"

	"github.com/inferencecache/inference-cache/internal/trace"
)

// Answer is what a gateway tells about its latest requests, the latest last.
type Answer struct {
	GatewayEpoch string            `json:"gateway_epoch"`
	Requests     [][]*trace.Record `json:"requests"`
}

// Cause says why a request did or did not reuse a cached prefix.
type Cause string

// Causes.
const (
	// CauseReuse: a prefix was predicted, and the engine found it.
	CauseReuse Cause = "reuse"
	// CausePredicted: a prefix was predicted; the engine has not told.
	CausePredicted Cause = "predicted"
	// CauseIndexError: what was predicted and what the engine found differ.
	CauseIndexError Cause = "index_error"
	// CauseSpill: another replica held more, and was passed over.
	CauseSpill Cause = "spill"
	// CauseNoReuse: no replica held a prefix.
	CauseNoReuse Cause = "no_reuse"
	// CauseUnknown: nothing was known of the caches.
	CauseUnknown Cause = "unknown"
	// CauseNotAsked: there was no choice, so nobody was asked.
	CauseNotAsked Cause = "not_asked"
	// CauseNotSent: no replica got the request.
	CauseNotSent Cause = "not_sent"
)

// Summary is what the records of one request come to.
type Summary struct {
	Cause Cause `json:"cause"`
	// Because is one sentence for people.
	Because string `json:"because"`

	// Dispatch is the one that was answered, else the last one; nil if there was
	// none. Choice is its selection
	// of the replica that computes the prompt.
	Dispatch *trace.Record `json:"-"`
	Choice   *trace.Choice `json:"-"`
	// Outcome is nil while the answer is under way, Failures are in order.
	Outcome  *trace.Record   `json:"-"`
	Failures []*trace.Record `json:"-"`
}

// Summarize reads the records of one request, in the order they were made.
func Summarize(records []*trace.Record) Summary {
	var s Summary
	var dispatches []*trace.Record
	for _, r := range records {
		switch r.Kind {
		case trace.KindDispatch:
			dispatches = append(dispatches, r)
			s.Dispatch, s.Outcome = r, nil
		case trace.KindFailure:
			s.Failures = append(s.Failures, r)
		case trace.KindOutcome:
			// The attempt that was answered may not be the last one sent.
			s.Outcome = r
			for _, d := range dispatches {
				if d.DispatchID == r.DispatchID {
					s.Dispatch = d
				}
			}
		}
	}
	if s.Dispatch != nil {
		choices := s.Dispatch.Dispatch.Selections
		for i := range choices {
			if role := choices[i].Role; role == trace.RoleSingle || role == trace.RolePrefill {
				s.Choice = &choices[i]
				break
			}
		}
	}
	s.Cause, s.Because = s.cause()
	return s
}

func (s *Summary) cause() (Cause, string) {
	switch {
	case s.Dispatch == nil && len(s.Failures) == 0:
		return CauseUnknown, "its first records have been overwritten"
	case s.Dispatch == nil:
		f := s.Failures[len(s.Failures)-1].Failure
		return CauseNotSent, fmt.Sprintf("it failed before it was sent (%s: %s)", f.Phase, f.ErrorCode)
	case s.Choice == nil:
		return CauseUnknown, "the trace holds no choice of a replica that computes the prompt"
	case s.Choice.Prediction == nil:
		return CauseNotAsked, "nobody was asked: " + s.Choice.Origin
	case s.Choice.Prediction.Branch == "none" && !s.Choice.Prediction.BestOverlapBlocks.Known:
		return CauseNotAsked, "the request goes by load, whatever is cached"
	case !s.Choice.Prediction.BestOverlapBlocks.Known:
		return CauseUnknown, "nothing is known of the caches: " + s.Choice.Prediction.Branch
	}
	return s.compare(s.Choice.Prediction)
}

// withheld says what else an answer without a match may mean.
func withheld(reason trace.Text) string {
	if reason != "AFFINITY_HINT" && reason != "TENANT_HOT" {
		return ""
	}
	return " (it names none either when all replicas hold the prefix alike, or when a floor of the policy withholds the match)"
}

// compare puts the prediction beside what the engine says.
func (s *Summary) compare(p *trace.Prediction) (Cause, string) {
	chosen, best := p.OverlapBlocks.Value, p.BestOverlapBlocks.Value
	if chosen < best && p.Branch != "hit" {
		return CauseSpill, fmt.Sprintf("%s was expected to hold %d blocks, another replica %d; it was passed over: %s",
			s.Choice.Replica, chosen, best, s.Choice.Origin)
	}
	size := p.BlockSize.Value
	found, told := 0, false
	if s.Outcome != nil && s.Outcome.Outcome.EngineCachedTokens.Known {
		found, told = s.Outcome.Outcome.EngineCachedTokens.Value, true
	}
	switch {
	case told && chosen == 0 && found > size:
		return CauseIndexError, fmt.Sprintf("the index named no holder of a prefix, yet the engine found %d cached tokens%s",
			found, withheld(p.ReasonCode))
	case best == 0:
		return CauseNoReuse, "the index named no holder of a prefix of the prompt"
	case !told:
		return CausePredicted, fmt.Sprintf("%d cached tokens are expected; the engine has not told what it found", chosen*size)
	case found+size < chosen*size:
		return CauseIndexError, fmt.Sprintf("%d cached tokens were expected, the engine found %d", chosen*size, found)
	default:
		return CauseReuse, fmt.Sprintf("%d cached tokens were expected, the engine found %d", chosen*size, found)
	}
}
