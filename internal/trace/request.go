// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Info is what is known of a request when it begins.
type Info struct {
	Endpoint, Mode string
	// RootID is at most MaxRootIDBytes long; RootIDSource is RootInbound or
	// RootGenerated.
	RootID, RootIDSource string
	RootIDTruncated      bool
	// Trusted says that it came in on a trusted listener.
	Trusted bool
	// Context may hold the span that caused the request.
	Context context.Context
}

// Request records one request. It is safe for concurrent use.
type Request struct {
	recorder *Recorder
	switches *Switches
	number   uint64
	trusted  bool
	spans    requestSpans

	mu   sync.Mutex
	join Join // without what belongs to an attempt
	// lines says that records are written at once; else they are held.
	lines, wantsLines bool
	held              []*Record
	asked, ended      bool
	last              *Record // the last dispatch
}

// Begin starts to record a request. End must follow.
func (r *Recorder) Begin(info Info) *Request {
	if r == nil {
		return nil
	}
	s := r.switches.Load()
	q := &Request{
		recorder: r, switches: s, number: r.requests.Add(1), trusted: info.Trusted, wantsLines: r.writesLines(s),
		join: Join{
			Schema: Schema, GatewayEpoch: r.epoch, RootID: Cut(info.RootID, MaxRootIDBytes), RootIDSource: info.RootIDSource,
			RootIDTruncated: info.RootIDTruncated || len(info.RootID) > MaxRootIDBytes,
			Endpoint:        Cut(info.Endpoint, MaxTextBytes), Mode: info.Mode,
		},
	}
	if q.wantsLines {
		q.lines = (r.sampled.Add(1)-1)%uint64(s.Sample) == 0
	}
	if r.options.Tracer != nil {
		q.spans = r.startSpans(info, &q.join)
	}
	return q
}

// Describe adds what the body says: the model and the caller's own id, which
// is empty if there is none.
func (q *Request) Describe(model, callerID string) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.join.Model, q.join.CallerID = Cut(model, MaxTextBytes), cutText(Text(callerID), MaxCallerIDBytes)
}

// SetMode says that the attempts from now on are of another mode.
func (q *Request) SetMode(mode string) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.join.Mode = mode
}

// AskHeader asks for the response header of this request alone, on behalf of a
// client on a trusted listener or of an authenticated tenant, which is empty if
// there is none. It says whether that is granted.
func (q *Request) AskHeader(tenant string) bool {
	if q == nil || !q.switches.RequestOptin {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.asked = q.trusted || tenant != "" && slices.Contains(q.switches.OptinTenants, tenant)
	return q.asked
}

// End closes the request. Records made later are lost.
func (q *Request) End() {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended {
		return
	}
	q.ended = true
	if q.wantsLines && !q.lines {
		q.recorder.metrics.sampledOut.Inc()
	}
	q.held = nil
	q.spans.end()
}

// recordLocked starts a record of the given kind.
func (q *Request) recordLocked(kind Kind, now time.Time) *Record {
	record := &Record{Join: q.join, request: q.number}
	record.Kind, record.TSUnixNS = kind, now.UnixNano()
	return record
}

// emitLocked passes a finished record on.
func (q *Request) emitLocked(record *Record) {
	if q.ended {
		return
	}
	r := q.recorder
	r.metrics.countTruncated(record.Truncated)
	r.ring.add(record)
	if !q.wantsLines || record.Kind == KindOutcome && !q.switches.Outcome {
		return
	}
	if !q.lines {
		q.held = append(q.held, record)
		if record.Kind != KindFailure {
			return
		}
		q.lines = true
		for _, earlier := range q.held {
			r.send(earlier, q.switches)
		}
		q.held = nil
		return
	}
	r.send(record, q.switches)
}

// Header returns the response header for the given attempt, or for the last
// dispatch of all if it is nil. ok is false if the client gets none; a header
// that it should have had is reported.
func (q *Request) Header(of *Attempt) (name, value string, ok bool) {
	if q == nil {
		return "", "", false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if of != nil && of.dispatch != nil {
		q.last = of.dispatch
	}
	byMode := q.switches.headerFor(q.trusted)
	if q.last == nil || !byMode && !q.asked {
		return "", "", false
	}
	now := q.recorder.switches.Load()
	if !(byMode && now.headerFor(q.trusted)) && !(q.asked && now.RequestOptin) {
		q.omitLocked(OmittedDisabled, 0)
		return "", "", false
	}
	text, reason, length := encodeHeader(newHeader(q.last, q.switches.HeaderReplica, q.trusted), q.switches.MaxHeaderBytes)
	if reason != "" {
		q.omitLocked(reason, length)
		return "", "", false
	}
	q.recorder.metrics.bytes.WithLabelValues(formHeader).Observe(float64(length))
	return q.switches.HeaderName, string(text), true
}

func (s *Switches) headerFor(trusted bool) bool {
	return s.Header == HeaderAny || s.Header == HeaderTrusted && trusted
}

// omitLocked reports a missing header.
func (q *Request) omitLocked(reason string, length int) {
	record := q.recordLocked(KindHeaderOmitted, q.recorder.options.Now())
	record.DispatchID, record.Attempt = q.last.DispatchID, q.last.Attempt
	record.Omitted = &Omitted{Reason: reason, Bytes: length}
	q.recorder.sendOmitted(record, q.switches)
}
