// SPDX-License-Identifier: Apache-2.0

// Package admission bounds the requests under way, for all callers together and
// for each of them, and lets a bounded number of others wait. Those who wait are
// admitted by deficit round robin: each caller gets an equal share of the
// prompt tokens, however many requests it sends.
package admission

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/defaults"
)

// Settings of a Gate. The zero value admits everything.
type Settings struct {
	// MaxInflight bounds requests under way; 0 is no bound.
	MaxInflight int
	// QueueLimit bounds requests that wait. Default 100; negative is none.
	QueueLimit int
	// QueueTimeout is how long a request waits at most. Default 5 s.
	QueueTimeout time.Duration
	// Quantum is how many prompt tokens a caller gets in each round. Default
	// 1,024.
	Quantum int
}

func (s Settings) withDefaults() Settings {
	defaults.Set(&s.QueueLimit, 100)
	defaults.Positive(&s.QueueTimeout, 5*time.Second)
	defaults.Positive(&s.Quantum, 1024)
	return s
}

// Limits bound one caller. The zero value sets no bounds.
type Limits struct {
	// MaxInflight bounds requests under way.
	MaxInflight int
	// TokensPerMinute bounds prompt tokens. A minute's worth may come at once.
	TokensPerMinute int64
}

// Request is what asks to be admitted.
type Request struct {
	// Caller names whose limits count.
	Caller string
	Limits Limits
	// Tokens is the length of the prompt as far as it is known.
	Tokens int
}

// Reason says why a request was refused.
type Reason uint8

// Reasons. QueueFull and QueueTimeout concern the bound on all callers.
const (
	QueueFull Reason = iota
	QueueTimeout
	CallerInflight
	CallerTokens
)

// Refusal is the error of a request that was not admitted.
type Refusal struct {
	Reason Reason
	// RetryAfter is when another try may succeed.
	RetryAfter time.Duration
}

func (r *Refusal) Error() string {
	what := map[Reason]string{
		QueueFull:      "too many requests wait",
		QueueTimeout:   "no place became free in time",
		CallerInflight: "the caller has too many requests under way",
		CallerTokens:   "the caller has used up its tokens",
	}[r.Reason]
	return fmt.Sprintf("%s; retry after %s", what, r.RetryAfter)
}

// retryAfter is told to those who came while too much was under way.
const retryAfter = time.Second

// Gate admits requests. It is safe for concurrent use.
type Gate struct {
	mu       sync.Mutex
	settings Settings
	inflight int
	waiting  int
	callers  map[string]*caller
	// ring holds callers with requests that wait, in the order of their turns;
	// next is whose turn it is.
	ring []*caller
	next int
}

// New returns a gate.
func New(settings Settings) *Gate {
	return &Gate{settings: settings.withDefaults(), callers: map[string]*caller{}}
}

// Set changes the settings. Requests that wait and now have room are admitted;
// none that is under way or waits is refused for it.
func (g *Gate) Set(settings Settings) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.settings = settings.withDefaults()
	g.admitLocked()
}

// Load returns the requests under way and those that wait.
func (g *Gate) Load() (inflight, waiting int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inflight, g.waiting
}

// Enter waits for a place and returns the ticket for it, which must be left. The
// error is a *Refusal, or ctx's.
func (g *Gate) Enter(ctx context.Context, r Request) (*Ticket, error) {
	w, timeout, err := g.arrive(r)
	if err != nil || w.admitted() {
		return w.ticket, err
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-w.decided:
	case <-timer.C:
		g.giveUp(w, &Refusal{QueueTimeout, retryAfter})
	case <-ctx.Done():
		g.giveUp(w, ctx.Err())
	}
	<-w.decided
	return w.ticket, w.err
}

// arrive admits a request, has it wait, or refuses it.
func (g *Gate) arrive(r Request) (*waiter, time.Duration, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.callerLocked(r.Caller)
	if wait := c.tokens.take(time.Now(), r.Limits.TokensPerMinute, r.Tokens); wait > 0 {
		g.forgetLocked(c)
		return &waiter{}, 0, &Refusal{CallerTokens, wait}
	}
	w := &waiter{caller: c, limit: r.Limits.MaxInflight, tokens: r.Tokens, cost: min(max(r.Tokens, 1), maxCost), decided: make(chan struct{})}
	if g.roomLocked() && len(c.queue) == 0 && c.room(w.limit) {
		g.admitOneLocked(w)
		return w, 0, nil
	}
	if g.waiting >= g.settings.QueueLimit && !g.pushOutLocked(c) {
		c.tokens.giveBack(r.Tokens)
		g.forgetLocked(c)
		return &waiter{}, 0, c.refusal(w.limit)
	}
	if len(c.queue) == 0 {
		c.deficit = 0
		g.ring = append(g.ring, c)
	}
	c.queue = append(c.queue, w)
	g.waiting++
	return w, g.settings.QueueTimeout, nil
}

// refusal names the bound that is in the way.
func (c *caller) refusal(limit int) *Refusal {
	if !c.room(limit) {
		return &Refusal{CallerInflight, retryAfter}
	}
	return &Refusal{QueueFull, retryAfter}
}

func (g *Gate) roomLocked() bool {
	return g.settings.MaxInflight <= 0 || g.inflight < g.settings.MaxInflight
}

// pushOutLocked makes room in the queue at the cost of the caller who has most
// requests there, if that is fairer than to refuse one of c.
func (g *Gate) pushOutLocked(c *caller) bool {
	most := c
	for _, other := range g.ring {
		if len(other.queue) > len(most.queue) {
			most = other
		}
	}
	if len(most.queue) <= len(c.queue)+1 {
		return false
	}
	last := most.queue[len(most.queue)-1]
	g.removeLocked(last)
	g.refuseLocked(last, most.refusal(last.limit))
	return true
}

// giveUp ends a wait, unless it is over already.
func (g *Gate) giveUp(w *waiter, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.over {
		return
	}
	if refusal, ok := err.(*Refusal); ok && !w.caller.room(w.limit) { //nolint:errorlint // made here
		refusal.Reason = CallerInflight
	}
	g.removeLocked(w)
	g.refuseLocked(w, err)
	// It may have stood in the way of others of its caller.
	g.admitLocked()
}

func (g *Gate) refuseLocked(w *waiter, err error) {
	w.caller.tokens.giveBack(w.tokens)
	w.err, w.over = err, true
	close(w.decided)
	g.forgetLocked(w.caller)
}

func (g *Gate) admitOneLocked(w *waiter) {
	g.inflight++
	w.caller.inflight++
	w.ticket, w.over = &Ticket{gate: g, caller: w.caller, tokens: w.tokens}, true
	close(w.decided)
}

// callerLocked returns the state of a caller.
func (g *Gate) callerLocked(name string) *caller {
	c := g.callers[name]
	if c == nil {
		g.sweepLocked()
		c = &caller{name: name}
		g.callers[name] = c
	}
	return c
}

// keptCallers is how many callers are remembered before those that could as
// well be new are looked for.
const keptCallers = 1024

func (g *Gate) sweepLocked() {
	if len(g.callers) < keptCallers {
		return
	}
	now := time.Now()
	for name, c := range g.callers {
		if c.idle() && c.tokens.full(now) {
			delete(g.callers, name)
		}
	}
}

// forgetLocked drops a caller without any state.
func (g *Gate) forgetLocked(c *caller) {
	if c.idle() && c.tokens.perMinute == 0 {
		delete(g.callers, c.name)
	}
}

// Ticket is a place among the requests under way. It is safe for concurrent
// use.
type Ticket struct {
	gate   *Gate
	caller *caller

	// Guarded by gate.mu.
	tokens int
	left   bool
}

// Settle corrects the length of the prompt. What was assumed too little is
// taken from the caller's tokens, even if it has none left.
func (t *Ticket) Settle(tokens int) {
	t.gate.mu.Lock()
	defer t.gate.mu.Unlock()
	t.caller.tokens.giveBack(t.tokens - tokens)
	t.tokens = tokens
}

// Leave gives the place back. Only the first call counts.
func (t *Ticket) Leave() {
	g := t.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.left {
		return
	}
	t.left = true
	g.inflight--
	t.caller.inflight--
	g.admitLocked()
	g.forgetLocked(t.caller)
}

// allowance is a bucket of tokens that fills at a rate per minute.
type allowance struct {
	perMinute int64
	level     float64
	at        time.Time
}

// take removes tokens, or returns how long to wait for them. More than a
// minute's worth counts as just that, or nobody could ever send it.
func (a *allowance) take(now time.Time, perMinute int64, tokens int) time.Duration {
	if perMinute != a.perMinute {
		if a.perMinute == 0 {
			a.level, a.at = float64(perMinute), now
		}
		a.perMinute = perMinute
	}
	if perMinute <= 0 {
		a.perMinute = 0
		return 0
	}
	a.fill(now)
	needed := min(float64(tokens), float64(perMinute))
	if a.level < needed || a.level <= 0 {
		seconds := (max(needed, 1) - a.level) / float64(perMinute) * 60
		return time.Duration(math.Ceil(seconds)) * time.Second
	}
	a.level -= float64(tokens)
	return 0
}

func (a *allowance) fill(now time.Time) {
	gained := now.Sub(a.at).Minutes() * float64(a.perMinute)
	a.level = min(a.level+gained, float64(a.perMinute))
	a.at = now
}

func (a *allowance) giveBack(tokens int) {
	if a.perMinute > 0 {
		a.level = min(a.level+float64(tokens), float64(a.perMinute))
	}
}

func (a *allowance) full(now time.Time) bool {
	if a.perMinute > 0 {
		a.fill(now)
	}
	return a.level >= float64(a.perMinute)
}
