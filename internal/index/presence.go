// SPDX-License-Identifier: Apache-2.0

package index

import (
	"sync"
	"sync/atomic"
)

// replica is what is known about a (tenant, model, replica) apart from its
// keys.
type replica struct {
	home  *home
	name  string
	stats atomic.Pointer[Stats]
	heard atomic.Int64 // newest sign of life
	event atomic.Int64 // newest batch or snapshot
	held  atomic.Int64 // memberships over all scopes
	// quiet is set when a scope counts the replica as silent.
	quiet atomic.Bool

	mu          sync.Mutex
	payloads    int // in a row, at regular gaps
	lastPayload int64
	regular     atomic.Bool // changes under mu
	scopes      []*scope    // it is a member of
}

// hear notes a sign of life. Scopes that count the replica as silent find out
// at their next use.
func (r *replica) hear(now int64) {
	raise(&r.heard, now)
	if r.quiet.Swap(false) {
		r.mu.Lock()
		scopes := append([]*scope(nil), r.scopes...)
		r.mu.Unlock()
		for _, s := range scopes {
			s.recheckBy(0)
		}
	}
}

// hearEvent notes a batch or a snapshot.
func (r *replica) hearEvent(now int64) {
	raise(&r.event, now)
	r.hear(now)
}

// raise stores a time unless a newer one is there.
func raise(at *atomic.Int64, millis int64) {
	for {
		old := at.Load()
		if old >= millis || at.CompareAndSwap(old, millis) {
			return
		}
	}
}

// silent says whether nothing came for a while from a replica that used to
// talk, and when it was heard last.
func (r *replica) silent(now int64) (silent bool, heard int64) {
	silent = r.isSilent(now)
	if silent {
		r.quiet.Store(true)
	}
	return silent, r.heard.Load()
}

func (r *replica) isSilent(now int64) bool {
	timeout := r.home.x.cfg.SilenceTimeoutMillis
	return timeout > 0 && r.regular.Load() && now-r.heard.Load() >= timeout
}

// part notes that the replica is no member of a scope any more.
func (r *replica) part(s *scope) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, o := range r.scopes {
		if o == s {
			r.scopes = append(r.scopes[:i], r.scopes[i+1:]...)
			return
		}
	}
}

// SetStats replaces the stats row of a replica. It returns false when the row
// is newer, or when it would be one tenant too many.
func (x *Index) SetStats(tenant, model, replicaName string, s Stats) bool {
	x.mu.Lock()
	h := x.homes[homeKey{tenant, model}]
	if h == nil {
		if !x.limits.admitsRow(x.tenants[tenant], tenant == x.cfg.ReservedTenant) {
			x.mu.Unlock()
			return false
		}
		h = x.homeLocked(tenant, model)
	}
	// The record is locked before the directory is let go: nobody forgets it
	// in between.
	r := h.replica(replicaName)
	r.mu.Lock()
	x.mu.Unlock()
	ok := r.setStats(&s)
	r.mu.Unlock()
	if ok {
		r.hear(s.ReportedMillis)
		r.tell(ChangeReported)
	}
	return ok
}

func (r *replica) setStats(s *Stats) bool {
	old := r.stats.Load()
	if old != nil {
		if s.ReportedMillis < old.ReportedMillis {
			return false
		}
		s.LivenessMillis = max(s.LivenessMillis, old.LivenessMillis)
	} else if !r.home.x.limits.admitRow(r.home.tenant) {
		return false
	}
	if r.payloads > 0 && s.ReportedMillis-r.lastPayload > regularGapMillis {
		r.payloads = 0
	}
	r.payloads++
	r.lastPayload = s.ReportedMillis
	if r.payloads >= regularPayloads && !r.regular.Swap(true) {
		r.quiet.Store(true) // scopes have not looked yet
	}
	if old == nil {
		r.home.x.bytes.add(Bytes{Stats: statsBytes})
	}
	r.stats.Store(s)
	return true
}

// statsBytes is the account of one stats row.
const statsBytes = 160

// dropStats removes the stats row and reports whether there was one.
func (r *replica) dropStats() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stats.Swap(nil) == nil {
		return false
	}
	r.home.x.limits.retireRow(r.home.tenant)
	r.home.x.bytes.add(Bytes{Stats: -statsBytes})
	return true
}

// Touch refreshes the liveness of an existing stats row.
func (x *Index) Touch(tenant, model, replica string, atMillis int64) {
	h := x.home(tenant, model)
	if h == nil {
		return
	}
	r := h.known(replica)
	if r == nil {
		return
	}
	r.mu.Lock()
	old := r.stats.Load()
	if old != nil {
		touched := *old
		touched.LivenessMillis = max(touched.LivenessMillis, atMillis)
		r.stats.Store(&touched)
	}
	r.mu.Unlock()
	if old != nil {
		r.hear(atMillis)
		r.tell(ChangeReported)
	}
}

// Heard notes that any message came from a known replica.
func (x *Index) Heard(tenant, model, replica string, nowMillis int64) {
	if h := x.home(tenant, model); h != nil {
		if r := h.known(replica); r != nil {
			r.hear(nowMillis)
		}
	}
}

// SessionUp says that a session of the replica runs in the scope.
func (x *Index) SessionUp(scope Scope, replica string, nowMillis int64) {
	s := x.lockScope(scope, true)
	defer s.write.Unlock()
	m := s.member(replica)
	if m == nil {
		return
	}
	s.exclusive("apply", func() { m.session, m.up = true, true })
	m.replica.regular.Store(true)
	m.replica.hear(nowMillis)
	s.recheckBy(0)
}

// Heartbeat says that the replica still holds all that it reported. What had
// expired before stays expired.
func (x *Index) Heartbeat(scope Scope, replica string, nowMillis int64) {
	s := x.lockScope(scope, false)
	if s == nil {
		return
	}
	defer s.write.Unlock()
	m := s.members[replica]
	if m == nil || !m.session {
		return
	}
	if s.firstExpiry() <= nowMillis {
		w := x.begin(s)
		for w.expire(nowMillis, maintainMoves) >= maintainMoves {
			w.yield()
		}
		x.end(w)
	}
	raise(&m.beat, nowMillis)
	m.replica.hear(nowMillis)
}

// SessionDown says that the session ended: what it reported ages from its last
// heartbeat on.
func (x *Index) SessionDown(scope Scope, replica string, nowMillis int64) {
	s := x.lockScope(scope, false)
	if s == nil {
		return
	}
	defer s.write.Unlock()
	if m := s.members[replica]; m != nil && m.session {
		s.exclusive("apply", func() { m.up = false })
		s.idle.Store(true)
		m.replica.hear(nowMillis)
	}
}

// affine says whether a member may be an affinity candidate.
func (m *member) affine(now, timeout int64) bool {
	if !m.session {
		return true
	}
	return m.up && (timeout <= 0 || now-m.replica.heard.Load() < timeout)
}
