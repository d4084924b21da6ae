// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/inferencecache/inference-cache/internal/engines"
	"github.com/inferencecache/inference-cache/internal/routing"
)

// errDrained ends the requests of a replica that left and was waited for long
// enough.
var errDrained = errors.New("replica was removed")

// roster holds the replicas by id. Reading it takes no lock.
type roster struct {
	// changing serialises SetReplicas and the end of a replica.
	changing sync.Mutex
	current  atomic.Pointer[map[string]*upstream]
	// made numbers the upstreams; guarded by changing.
	made uint64
}

func (r *roster) all() map[string]*upstream {
	if current := r.current.Load(); current != nil {
		return *current
	}
	return nil
}

func (r *roster) get(id string) *upstream { return r.all()[id] }

// changeLocked replaces the map by a changed copy.
func (r *roster) changeLocked(change func(map[string]*upstream)) {
	next := maps.Clone(r.all())
	if next == nil {
		next = map[string]*upstream{}
	}
	change(next)
	r.current.Store(&next)
}

// RoundTrip implements http.RoundTripper on the connections of the replica at
// the request's address.
func (r *roster) RoundTrip(request *http.Request) (*http.Response, error) {
	for _, u := range r.all() {
		if u.base.Host == request.URL.Host {
			return u.transport.RoundTrip(request)
		}
	}
	return nil, errForbiddenAddress
}

// tenure is the time in which a replica may be sent requests.
type tenure struct {
	mu     sync.Mutex
	active int
	over   bool
	// waiters are closed when nothing is active.
	waiters []chan struct{}
}

// begin notes a request, unless the time is over.
func (t *tenure) begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return false
	}
	t.active++
	return true
}

// end must follow each begin that was true.
func (t *tenure) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.active--
	t.wakeLocked()
}

func (t *tenure) wakeLocked() {
	if t.active > 0 {
		return
	}
	for _, waiter := range t.waiters {
		close(waiter)
	}
	t.waiters = nil
}

// idle returns a channel that is closed once nothing is active.
func (t *tenure) idle() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	waiter := make(chan struct{})
	t.waiters = append(t.waiters, waiter)
	t.wakeLocked()
	return waiter
}

// close ends the time if nothing is active, and says whether it did.
func (t *tenure) close() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = t.active == 0
	return t.over
}

// whileListed does something for a replica, unless another one has its id by
// now.
func (g *Gateway) whileListed(u *upstream, do func()) {
	g.roster.changing.Lock()
	defer g.roster.changing.Unlock()
	if g.roster.get(u.ID) == u {
		do()
	}
}

// SetReplicas makes these the only candidates. A replica that is new, or has
// another identity than the one with its ID before, starts without any state
// and gets requests once it is ready. One that is missing gets no new requests;
// what runs there may go on for the drain timeout. On an error, which is an
// ErrOptions, nothing changes.
func (g *Gateway) SetReplicas(replicas []Replica) error {
	options := g.options
	options.Replicas = replicas
	options = options.withDefaults()
	if err := validateReplicas(options.Replicas); err != nil {
		return fmt.Errorf("%w: %w", ErrOptions, err)
	}
	g.roster.changing.Lock()
	defer g.roster.changing.Unlock()
	before := g.roster.all()
	var added, kept []*upstream
	for _, replica := range options.Replicas {
		u := before[replica.ID]
		if u != nil && u.sameIdentity(&replica) {
			kept = append(kept, u)
		} else if u, err := newUpstream(replica, g.options.Resolver); err == nil {
			added = append(added, u)
		} else {
			return fmt.Errorf("%w: %w", ErrOptions, err)
		}
	}
	for _, u := range kept {
		g.keepLocked(u)
	}
	staying := slices.Concat(kept, added)
	for id, u := range before {
		if !slices.Contains(staying, u) {
			g.retireLocked(u, slices.ContainsFunc(added, func(next *upstream) bool { return next.ID == id }))
		}
	}
	for _, u := range added {
		g.addLocked(u)
	}
	for _, replica := range options.Replicas {
		g.fleet.Put(g.roster.get(replica.ID).describe(&replica))
	}
	g.rebuildPools()
	g.readyChanged.Broadcast()
	return nil
}

// sameIdentity says whether a description is that of this replica, whatever
// its bounds are.
func (u *upstream) sameIdentity(r *Replica) bool {
	sameRank := u.Rank == nil && r.Rank == nil || u.Rank != nil && r.Rank != nil && *u.Rank == *r.Rank
	return sameRank && u.ID == r.ID && u.UID == r.UID && u.URL == r.URL && u.Runtime == r.Runtime &&
		u.Protocol == r.Protocol && u.role() == r.role() && u.BootstrapPort == r.BootstrapPort && u.Tenant == r.Tenant && slices.Equal(u.Models, r.Models)
}

// describe tells the fleet about a replica.
func (u *upstream) describe(r *Replica) routing.Replica {
	return routing.Replica{
		ID: r.ID, UID: u.uid, Role: r.role(), Transport: r.transport(), NeedsPrefill: r.Runtime == engines.SGLang, MaxInflight: r.MaxInflight, Cordoned: r.Cordoned, Tenants: r.CallerTenants,
	}
}

func (g *Gateway) addLocked(u *upstream) {
	g.roster.made++
	u.uid = strconv.FormatUint(g.roster.made, 10)
	g.catalog.Remove(u.ID)
	g.roster.changeLocked(func(next map[string]*upstream) { next[u.ID] = u })
	g.watchLocked(u)
}

// watchLocked begins the health checks, if the gateway has started.
func (g *Gateway) watchLocked(u *upstream) {
	if g.watching == nil {
		return
	}
	ctx, stop := context.WithCancel(g.watching)
	u.unwatch = stop
	g.tasks.Go(func() { g.watch(ctx, u, func() {}) })
}

// keepLocked takes a replica back that was leaving.
func (g *Gateway) keepLocked(u *upstream) {
	if u.leaving == nil {
		return
	}
	u.leaving()
	u.leaving = nil
	g.fleet.SetDraining(u.ID, false)
	g.watchLocked(u)
	g.logger.Info("replica stays after all", "replica", u.ID)
}

// retireLocked lets a replica finish what it has. One that is replaced under
// its id leaves the roster at once.
func (g *Gateway) retireLocked(u *upstream, replaced bool) {
	if u.leaving != nil && !replaced {
		return
	}
	if u.leaving != nil {
		u.leaving()
	}
	ctx, cancel := context.WithCancel(g.stopping)
	u.leaving = cancel
	if u.unwatch != nil {
		u.unwatch()
	}
	if !replaced {
		g.fleet.SetDraining(u.ID, true)
	}
	g.logger.Info("replica is leaving", "replica", u.ID, "replaced", replaced)
	g.tasks.Go(func() { g.drain(ctx, u) })
}

// drain waits until a replica has no requests, cuts those that take too long,
// and forgets it. It ends early when ctx does.
func (g *Gateway) drain(ctx context.Context, u *upstream) {
	timer := time.NewTimer(g.options.Timeouts.Drain)
	defer timer.Stop()
	for {
		select {
		case <-u.tenure.idle():
		case <-timer.C:
			g.logger.Warn("replica did not finish in time; its requests are cut", "replica", u.ID)
			u.cut()
			continue
		case <-ctx.Done():
			return
		}
		if g.forget(ctx, u) {
			return
		}
	}
}

// forget drops an idle replica that is leaving. False means that a request
// came in between.
func (g *Gateway) forget(ctx context.Context, u *upstream) bool {
	g.roster.changing.Lock()
	defer g.roster.changing.Unlock()
	if ctx.Err() != nil {
		return true
	}
	if !u.tenure.close() {
		return false
	}
	u.cut()
	if g.roster.get(u.ID) == u {
		g.roster.changeLocked(func(next map[string]*upstream) { delete(next, u.ID) })
		g.fleet.Remove(u.ID)
		g.catalog.Remove(u.ID)
		g.rebuildPools()
		g.readyChanged.Broadcast()
	}
	u.transport.CloseIdleConnections()
	g.logger.Info("replica has left", "replica", u.ID)
	return true
}

func (g *Gateway) closeIdle() {
	for _, u := range g.roster.all() {
		u.transport.CloseIdleConnections()
	}
	if g.renderTransport != nil {
		g.renderTransport.CloseIdleConnections()
	}
}
