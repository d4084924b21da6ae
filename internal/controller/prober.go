// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/inferencecache/inference-cache/internal/controlclient"
)

const (
	// probeWorkers is how many backends are tested at once.
	probeWorkers = 4
	// probeInterval is how often one backend is tested at most.
	probeInterval = 30 * time.Second
	// faceTimeout bounds the test of one server's gRPC face.
	faceTimeout = 2 * time.Second
)

// Face tests what clients see of a server: health, and a lookup of the
// reserved tenant for a model and hash scheme.
type Face interface {
	Check(ctx context.Context, server Server, model, scheme string) error
}

// ProberOptions of a Prober. Fields without a default are required.
type ProberOptions struct {
	Discovery Discovery
	// Face is tested after the self-test of each server; default not.
	Face Face
	// Metrics counts the calls; default nowhere.
	Metrics *Metrics
	// Logger takes the logs; default none.
	Logger *slog.Logger
	// Now is the clock; default time.Now.
	Now func() time.Time
}

// Prober runs the self-tests of backends beside the reconcilers, so that a
// server that hangs holds up none of them. It is safe for concurrent use.
type Prober struct {
	options ProberOptions
	queue   workqueue.TypedInterface[types.NamespacedName]

	mu       sync.Mutex
	entries  map[types.NamespacedName]*probeEntry
	finished func(types.NamespacedName) // told of every result
}

// probeEntry is what is known of one backend. At most one of running and
// result is set.
type probeEntry struct {
	request testRequest
	running bool
	result  *testResult
	// last is when the last result that was written came.
	last time.Time
}

// testRequest says what a self-test puts into the index.
type testRequest struct{ model, scheme, kind string }

// NewProber returns a prober that waits for Start.
func NewProber(o ProberOptions) *Prober {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Prober{
		options: o, queue: workqueue.NewTyped[types.NamespacedName](), entries: make(map[types.NamespacedName]*probeEntry),
		finished: func(types.NamespacedName) {},
	}
}

// NeedLeaderElection is true: one controller tests.
func (p *Prober) NeedLeaderElection() bool { return true }

// Start tests until the context ends.
func (p *Prober) Start(ctx context.Context) error {
	var workers sync.WaitGroup
	for range probeWorkers {
		workers.Go(func() {
			for {
				name, over := p.queue.Get()
				if over {
					return
				}
				p.test(ctx, name)
				p.queue.Done(name)
			}
		})
	}
	<-ctx.Done()
	p.queue.ShutDown()
	workers.Wait()
	return nil
}

// notify sets who is told of results.
func (p *Prober) notify(finished func(types.NamespacedName)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finished = finished
}

// take returns a result for the request that has not been written yet. If
// there is none and the last is old enough, a test begins.
func (p *Prober) take(name types.NamespacedName, request testRequest) *testResult {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.entries[name]
	if e == nil {
		e = &probeEntry{}
		p.entries[name] = e
	}
	if e.request != request {
		e.request, e.result = request, nil // of something else
	}
	if e.running || e.result != nil {
		return e.result
	}
	if e.last.IsZero() || p.options.Now().Sub(e.last) >= probeInterval {
		e.running = true
		p.queue.Add(name)
	}
	return nil
}

// written says that a result stands in the backend's status: it is used up.
func (p *Prober) written(name types.NamespacedName, result *testResult) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.entries[name]; e != nil && e.result == result {
		e.result, e.last = nil, result.at
	}
}

// discard drops what was found about a backend that is not tested now.
func (p *Prober) discard(name types.NamespacedName) {
	p.mu.Lock()
	if e := p.entries[name]; e != nil {
		e.result = nil
	}
	p.mu.Unlock()
	p.options.Metrics.probeForgotten(name.String())
}

// forget drops a backend that is gone.
func (p *Prober) forget(name types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.entries, name)
}

// wait returns how long it takes until the next test may begin.
func (p *Prober) wait(name types.NamespacedName) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.entries[name]
	if e == nil || e.running || e.last.IsZero() {
		return probeInterval
	}
	return min(max(probeInterval-p.options.Now().Sub(e.last), time.Second), probeInterval)
}

// test asks every server in turn.
func (p *Prober) test(ctx context.Context, name types.NamespacedName) {
	p.mu.Lock()
	e := p.entries[name]
	if e == nil {
		p.mu.Unlock()
		return
	}
	request := e.request
	p.mu.Unlock()
	result := p.ask(ctx, name.String(), request)
	if ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	if e = p.entries[name]; e != nil {
		e.running = false
		if e.request == request {
			e.result = result
		}
	}
	finished := p.finished
	p.mu.Unlock()
	finished(name)
}

func (p *Prober) ask(ctx context.Context, backend string, request testRequest) *testResult {
	servers, err := p.options.Discovery.Servers(ctx)
	var answers []testAnswer
	for _, server := range servers {
		a := testAnswer{server: server.Name}
		a.result, _, a.err = server.Client.Probe(ctx, controlclient.ProbeRequest{
			Backend: backend, Model: request.model, HashScheme: request.scheme, BackendType: request.kind,
		})
		p.options.Metrics.probed(backend, a.result, a.err, p.options.Now())
		if a.err == nil && p.options.Face != nil && a.stagesPassed() {
			faceCtx, cancel := context.WithTimeout(ctx, faceTimeout)
			a.face = p.options.Face.Check(faceCtx, server, request.model, request.scheme)
			cancel()
		}
		answers = append(answers, a)
	}
	result := summarise(answers, err)
	result.at = p.options.Now()
	if result.reason != reasonProbeOK {
		p.options.Logger.Warn("a self-test did not pass", "backend", backend, "reason", result.reason, "message", result.message)
	}
	return result
}
