// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"cmp"
	"time"
)

// Selection records one choice of a replica while it is made. It belongs to
// one goroutine. Nothing of it is recorded before End, and nothing that comes
// after.
type Selection struct {
	attempt *Attempt
	choice  Choice
	begun   time.Time
	closed  bool
}

// BeginSelection starts a selection. The recorder takes over candidates, whose
// loads must have been read before the choice.
func (a *Attempt) BeginSelection(role Role, policy string, candidates []Candidate) *Selection {
	if a == nil {
		return nil
	}
	s := &Selection{attempt: a, begun: a.request.recorder.options.Now()}
	s.choice = Choice{
		Role: role, Policy: policy, Candidates: candidates, LoadSource: LoadGatewayInflight, LoadObserved: "before_selection",
		EligibilityScope: ScopeAll, TieBreak: "none",
	}
	return s
}

// Gate notes a test of a candidate.
func (s *Selection) Gate(g Gate) {
	if s != nil && !s.closed {
		s.choice.Gates = append(s.choice.Gates, g)
	}
}

// Score notes what a source gives a candidate.
func (s *Selection) Score(score Score) {
	if s != nil && !s.closed {
		s.choice.Scores = append(s.choice.Scores, score)
	}
}

// Predict notes what is expected of the caches. The recorder takes over p.
func (s *Selection) Predict(p *Prediction) {
	if s != nil && !s.closed {
		s.choice.Prediction = p
	}
}

// Details are what more there is to say about a selection.
type Details struct {
	// ItemIndex numbers the items of an encode leg; nil for none.
	ItemIndex *int
	// DelegatedTo is the policy that a sticky branch asked.
	DelegatedTo string
	// CandidatesTotal counts candidates that BeginSelection was not given too.
	CandidatesTotal int
	// GatesLeftOut says that gates of such candidates are missing.
	GatesLeftOut     bool
	LoadSource       string
	SnapshotAtomic   bool
	EligibilityScope string
	TieBreak         string
	// Duration replaces the time since BeginSelection if it is not 0.
	Duration time.Duration
}

// End closes the selection. replica is empty if none was chosen. Whether there
// is room for it or not, what it gathered goes nowhere else.
func (s *Selection) End(replica, origin string, d *Details) {
	if s == nil || s.closed {
		return
	}
	s.closed = true
	choice := s.choice
	s.choice = Choice{}
	q := s.attempt.request
	choice.Replica, choice.Origin = Text(replica), origin
	choice.ItemIndex, choice.DelegatedTo, choice.SnapshotAtomic = d.ItemIndex, Text(d.DelegatedTo), d.SnapshotAtomic
	choice.CandidatesTotal = d.CandidatesTotal
	choice.LoadSource = cmp.Or(d.LoadSource, choice.LoadSource)
	choice.EligibilityScope = cmp.Or(d.EligibilityScope, choice.EligibilityScope)
	choice.TieBreak = cmp.Or(d.TieBreak, choice.TieBreak)
	took := d.Duration
	if took == 0 {
		took = q.recorder.options.Now().Sub(s.begun)
	}
	choice.DurationUS = took.Microseconds()
	cut := choice.bound()
	cut.Gates = cut.Gates || d.GatesLeftOut
	choice.fillEmpty()
	if report := q.recorder.options.Problem; report != nil {
		if problem := choice.problem(); problem != "" {
			report(problem)
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	s.attempt.addLocked(&choice, cut)
}

// fillEmpty makes empty lists of missing ones, so that they are no null.
func (c *Choice) fillEmpty() {
	if c.Candidates == nil {
		c.Candidates = []Candidate{}
	}
	if c.Gates == nil {
		c.Gates = []Gate{}
	}
	if c.Scores == nil {
		c.Scores = []Score{}
	}
}

func (a *Attempt) addLocked(choice *Choice, cut Truncated) {
	a.total++
	if len(a.choices) >= MaxSelections {
		a.cut.Selections = true
		return
	}
	a.choices = append(a.choices, *choice)
	a.cut.Candidates = a.cut.Candidates || cut.Candidates
	a.cut.Gates = a.cut.Gates || cut.Gates
	a.cut.Scores = a.cut.Scores || cut.Scores
}
