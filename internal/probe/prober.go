// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"sync"
)

// DefaultMaxRunning is how many probes run at once.
const DefaultMaxRunning = 16

// Options of a Prober. Plane is required.
type Options struct {
	Plane Plane
	// Tier2 is probed for backends that have one; default none, so the stage
	// is skipped.
	Tier2 Tier2Store
	// MaxRunning bounds the probes that run at once; default
	// DefaultMaxRunning.
	MaxRunning int
	// Panicked is told what was recovered from a stage; default nobody.
	Panicked func(cause any)
}

// Prober runs probes. It is safe for concurrent use.
type Prober struct {
	plane    Plane
	tier2    Tier2Store
	panicked func(any)
	running  chan struct{} // one element per running probe

	mu    sync.Mutex
	slots map[slotKey]*slot // with at least one user each, guarded by mu
}

// slotKey names what only one probe at a time may touch.
type slotKey struct{ backend, model string }

type slot struct {
	users int           // guarded by Prober.mu
	held  chan struct{} // one element while a probe of the slot runs
}

// New returns a Prober.
func New(options Options) *Prober {
	p := &Prober{
		plane:    options.Plane,
		tier2:    options.Tier2,
		panicked: options.Panicked,
		running:  make(chan struct{}, DefaultMaxRunning),
		slots:    make(map[slotKey]*slot),
	}
	if options.MaxRunning > 0 {
		p.running = make(chan struct{}, options.MaxRunning)
	}
	if p.panicked == nil {
		p.panicked = func(any) {}
	}
	return p
}

// Run probes once. It waits for other probes of the same backend and model,
// and while too many run. The error is that of ctx, when it ended before the
// probe began.
func (p *Prober) Run(ctx context.Context, request Request) (Result, error) {
	release, err := p.enter(ctx, slotKey{request.Backend, request.Model})
	if err != nil {
		return Result{}, err
	}
	defer release()
	r := &run{plane: p.plane, tier2: p.tier2, request: request, block: request.block()}
	r.stages(ctx, p.panicked)
	return r.result, nil
}

// enter waits for the slot first, so that those waiting for each other do not
// keep the rest out.
func (p *Prober) enter(ctx context.Context, key slotKey) (release func(), err error) {
	s := p.join(key)
	select {
	case s.held <- struct{}{}:
	case <-ctx.Done():
		p.leave(key)
		return nil, ctx.Err()
	}
	select {
	case p.running <- struct{}{}:
	case <-ctx.Done():
		<-s.held
		p.leave(key)
		return nil, ctx.Err()
	}
	return func() {
		<-p.running
		<-s.held
		p.leave(key)
	}, nil
}

func (p *Prober) join(key slotKey) *slot {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.slots[key]
	if s == nil {
		s = &slot{held: make(chan struct{}, 1)}
		p.slots[key] = s
	}
	s.users++
	return s
}

func (p *Prober) leave(key slotKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.slots[key]
	if s.users--; s.users == 0 {
		delete(p.slots, key)
	}
}
