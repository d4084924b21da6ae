// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/controlclient"
	"github.com/inferencecache/inference-cache/internal/propagate"
)

// Back-off between failed pushes to one server.
const (
	firstBackoff = time.Second
	maxBackoff   = 30 * time.Second
)

// push is everything that one round of pushing carries. It never changes.
type push struct {
	policies   *propagate.Snapshot
	extensions *propagate.Extensions
	topologies []propagate.Topology
}

// same reports whether a server would take both for the same.
func (p *push) same(other *push) bool {
	return p.policies.Revision == other.policies.Revision && p.extensions.Revision == other.extensions.Revision
}

// outcome is how the last push to a server ended.
type outcome struct {
	push *push
	// policies and extensions are nil when the server took them.
	policies, extensions error
	identity             controlclient.Identity
	// held are the last extensions that the server took, nil for none.
	held *propagate.Extensions
}

// hold says what extensions the server has, which had others after the last
// push unless it has been restarted since.
func (o *outcome) hold(last *outcome) {
	switch {
	case o.extensions == nil:
		o.held = o.push.extensions
	case last != nil && last.identity.Epoch == o.identity.Epoch:
		o.held = last.held
	}
}

// extensionsAbsent reports whether the server knows no extensions.
func (o *outcome) extensionsAbsent() bool {
	var refused *controlclient.RefusedError
	return errors.As(o.extensions, &refused) && refused.Status == http.StatusNotFound
}

// worker pushes to one server, so that a slow one delays no other. It always
// sends the newest push, one at a time.
type worker struct {
	server   Server
	cancel   context.CancelFunc
	reported func()                        // told of every new outcome
	sent     func(*outcome, time.Duration) // told of it and how long it took
	jitter   func(time.Duration) time.Duration
	wake     chan struct{} // there may be something to send
	hurry    chan struct{} // the server is known to answer again

	mu      sync.Mutex
	desired *push
	force   bool // send again although nothing changed
	last    *outcome
}

func newWorker(server Server, reported func(), jitter func(time.Duration) time.Duration) *worker {
	return &worker{server: server, reported: reported, jitter: jitter, wake: make(chan struct{}, 1), hurry: make(chan struct{}, 1)}
}

// want sets what the server should have, and sends it even if it has it when
// force is set.
func (w *worker) want(p *push, force bool) {
	w.mu.Lock()
	w.desired, w.force = p, w.force || force
	w.mu.Unlock()
	signal(w.wake)
}

// resend sends everything again at once: the server has lost it, or answers
// again.
func (w *worker) resend() {
	w.mu.Lock()
	w.force = true
	w.mu.Unlock()
	signal(w.hurry)
}

// signal wakes the reader of a channel of one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// outcome returns how the last push ended, nil before there was one.
func (w *worker) outcome() *outcome {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// next returns what to send, nil if the server has it.
func (w *worker) next() (*push, controlclient.Identity) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var known controlclient.Identity
	if w.last != nil {
		known = w.last.identity
	}
	if w.desired == nil || w.last != nil && w.last.push.same(w.desired) && !w.force && w.last.settled() {
		return nil, known
	}
	w.force = false
	return w.desired, known
}

// settled reports whether sending the same again would change nothing.
func (o *outcome) settled() bool {
	return settledError(o.policies) && (settledError(o.extensions) || o.extensionsAbsent())
}

func settledError(err error) bool {
	var refused *controlclient.RefusedError
	return err == nil || errors.Is(err, controlclient.ErrTooLarge) || errors.As(err, &refused) && refused.Status == http.StatusBadRequest
}

// run pushes until the context ends. After a failure it waits longer each
// time; what changes meanwhile goes with the next attempt.
func (w *worker) run(ctx context.Context) {
	var backoff time.Duration // after the last attempt, 0 if that succeeded
	waiting := false
	retry := time.NewTimer(maxBackoff)
	retry.Stop()
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
			if waiting {
				continue
			}
		case <-w.hurry:
			retry.Stop()
		case <-retry.C:
		}
		waiting = false
		p, known := w.next()
		if p == nil {
			continue
		}
		begin := time.Now()
		result := send(ctx, w.server.Client, p, known)
		if ctx.Err() != nil {
			return
		}
		w.sent(result, time.Since(begin))
		w.mu.Lock()
		result.hold(w.last)
		w.last = result
		w.mu.Unlock()
		w.reported()
		if result.settled() {
			backoff = 0
			continue
		}
		backoff, waiting = min(max(2*backoff, firstBackoff), maxBackoff), true
		retry.Reset(w.jitter(backoff))
	}
}

// reached says whether a push came to its server, whatever became of it there.
func reached(err error) bool {
	var refused *controlclient.RefusedError
	return err == nil || errors.As(err, &refused) || errors.Is(err, controlclient.ErrTooLarge)
}

func send(ctx context.Context, c *controlclient.Client, p *push, known controlclient.Identity) *outcome {
	o := &outcome{push: p, identity: known}
	identity, err := c.PushPolicy(ctx, p.policies.Body, p.policies.Revision, known)
	o.policies = err
	if err == nil {
		o.identity = identity
	}
	if !reached(err) {
		o.extensions = err // nor would it take those
		return o
	}
	identity, err = c.PushExtensions(ctx, p.extensions.Body, o.identity)
	o.extensions = err
	if err == nil {
		o.identity = identity
	}
	return o
}
