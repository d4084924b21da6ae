// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"slices"
	"time"
)

// Attempt records one try at sending a request. It is safe for concurrent use.
type Attempt struct {
	request *Request
	number  Maybe[int]
	span    attemptSpan

	// The rest is guarded by request.mu.
	dispatchID Text
	dispatch   *Record
	choices    []Choice
	total      int
	cut        Truncated
	failed     bool
}

// Attempt starts try number n, from 0.
func (q *Request) Attempt(n int) *Attempt {
	if q == nil {
		return nil
	}
	return &Attempt{request: q, number: Known(n)}
}

// UnknownAttempt is a try whose number cannot be known.
func (q *Request) UnknownAttempt() *Attempt {
	if q == nil {
		return nil
	}
	return &Attempt{request: q}
}

// Sent is what Dispatch records of a request to engines.
type Sent struct {
	// DispatchID is a new id, see NewID.
	DispatchID string
	// IDs are those really sent, of both legs and with all children of a
	// fan-out.
	IDs []EngineID
	// IDsUnknown says that engines make ids of their own.
	IDsUnknown bool
	// PolicyRevision as the index tells; empty if it does not.
	PolicyRevision string
}

// Dispatch records that the attempt is about to be sent.
func (a *Attempt) Dispatch(sent *Sent) {
	if a == nil {
		return
	}
	q := a.request
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.recorder.options.Now()
	a.dispatchID = Text(sent.DispatchID)
	record := a.recordLocked(KindDispatch, now)
	ids, cut := boundIDs(sent.IDs)
	body := &Dispatch{
		EngineIDs: ids, EngineIDsComplete: len(ids) > 0 && !cut && !sent.IDsUnknown,
		Selections: slices.Clip(a.choices), SelectionsTotal: a.total,
		PolicyRevision: cutText(Text(sent.PolicyRevision), MaxTextBytes), CacheEvidence: "unknown",
	}
	if body.Selections == nil {
		body.Selections = []Choice{}
	}
	if !sent.IDsUnknown {
		body.EngineIDsTotal = Known(len(sent.IDs))
	}
	record.Dispatch, record.Truncated.IDs = body, cut
	q.last, a.dispatch = record, record
	a.startSpan(record, now)
	q.emitLocked(record)
}

// Failed is how an attempt failed.
type Failed struct {
	Phase string
	// Role is the leg that failed; empty where there is only one.
	Role      Role
	Status    int
	ErrorCode string
	Retryable bool
	// WillRetry says that another attempt follows after Backoff.
	WillRetry bool
	Backoff   time.Duration
}

// Fail records that the attempt failed, whether another follows or not. An
// attempt that was never dispatched has no dispatch id. Only the first failure of
// an attempt is recorded.
func (a *Attempt) Fail(f *Failed) {
	if a == nil {
		return
	}
	q := a.request
	q.mu.Lock()
	defer q.mu.Unlock()
	if a.failed {
		return
	}
	a.failed = true
	if report := q.recorder.options.Problem; report != nil && !slices.Contains(allPhases, f.Phase) {
		report("unknown phase " + f.Phase)
	}
	record := a.recordLocked(KindFailure, q.recorder.options.Now())
	body := &Failure{
		Phase: f.Phase, Role: f.Role.leg(), Status: f.Status, ErrorCode: Cut(f.ErrorCode, MaxTextBytes), Retryable: f.Retryable, WillRetry: f.WillRetry,
		Selections: slices.Clip(a.choices), SelectionsTotal: a.total,
	}
	if body.Selections == nil {
		body.Selections = []Choice{}
	}
	if f.WillRetry {
		body.NextBackoffMS = Known(f.Backoff.Milliseconds())
	}
	record.Failure = body
	a.failSpan(record)
	q.emitLocked(record)
}

// Outcome records how the answer of a dispatched attempt ended.
func (a *Attempt) Outcome(o *Outcome) {
	if a == nil {
		return
	}
	q := a.request
	q.mu.Lock()
	defer q.mu.Unlock()
	record := a.recordLocked(KindOutcome, q.recorder.options.Now())
	body := *o
	body.Role = body.Role.leg()
	body.Replica = cutText(body.Replica, MaxReplicaBytes)
	body.EngineEvidence = EvidenceNone
	if body.EngineCachedTokens.Known || body.PromptTokens.Known {
		body.EngineEvidence = EvidenceUsage
	}
	record.Outcome, record.Truncated = &body, Truncated{}
	a.endSpan(record)
	q.emitLocked(record)
}

// recordLocked starts a record with the ids of the attempt.
func (a *Attempt) recordLocked(kind Kind, now time.Time) *Record {
	record := a.request.recordLocked(kind, now)
	record.DispatchID, record.Attempt = a.dispatchID, a.number
	record.Truncated = a.cut
	return record
}
