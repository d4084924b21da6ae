// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"context"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/policy"
	"github.com/inferencecache/inference-cache/internal/ranking"
)

// DefaultBlockSize is the number of tokens in a block when nobody knows better.
const DefaultBlockSize = 16

const (
	// maxTokenizing is how many prompts may be tokenized at once.
	maxTokenizing = 64
	// tokenizeTimeout bounds a prompt that nothing else bounds.
	tokenizeTimeout = 5 * time.Second
)

// Options of a Decider. Index is required.
type Options struct {
	Index *index.Index
	// Policies is where policies come from; default none.
	Policies *policy.Store
	// Knobs of the ranking; default ranking.DefaultKnobs.
	Knobs *ranking.Knobs
	// BlockSize returns the tokens in a block of a scope, 0 = unknown;
	// default DefaultBlockSize for all.
	BlockSize func(index.Scope) int
	// Tokenizer for text; default none, so text gets no hint.
	Tokenizer Tokenizer
	// Now is the clock; default time.Now.
	Now func() time.Time
	// DiagnoseAdapter makes an adapter nobody reported UNKNOWN_ADAPTER;
	// default false.
	DiagnoseAdapter bool
	// DiagnosticsGrace is how long after New the UNKNOWN_* codes are
	// withheld; default 0.
	DiagnosticsGrace time.Duration
}

// Decider answers requests. It is safe for concurrent use.
type Decider struct {
	index           *index.Index
	policies        *policy.Store
	knobs           ranking.Knobs
	blockSize       func(index.Scope) int
	tokenizer       Tokenizer
	now             func() time.Time
	diagnoseAdapter bool
	graceEnd        time.Time

	tokenizing  chan struct{} // one element per running tokenization
	evaluations sync.Pool
}

// New returns a Decider.
func New(options Options) *Decider {
	d := &Decider{
		index:           options.Index,
		policies:        options.Policies,
		knobs:           ranking.DefaultKnobs(),
		blockSize:       options.BlockSize,
		tokenizer:       options.Tokenizer,
		now:             options.Now,
		diagnoseAdapter: options.DiagnoseAdapter,
		tokenizing:      make(chan struct{}, maxTokenizing),
	}
	if d.policies == nil {
		d.policies = policy.NewStore(0)
	}
	if options.Knobs != nil {
		d.knobs = *options.Knobs
	}
	if d.blockSize == nil {
		d.blockSize = func(index.Scope) int { return DefaultBlockSize }
	}
	if d.now == nil {
		d.now = time.Now
	}
	if options.DiagnosticsGrace > 0 {
		d.graceEnd = d.now().Add(options.DiagnosticsGrace)
	}
	d.evaluations.New = func() any { return &evaluation{Decider: d} }
	return d
}

// Decide answers one request into out, whose buffers it reuses. It has no side
// effect but the access counts of tenants with LFU eviction. When ctx ends
// meanwhile the answer is Timeout.
func (d *Decider) Decide(ctx context.Context, request *Request, out *Decision) {
	out.reset()
	if request.Tenant == policy.ReservedTenant {
		out.Reason = NoHint
		return
	}
	e := d.evaluations.Get().(*evaluation)
	e.begin(request, out)
	e.run(ctx)
	out.Timings.Total = d.now().Sub(e.start)
	e.end()
	d.evaluations.Put(e)
}

// evaluation is the state of one decision and the buffers it works in. Between
// decisions it refers to nothing of a request.
type evaluation struct {
	*Decider
	request *Request
	out     *Decision
	rules   *policy.Effective
	input   input

	start, mark, deadline time.Time
	deadlineSet           bool

	view       index.View
	viewHeld   bool
	nowMillis  int64
	matches    []index.Match
	piece      []index.Match
	credited   []index.Match
	candidates []index.Candidate
	drafts     drafts
	buffers    buffers
}

func (e *evaluation) begin(request *Request, out *Decision) {
	e.request, e.out = request, out
	e.rules = e.policies.View().For(request.Tenant)
	e.start = e.now()
	e.mark = e.start
	if e.rules.LookupTimeoutMillis > 0 {
		e.bound(time.Duration(e.rules.LookupTimeoutMillis) * time.Millisecond)
	}
}

// run decides. It gives the view back even when something panics.
func (e *evaluation) run(ctx context.Context) {
	defer e.releaseView()
	e.out.Reason = e.decide(ctx)
}

// end forgets the request. Buffers of unusual size are left to the collector.
func (e *evaluation) end() {
	const keep = 1 << 16
	e.request, e.out, e.rules = nil, nil, nil
	e.input = input{}
	e.deadlineSet = false
	clear(e.matches)
	clear(e.piece)
	clear(e.credited)
	clear(e.candidates)
	clear(e.drafts.scores)
	e.buffers.forget()
	if cap(e.buffers.keys) > keep {
		e.buffers.keys = nil
	}
}

func (e *evaluation) releaseView() {
	if e.viewHeld {
		e.viewHeld = false
		e.view.Release()
	}
}

func (e *evaluation) bound(after time.Duration) {
	e.deadline, e.deadlineSet = e.start.Add(after), true
}

// expired reports whether nobody waits for the answer any more.
func (e *evaluation) expired(ctx context.Context) bool {
	return ctx.Err() != nil || e.deadlineSet && e.now().After(e.deadline)
}

// lap returns the time since the previous lap.
func (e *evaluation) lap() time.Duration {
	now := e.now()
	lap := now.Sub(e.mark)
	e.mark = now
	return lap
}
