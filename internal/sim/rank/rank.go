// SPDX-License-Identifier: Apache-2.0

// Package rank runs one scheduler of a simulated engine in time: it takes
// requests, lets each step last as long as the timing model says, publishes
// the step's KV events at its start and hands out tokens at its end.
package rank

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/sim/blockhash"
	"github.com/inferencecache/inference-cache/internal/sim/sched"
	"github.com/inferencecache/inference-cache/internal/sim/wire"
)

// ErrStopped ends the streams of a rank that stopped or restarted.
var ErrStopped = errors.New("the engine stopped")

// Publisher takes encoded batches. Its methods must not block on a subscriber.
type Publisher interface {
	// Publish may keep the payload.
	Publish(payload []byte) (sequence uint64)
	// Restart begins again at sequence 0.
	Restart()
}

// Clock is the time a rank lives in.
type Clock interface {
	Now() time.Time
	// Sleep returns early with an error when ctx ends.
	Sleep(ctx context.Context, d time.Duration) error
}

// SystemClock is the time of the machine.
type SystemClock struct{}

// Now implements Clock.
func (SystemClock) Now() time.Time { return time.Now() }

// Sleep implements Clock.
func (SystemClock) Sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Options of a Rank.
type Options struct {
	// Scheduler makes a fresh scheduler, at New and at each Restart. Default:
	// sched.New with the default configuration.
	Scheduler func() *sched.Scheduler
	Timing    sched.Timing
	// Encoder is used only with a Publisher.
	Encoder wire.Encoder
	// Publisher of KV events. Default nil: none are sent.
	Publisher Publisher
	// FlushWhenIdle publishes a clear at once, as SGLang does; otherwise it
	// waits for the next step, as in vLLM.
	FlushWhenIdle bool
	// HoldFor is how long blocks of a request with Hold are kept for another
	// engine. Default 480 s.
	HoldFor time.Duration
	// Clock defaults to SystemClock.
	Clock Clock
}

// defaultHold is VLLM_NIXL_ABORT_REQUEST_TIMEOUT's default.
const defaultHold = 480 * time.Second

// Rank is one running scheduler. Its methods are safe for concurrent use.
type Rank struct {
	options Options
	wake    chan struct{} // holds one token while there may be work

	mu        sync.Mutex
	scheduler *sched.Scheduler
	streams   map[*sched.Request]*Stream
	held      map[*sched.Request]time.Time // until when
	stall     time.Duration                // added to the next step
	stopped   bool
}

// New returns a rank that works while Run runs.
func New(options Options) *Rank {
	if options.Scheduler == nil {
		options.Scheduler = func() *sched.Scheduler { return sched.New(sched.Config{}) }
	}
	if options.Clock == nil {
		options.Clock = SystemClock{}
	}
	if options.HoldFor <= 0 {
		options.HoldFor = defaultHold
	}
	return &Rank{
		options:   options,
		wake:      make(chan struct{}, 1),
		scheduler: options.Scheduler(),
		streams:   make(map[*sched.Request]*Stream),
		held:      make(map[*sched.Request]time.Time),
	}
}

// Submit queues a request. The stream must be closed.
func (r *Rank) Submit(request *sched.Request) (*Stream, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return nil, ErrStopped
	}
	if err := r.scheduler.Add(request); err != nil {
		return nil, err
	}
	stream := newStream(r, request)
	r.streams[request] = stream
	r.signal()
	return stream, nil
}

func (r *Rank) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// abort forgets a request; its blocks are free at once.
func (r *Rank) abort(request *sched.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.streams[request]; known {
		r.scheduler.Abort(request)
		delete(r.streams, request)
	}
}

// starvedStep is the time until a step that found no room is tried again.
const starvedStep = time.Millisecond

// Release frees the blocks that were held for another engine. It says whether
// they were still there.
func (r *Rank) Release(request *sched.Request) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expireLocked()
	if _, there := r.held[request]; !there {
		return false
	}
	delete(r.held, request)
	return r.scheduler.Release(request)
}

// expireLocked frees what was held for its time.
func (r *Rank) expireLocked() {
	now := r.options.Clock.Now()
	for request, until := range r.held {
		if !now.Before(until) {
			delete(r.held, request)
			r.scheduler.Release(request)
		}
	}
}

// Reset drops the cache; it fails while requests run.
func (r *Rank) Reset() bool {
	r.mu.Lock()
	ok := r.scheduler.Reset()
	r.mu.Unlock()
	if ok && r.options.FlushWhenIdle {
		r.signal()
	}
	return ok
}

// Flush publishes events that wait for the next step.
func (r *Rank) Flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.publishLocked(r.scheduler.TakeEvents())
}

// Restart loses cache, queue and running requests and restarts the publisher,
// as a new process would.
func (r *Rank) Restart() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endStreamsLocked()
	if r.options.Publisher != nil {
		r.options.Publisher.Restart()
	}
	r.scheduler = r.options.Scheduler()
	clear(r.held)
	r.signal()
}

// Stall makes the next step last longer.
func (r *Rank) Stall(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stall += d
}

// Stats returns the scheduler's figures.
func (r *Rank) Stats() sched.Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expireLocked()
	return r.scheduler.Stats()
}

// Config returns the scheduler's configuration with its defaults applied.
func (r *Rank) Config() sched.Config {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.scheduler.Config()
}

// CachedRun is the number of leading tokens of full blocks in the cache.
func (r *Rank) CachedRun(tokens []uint32, id blockhash.Identity) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.scheduler.CachedRun(tokens, id)
}

// Run works until ctx ends, then ends all streams with ErrStopped.
func (r *Rank) Run(ctx context.Context) {
	defer r.stop()
	stepEnd := r.options.Clock.Now()
	for {
		scheduler, step, stall, busy := r.schedule()
		if !busy {
			select {
			case <-r.wake:
			case <-ctx.Done():
				return
			}
			stepEnd = r.options.Clock.Now()
			continue
		}
		// Steps follow each other without a gap, so a late timer does not
		// slow the engine down.
		stepEnd = stepEnd.Add(r.options.Timing.Step(step) + stall)
		if r.options.Clock.Sleep(ctx, stepEnd.Sub(r.options.Clock.Now())) != nil {
			return
		}
		r.complete(scheduler, step)
	}
}

// schedule decides the next step and publishes its events. Busy is false when
// there is nothing to do.
func (r *Rank) schedule() (scheduler *sched.Scheduler, step sched.Step, stall time.Duration, busy bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.scheduler.Busy() {
		if r.options.FlushWhenIdle {
			r.publishLocked(r.scheduler.TakeEvents())
		}
		return r.scheduler, sched.Step{}, 0, false
	}
	stall, r.stall = r.stall, 0
	r.expireLocked()
	step = r.scheduler.Schedule()
	if step.Empty() {
		stall += starvedStep // held blocks leave no room
	}
	r.publishLocked(step.Events)
	return r.scheduler, step, stall, true
}

// complete hands out the tokens of a step. A step of a scheduler that was
// replaced meanwhile is void.
func (r *Rank) complete(scheduler *sched.Scheduler, step sched.Step) {
	now := r.options.Clock.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if scheduler != r.scheduler {
		return
	}
	for _, output := range scheduler.Complete(step) {
		token := Token{Output: output, At: now}
		if output.Held != nil {
			token.HeldUntil = now.Add(r.options.HoldFor)
			r.held[output.Request] = token.HeldUntil
		}
		if stream := r.streams[output.Request]; stream != nil {
			stream.push(token)
		}
		if output.Finish != sched.Running {
			delete(r.streams, output.Request)
		}
	}
}

// publishLocked holds the lock so that batches leave in the order of their
// events.
func (r *Rank) publishLocked(events []wire.Event) {
	if len(events) == 0 || r.options.Publisher == nil {
		return
	}
	seconds := float64(r.options.Clock.Now().UnixMicro()) / 1e6
	r.options.Publisher.Publish(r.options.Encoder.Append(nil, seconds, events))
}

func (r *Rank) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	r.endStreamsLocked()
}

func (r *Rank) endStreamsLocked() {
	for _, stream := range r.streams {
		stream.fail(ErrStopped)
	}
	clear(r.streams)
}
