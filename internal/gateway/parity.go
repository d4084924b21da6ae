// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/inferencecache/inference-cache/internal/defaults"
	"github.com/inferencecache/inference-cache/internal/finding"
)

// ParityOptions say how the gateway makes sure that its token ids are the
// engines'.
type ParityOptions struct {
	// Interval between canary prompts of a model that passes; default none is
	// ever sent.
	Interval time.Duration
	// Retry is the time after which a failed check is repeated; default 1m.
	Retry time.Duration
	// Appear is how soon the blocks of a canary must be in the index; default
	// 5s.
	Appear time.Duration
}

func (o *ParityOptions) setDefaults() {
	defaults.Positive(&o.Retry, time.Minute)
	defaults.Positive(&o.Appear, 5*time.Second)
}

// Parity checks, as metrics name them.
const (
	checkCount  = "count"
	checkCanary = "canary"
	checkCached = "cached"
)

// Results of a canary.
const (
	parityUnknown = "unknown"
	parityOK      = "ok"
	parityFailed  = "failed"
	paritySkipped = "skipped"
)

// ParityState is how the canary of a model stands.
type ParityState struct {
	Tenant  string `json:"tenant"`
	Model   string `json:"model"`
	Runtime string `json:"runtime"`
	// State is unknown before the first canary, then ok, failed (hints are
	// off) or skipped (it could not be carried out).
	State string `json:"state"`
	// Reason is empty for ok; Replica answered the canary last.
	Reason  string    `json:"reason"`
	Replica string    `json:"replica"`
	Checked time.Time `json:"checked"`
}

const (
	// countWindow answers are compared with each other; more than one in
	// countShare of them may not have another token count.
	countWindow = 200
	countShare  = 100
	// parityTick is how often due checks are looked for.
	parityTick = time.Second
	// soon is when a check that could not be carried out is tried again.
	soon = 10 * time.Second
)

// parity knows for which models our keys are those of the index. It is safe
// for concurrent use.
type parity struct {
	gateway *Gateway
	options ParityOptions

	mu sync.Mutex
	// pools are without block size. Guarded by mu.
	pools map[pool]*poolParity
	// revisions count changes of what serves a base model. Guarded by mu.
	revisions map[string]uint64
	// failing are the pools whose hints are off.
	failing atomic.Pointer[map[pool]bool]
}

// poolParity is what is known of one pool; guarded by parity.mu.
type poolParity struct {
	ParityState
	next    time.Time
	running bool
	// prefer is the replica that changed last.
	prefer string
	counts window
}

// window remembers whether the last answers agreed.
type window struct {
	differs          [countWindow]bool
	at, filled, many int
}

// add takes one answer and says whether too many differ, once it is full.
func (w *window) add(differs bool) (full, bad bool) {
	if w.filled == countWindow && w.differs[w.at] {
		w.many--
	}
	w.differs[w.at] = differs
	if differs {
		w.many++
	}
	w.at = (w.at + 1) % countWindow
	w.filled = min(w.filled+1, countWindow)
	return w.filled == countWindow, w.many*countShare > countWindow
}

func newParity(g *Gateway) *parity {
	p := &parity{
		gateway: g, options: g.options.Parity,
		pools: map[pool]*poolParity{}, revisions: map[string]uint64{},
	}
	p.options.setDefaults()
	p.failing.Store(&map[pool]bool{})
	return p
}

// trusted leaves out the pools whose hints are off.
func (p *parity) trusted(pools []pool) []pool {
	failing := *p.failing.Load()
	if len(failing) == 0 {
		return pools
	}
	kept := make([]pool, 0, len(pools))
	for _, candidate := range pools {
		if !failing[candidate.identity()] {
			kept = append(kept, candidate)
		}
	}
	return kept
}

// identity is the pool without what may change.
func (p pool) identity() pool {
	p.blockSize = 0
	return p
}

// name is how findings call a pool.
func (p pool) name() string { return fmt.Sprintf("model %s (%s, %s)", p.model, p.tenant, p.scheme) }

// revision changes whenever the tokenizer or the template of a model may have.
func (p *parity) revision(model string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strconv.FormatUint(p.revisions[model], 10)
}

// changed notes that a replica serves another model, or another image of it.
func (p *parity) changed(replica string) {
	of, known := p.gateway.pools.Load().byReplica[replica]
	if !known {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.revisions[of.model]++
	state := p.stateLocked(of)
	state.next, state.prefer = time.Time{}, replica
}

func (p *parity) stateLocked(of pool) *poolParity {
	of = of.identity()
	state := p.pools[of]
	if state == nil {
		state = &poolParity{ParityState: ParityState{
			Tenant: of.tenant, Model: of.model, Runtime: of.scheme, State: parityUnknown,
		}}
		p.pools[of] = state
	}
	return state
}

// noteCount takes the engine's count of a prompt's tokens beside ours.
func (p *parity) noteCount(of pool, differs bool) {
	p.mu.Lock()
	full, bad := p.stateLocked(of).counts.add(differs)
	p.mu.Unlock()
	switch list := &p.gateway.found; {
	case !full:
	case bad:
		list.Raise(finding.Finding{
			Code: finding.CountMismatch, Where: of.name(),
			What:   fmt.Sprintf("of the last %d prompts more than 1 in %d have another number of tokens at the engine", countWindow, countShare),
			Action: "compare the tokenizer and the chat template of gateway and engine; look at the canary's result in /debug/state",
		}, time.Now())
	default:
		list.Clear(finding.CountMismatch, of.name())
	}
}

// states reports on all pools.
func (p *parity) states() []ParityState {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]ParityState, 0, len(p.pools))
	for _, state := range p.pools {
		out = append(out, state.ParityState)
	}
	slices.SortFunc(out, func(a, b ParityState) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Runtime, b.Runtime))
	})
	return out
}

// run sends canaries until ctx ends.
func (p *parity) run(ctx context.Context) {
	if p.options.Interval <= 0 || p.gateway.index == nil || p.gateway.guardedTokenizer == nil {
		return
	}
	ticker := time.NewTicker(min(parityTick, p.options.Retry, p.options.Interval))
	defer ticker.Stop()
	var checks sync.WaitGroup
	defer checks.Wait()
	for {
		for _, due := range p.due(time.Now()) {
			checks.Go(func() { p.check(ctx, due) })
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// due marks the pools whose check is due as running and returns them.
func (p *parity) due(now time.Time) []pool {
	table := p.gateway.pools.Load()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgetLocked(table)
	var due []pool
	for of := range table.sizes {
		state := p.stateLocked(of)
		if state.running || now.Before(state.next) {
			continue
		}
		if of.blockSize = p.gateway.blockSize(table, of); of.blockSize > 0 {
			state.running, state.next = true, now.Add(p.options.Interval)
			due = append(due, of)
		}
	}
	return due
}

// forgetLocked drops pools that no replica serves any more.
func (p *parity) forgetLocked(table *poolTable) {
	for of, state := range p.pools {
		if _, served := table.sizes[of]; served || state.running {
			continue
		}
		delete(p.pools, of)
		for _, code := range []finding.Code{finding.ParityFailed, finding.CountMismatch, finding.EventsMissing} {
			p.gateway.found.Clear(code, of.name())
		}
		p.publishLocked()
	}
}

// check carries out one canary and draws the conclusions.
func (p *parity) check(ctx context.Context, of pool) {
	result := p.gateway.canary(ctx, of, p.preferred(of))
	if ctx.Err() != nil {
		return
	}
	label := map[string]string{parityOK: "ok", parityFailed: "mismatch", paritySkipped: "skipped"}[result.state]
	p.gateway.metrics.parity.WithLabelValues(checkCanary, label).Inc()
	now := time.Now()
	p.mu.Lock()
	state := p.stateLocked(of)
	before := state.State
	state.running = false
	state.Checked, state.Replica, state.Reason = now, result.replica, result.reason
	if result.state != paritySkipped || before != parityFailed {
		state.State = result.state // a failure stands until a check passes
	}
	after := state.State
	if !state.next.IsZero() { // nothing changed meanwhile
		switch result.state {
		case parityFailed:
			state.next = now.Add(p.options.Retry)
		case paritySkipped:
			state.next = now.Add(min(soon, p.options.Retry))
		}
	}
	p.publishLocked()
	p.mu.Unlock()
	p.report(of, before, after, &result)
}

func (p *parity) preferred(of pool) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	state := p.stateLocked(of)
	replica := state.prefer
	state.prefer = ""
	return replica
}

// publishLocked makes the pools with hints off known to requests.
func (p *parity) publishLocked() {
	failing := map[pool]bool{}
	for of, state := range p.pools {
		if state.State == parityFailed {
			failing[of] = true
		}
	}
	p.failing.Store(&failing)
}

// report opens and closes findings.
func (p *parity) report(of pool, before, after string, result *canaryResult) {
	list, logger, now := &p.gateway.found, p.gateway.logger, time.Now()
	switch {
	case after == parityFailed:
		list.Raise(finding.Finding{
			Code: finding.ParityFailed, Where: of.name(), What: result.reason,
			Action: "compare the tokenizer and the chat template of gateway (--tokenizer, --tokenizer-dir) and engine; " +
				"cache hints are off for the model until a check passes",
		}, now)
	case after == parityOK:
		list.Clear(finding.ParityFailed, of.name())
	}
	if result.unseen == "" && result.state == parityOK {
		list.Clear(finding.EventsMissing, of.name())
	} else if result.unseen != "" && list.Raise(finding.Finding{
		Code: finding.EventsMissing, Where: of.name(), What: result.unseen,
		Action: "look at the publisher of the replica: is it connected, and does the engine publish KV events?",
	}, now) {
		logger.Warn(result.unseen, "finding", finding.EventsMissing, "tenant", of.tenant, "model", of.model, "hash_scheme", of.scheme)
	}
	switch {
	case before == after:
	case after == parityFailed:
		logger.Warn("our token ids are not the engine's; cache hints are off for the model", "finding", finding.ParityFailed,
			"tenant", of.tenant, "model", of.model, "hash_scheme", of.scheme, "replica", result.replica, "reason", result.reason)
	case before == parityFailed:
		logger.Info("token ids agree with the engine again; cache hints are on", "tenant", of.tenant, "model", of.model)
	}
}
