// SPDX-License-Identifier: Apache-2.0

// Package oracle simulates a fleet of engines and its router in virtual time,
// to tell how much a router could have reused. Engines are the schedulers and
// timing of the real simulated engines; the all-knowing router sees their
// caches and queues exactly, but not the future.
package oracle

import (
	"math"
	"time"

	"github.com/inferencecache/inference-cache/internal/sim/blockhash"
	"github.com/inferencecache/inference-cache/internal/sim/sched"
	"github.com/inferencecache/inference-cache/internal/sim/wire"
)

// Arrival is one request to a fleet.
type Arrival struct {
	// At is when it arrives; arrivals come in this order.
	At        time.Duration
	Prompt    []uint32
	MaxTokens int
	Identity  blockhash.Identity
	Sample    func(index int) (token uint32, end bool)
}

// Outcome is what became of an Arrival.
type Outcome struct {
	Replica      int
	CachedTokens int
	// FirstToken is the time from arrival to the first token.
	FirstToken time.Duration
}

// Config of a fleet.
type Config struct {
	// Replicas is the number of engines, at least 1.
	Replicas int
	// Scheduler and Timing are those of each engine.
	Scheduler sched.Config
	Timing    sched.Timing
	// Listener hears what happens. Default: nobody does.
	Listener Listener
}

// Listener hears what the engines of a fleet show to the outside. Times
// are those of arrivals.
type Listener interface {
	// Published reports KV events of a replica; they may be kept.
	Published(now time.Duration, replica int, events []wire.Event)
	// FirstToken and Finished report the progress of an arrival.
	FirstToken(now time.Duration, arrival *Arrival)
	Finished(now time.Duration, arrival *Arrival)
}

type deaf struct{}

func (deaf) Published(time.Duration, int, []wire.Event) {}
func (deaf) FirstToken(time.Duration, *Arrival)         {}
func (deaf) Finished(time.Duration, *Arrival)           {}

// Policy chooses the replica of a request.
type Policy func(fleet *Fleet, arrival *Arrival) int

// Fleet is a number of engines at one moment of virtual time.
type Fleet struct {
	config   Config
	replicas []*replica
	outcomes []Outcome
}

// replica is one engine. While it is busy, a step is in flight until stepEnd.
type replica struct {
	number    int
	scheduler *sched.Scheduler
	step      sched.Step
	stepEnd   time.Duration
	busy      bool
	open      map[*sched.Request]*open
	queued    int // uncached prompt tokens of requests without a first token
	served    int
}

type open struct {
	number   int // index of the outcome
	arrival  *Arrival
	uncached int // 0 after the first token
}

// Run sends all arrivals through a fleet and returns their outcomes.
func Run(config Config, policy Policy, arrivals []Arrival) []Outcome {
	if config.Listener == nil {
		config.Listener = deaf{}
	}
	f := &Fleet{config: config, outcomes: make([]Outcome, len(arrivals))}
	for number := range config.Replicas {
		f.replicas = append(f.replicas, &replica{
			number: number, scheduler: sched.New(config.Scheduler), open: make(map[*sched.Request]*open),
		})
	}
	for i := range arrivals {
		f.advance(arrivals[i].At)
		f.admit(i, &arrivals[i], policy(f, &arrivals[i]))
	}
	f.advance(math.MaxInt64)
	return f.outcomes
}

// Size is the number of replicas.
func (f *Fleet) Size() int { return len(f.replicas) }

// Held is the number of prompt tokens a replica would not compute.
func (f *Fleet) Held(replica int, arrival *Arrival) int {
	scheduler := f.replicas[replica].scheduler
	size := scheduler.Config().BlockSize
	held := scheduler.CachedRun(arrival.Prompt, arrival.Identity)
	return min(held, (len(arrival.Prompt)-1)/size*size)
}

// InFlight is the number of requests at a replica.
func (f *Fleet) InFlight(replica int) int { return len(f.replicas[replica].open) }

// Queued is the number of prompt tokens a replica still has to compute, as
// known when their requests arrived.
func (f *Fleet) Queued(replica int) int { return f.replicas[replica].queued }

// Served is the number of requests a replica was given.
func (f *Fleet) Served(replica int) int { return f.replicas[replica].served }

func (f *Fleet) admit(number int, arrival *Arrival, to int) {
	r := f.replicas[to]
	uncached := len(arrival.Prompt) - f.Held(to, arrival)
	request := &sched.Request{
		Prompt: arrival.Prompt, MaxTokens: arrival.MaxTokens, Identity: arrival.Identity, Sample: arrival.Sample,
	}
	f.outcomes[number].Replica = to
	r.served++
	if r.scheduler.Add(request) != nil {
		return // the engine refuses it: no token, no reuse
	}
	r.open[request] = &open{number: number, arrival: arrival, uncached: uncached}
	r.queued += uncached
	if !r.busy {
		f.start(r, arrival.At)
	}
}

// start begins the next step of a replica, if it has work.
func (f *Fleet) start(r *replica, now time.Duration) {
	r.busy = r.scheduler.Busy()
	if r.busy {
		r.step = r.scheduler.Schedule()
		r.stepEnd = now + f.config.Timing.Step(r.step)
		if len(r.step.Events) > 0 {
			f.config.Listener.Published(now, r.number, r.step.Events)
		}
	}
}

// advance ends all steps that end until now, in order.
func (f *Fleet) advance(now time.Duration) {
	for {
		var next *replica
		for _, r := range f.replicas {
			if r.busy && r.stepEnd <= now && (next == nil || r.stepEnd < next.stepEnd) {
				next = r
			}
		}
		if next == nil {
			return
		}
		f.finish(next)
	}
}

func (f *Fleet) finish(r *replica) {
	for _, output := range r.scheduler.Complete(r.step) {
		request := r.open[output.Request]
		if request.uncached > 0 {
			f.outcomes[request.number].CachedTokens = output.CachedTokens
			f.outcomes[request.number].FirstToken = r.stepEnd - request.arrival.At
			r.queued -= request.uncached
			request.uncached = 0
			f.config.Listener.FirstToken(r.stepEnd, request.arrival)
		}
		if output.Finish != sched.Running {
			delete(r.open, output.Request)
			f.config.Listener.Finished(r.stepEnd, request.arrival)
		}
	}
	f.start(r, r.stepEnd)
}
