// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"cmp"
	"slices"
	"time"

	"github.com/inferencecache/inference-cache/internal/routing"
	"github.com/inferencecache/inference-cache/internal/trace"
)

// evidenceOf is what a decision knew of the caches.
type evidenceOf struct {
	request  *routing.Request
	decision *routing.Decision
	// blockSize and blocks describe the keys compared, 0 if there were none.
	blockSize, blocks int
	// spoken is set if the index knows the prompt's keys, so that its silence
	// about a replica means that it holds nothing.
	spoken bool
}

func newEvidence(request *routing.Request, decision *routing.Decision) evidenceOf {
	hint := &request.Hint
	e := evidenceOf{
		request: request, decision: decision, blockSize: hint.BlockSize, blocks: hint.RequestBlocks,
		spoken: !hint.Blind && slices.Contains([]string{
			routing.ReasonPrefixMatch, routing.ReasonAffinityHint, routing.ReasonTenantHot, "NO_HINT",
		}, hint.Reason),
	}
	if e.blockSize == 0 && len(request.Chain.Keys) > 0 {
		e.blockSize, e.blocks = request.Chain.KeyTokens, len(request.Chain.Keys)
	}
	return e
}

// inBlocks converts a number of tokens.
func (e *evidenceOf) inBlocks(tokens int) trace.Maybe[int] {
	if e.blockSize <= 0 {
		return trace.Maybe[int]{}
	}
	return trace.Known(tokens / e.blockSize)
}

// tokens is what a candidate is expected to hold by the source the choice
// rests on.
func (e *evidenceOf) tokens(c *routing.Candidate) int {
	if e.decision.Prediction.Source == routing.SourceIndexLookup {
		return c.HintTokens
	}
	return c.MatchedTokens
}

// overlap is what a candidate is expected to hold; unknown is not none.
func (e *evidenceOf) overlap(c *routing.Candidate) trace.Maybe[int] {
	tokens := e.tokens(c)
	if !e.spoken && tokens == 0 {
		return trace.Maybe[int]{}
	}
	return e.inBlocks(tokens)
}

// best is the longest overlap of all replicas.
func (e *evidenceOf) best() trace.Maybe[int] {
	tokens := e.decision.Prediction.BestOverlapTokens
	for i := range e.decision.Candidates {
		if c := &e.decision.Candidates[i]; c.Gate != routing.GateRole { // others serve another leg
			tokens = max(tokens, e.tokens(c))
		}
	}
	switch {
	case tokens > 0 || e.spoken:
		return e.inBlocks(tokens)
	case e.decision.Prediction.Branch == routing.BranchShortRequest:
		return trace.Known(0) // no engine caches less than a block
	default:
		return trace.Maybe[int]{}
	}
}

// recordSelection converts a decision. All facts in it were read under one
// lock before the choice.
func (x *exchange) recordSelection(a *trace.Attempt, request *routing.Request, d *routing.Decision) {
	e := newEvidence(request, d)
	policy := d.Policy
	if request.LoadOnly {
		policy = routing.PolicyLeastLoad
	}
	candidates := make([]trace.Candidate, len(d.Candidates))
	gated := 0
	for i := range d.Candidates {
		candidates[i] = e.candidate(&d.Candidates[i])
		if d.Candidates[i].Gate != routing.GateNone {
			gated++
		}
	}
	s := a.BeginSelection(roleOf(request.Role), policy, candidates)
	for i := range d.Candidates {
		x.recordGates(s, &d.Candidates[i], d)
	}
	for i := range d.Candidates {
		if c := &d.Candidates[i]; c.HintRank >= 0 {
			s.Score(e.score(c))
		}
	}
	if d.Prediction.Branch != "" || x.pdLocal(request) {
		s.Predict(x.prediction(&e))
	}
	s.End(d.Replica, string(d.Origin), &trace.Details{
		DelegatedTo: d.DelegatedTo, CandidatesTotal: d.CandidatesTotal, GatesLeftOut: d.GatedTotal > gated,
		SnapshotAtomic: true, TieBreak: string(d.TieBreak), Duration: max(time.Since(request.Now), time.Microsecond),
	})
}

func roleOf(role routing.Role) trace.Role {
	switch role {
	case routing.RolePrefill:
		return trace.RolePrefill
	case routing.RoleDecode:
		return trace.RoleDecode
	default:
		return trace.RoleSingle
	}
}

func (e *evidenceOf) candidate(c *routing.Candidate) trace.Candidate {
	out := trace.Candidate{
		Replica: trace.Text(c.ID), Load: c.Inflight, QueueTokens: trace.Known(c.QueueTokens),
		Healthy: c.Gate != routing.GateNotReady, Ready: c.Gate == routing.GateNone, Circuit: trace.CircuitClosed,
		Overloaded: c.Saturated, OverlapBlocks: e.overlap(c),
	}
	if c.UsageKnown {
		out.KVUsage = trace.Known(c.Usage)
	}
	if c.Gate == routing.GateBreakerOpen {
		out.Circuit = trace.CircuitOpen
	}
	return out
}

func (e *evidenceOf) score(c *routing.Candidate) trace.Score {
	score := trace.Score{
		Source: string(routing.SourceIndexLookup), Replica: trace.Text(c.ID), Value: trace.Known(float64(c.HintScore)),
	}
	if e.request.Hint.Reason == routing.ReasonPrefixMatch {
		score.MatchedTokens = trace.Known(c.HintTokens)
	}
	if tokens := e.decision.Prediction.PromptTokens; tokens > 0 {
		score.RequestTokens = trace.Known(tokens)
	}
	return score
}

// gateKinds are the gates of the trace that tests of eligibility belong to.
var gateKinds = map[routing.Gate]string{
	routing.GateBreakerOpen: trace.GateCircuit,
	routing.GateAdapter:     trace.GateAdapter,
	routing.GateInflightCap: trace.GateInflightCap,
	routing.GateTenant:      trace.GateTenantPolicy,
}

// recordGates notes the tests a candidate failed, and for the chosen one and
// those with the prefix also the pressures they passed.
func (x *exchange) recordGates(s *trace.Selection, c *routing.Candidate, d *routing.Decision) {
	replica := trace.Text(c.ID)
	if c.Gate != routing.GateNone {
		gate := trace.Gate{Kind: cmp.Or(gateKinds[c.Gate], trace.GateEligibility), Replica: replica, Observed: trace.Part(string(c.Gate), 1)}
		if u := x.gateway.roster.get(c.ID); u != nil && c.Gate == routing.GateInflightCap {
			gate.Observed, gate.Threshold = trace.Number(float64(c.Inflight)), trace.Number(float64(u.MaxInflight))
		}
		s.Gate(gate)
		return
	}
	telling := c.ID == d.Replica || c.MatchedTokens > 0
	pressure := func(kind string, observed, limit float64, pass bool) {
		if telling || !pass {
			s.Gate(trace.Gate{Kind: kind, Replica: replica, Observed: trace.Number(observed), Threshold: trace.Number(limit), Pass: pass})
		}
	}
	pressure(trace.GateCountPressure, float64(c.Inflight), d.InflightBound, float64(c.Inflight) <= d.InflightBound)
	queue, limit := float64(c.QueueTokens), c.RateTokens*d.ToleratedSeconds
	pressure(trace.GateQueuePressure, queue, limit, queue <= limit)
	if c.UsageKnown {
		pressure(trace.GateKVPressure, c.Usage, routing.SaturatedUsage, c.Usage < routing.SaturatedUsage)
	}
	if d.Shed {
		s.Gate(trace.Gate{
			Kind: trace.GateSLO, Replica: replica, Observed: trace.Part("wait_seconds", c.WaitSeconds),
			Threshold: trace.Part("wait_seconds", x.gateway.live.Load().shedAbove.Seconds()),
		})
	}
	if p := &d.Passed; p.Replica == c.ID {
		kind := trace.GateQueuePressure
		if p.By == routing.PressureCrowd {
			kind = trace.GateCountPressure
		}
		s.Gate(trace.Gate{Kind: kind, Replica: replica, Observed: trace.Part(string(p.By), p.Observed), Threshold: trace.Part(string(p.By), p.Limit)})
	}
}

// prediction is what the choice expects of the caches.
func (x *exchange) prediction(e *evidenceOf) *trace.Prediction {
	p, hint := &e.decision.Prediction, &e.request.Hint
	out := &trace.Prediction{
		Source: string(cmp.Or(p.Source, routing.SourceNone)), Branch: string(cmp.Or(p.Branch, routing.BranchNone)), ReasonCode: trace.Text(p.ReasonCode),
		Note: trace.Text(x.predictionNote(e)), Adapter: e.request.Adapter, BestOverlapBlocks: e.best(),
	}
	if hint.Took > 0 {
		out.LookupLatencyUS = trace.Known(hint.Took.Microseconds())
	}
	if u := x.gateway.roster.get(e.decision.Replica); u != nil {
		out.HashScheme = u.Runtime
	}
	if e.blockSize > 0 {
		out.BlockSize, out.RequestBlocks = trace.Known(e.blockSize), trace.Known(e.blocks)
	}
	if e.decision.Replica != "" && out.BestOverlapBlocks.Known {
		out.OverlapBlocks = trace.Known(0)
		if p.OverlapTokens > 0 {
			out.OverlapBlocks, out.CreditedTokens = e.inBlocks(p.OverlapTokens), p.OverlapTokens
		}
	}
	return out
}

// predictionNote says what else bears on a prediction, the gravest first.
func (x *exchange) predictionNote(e *evidenceOf) string {
	hint := &e.request.Hint
	switch {
	case x.pdLocal(e.request):
		return trace.NotePDLocal
	case hint.Without == routing.BranchParityFailed:
		return trace.NoteParityFailed
	case hint.Without == routing.BranchTokenizerUnavailable && x.tooLong:
		return trace.NotePromptTooLong
	case hint.Without == routing.BranchTokenizerUnavailable:
		return trace.NoteTokenizerUnavailable
	case hint.Down:
		return trace.NoteIndexDown
	case hint.Blind:
		return trace.NoteIndexBlind
	case e.decision.Hint == routing.HintUnplaceable:
		return trace.NoteUnknownReplica
	case x.batch:
		return trace.NoteBatchFirstPrompt
	default:
		return ""
	}
}
