// SPDX-License-Identifier: Apache-2.0

package index

import (
	"sync"
	"sync/atomic"
)

// tenant, model and home count what their name holds. Counters are atomic, so
// that gauges and the miss classifier read them without a lock; a count of
// keys may lag behind memberships while a cleared slot is being swept.
type tenant struct {
	name              string
	reserved          bool
	keys, memberships atomic.Int64
	quotaEvicted      atomic.Int64
	quota             sync.Mutex       // one goroutine enforces the quota at a time
	homes             map[string]*home // by model; guarded by Index.mu

	// Guarded by Index.limits.
	partitions, rows int
}

type model struct {
	keys  atomic.Int64
	homes int // guarded by Index.mu
}

// home is a (tenant, model).
type home struct {
	x                 *Index
	tenant            *tenant
	model             *model
	name              string // of the model
	keys, memberships atomic.Int64

	mu       sync.Mutex
	scopes   map[string]*scope // by scheme
	replicas map[string]*replica
}

// add counts memberships and keys.
func (h *home) add(memberships, keys int64) {
	if memberships != 0 {
		h.memberships.Add(memberships)
		h.tenant.memberships.Add(memberships)
		if !h.tenant.reserved {
			h.x.memberships.Add(memberships)
		}
	}
	if keys != 0 {
		h.keys.Add(keys)
		h.tenant.keys.Add(keys)
		if !h.tenant.reserved {
			h.model.keys.Add(keys)
			h.x.keys.Add(keys)
		}
	}
}

// eachScope returns the scopes of the home.
func (h *home) eachScope() []*scope {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]*scope, 0, len(h.scopes))
	for _, s := range h.scopes {
		out = append(out, s)
	}
	return out
}

// replica returns the record of a replica, made on demand.
func (h *home) replica(name string) *replica {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.replicaLocked(name)
}

func (h *home) replicaLocked(name string) *replica {
	r := h.replicas[name]
	if r == nil {
		r = &replica{home: h, name: name}
		h.replicas[name] = r
	}
	return r
}

// enlist is replica for a scope that it becomes a member of.
func (h *home) enlist(name string, s *scope) *replica {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.replicaLocked(name)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.scopes = append(r.scopes, s)
	return r
}

// known returns the record of a replica or nil.
func (h *home) known(name string) *replica {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.replicas[name]
}

// limits bounds tenants and partitions in use, reserved tenant left out.
type limits struct {
	mu                  sync.Mutex
	tenants, partitions int
	maxTenants          int
	maxPartitions       int
}

// admitScope says whether a scope that does not exist could take a key.
func (l *limits) admitScope(t *tenant) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.roomLocked(t)
}

func (l *limits) roomLocked(t *tenant) bool {
	if t != nil && t.reserved {
		return true
	}
	used := t != nil && (t.partitions > 0 || t.rows > 0)
	return l.partitions < l.maxPartitions && (used || l.tenants < l.maxTenants)
}

// admit counts a partition that is about to get its first membership; false
// when it would be one too many.
func (l *limits) admit(p *partition) bool {
	if p.counted {
		return true
	}
	t := p.scope.home.tenant
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.roomLocked(t) {
		return false
	}
	p.counted = true
	l.countLocked(t, 1, 0)
	return true
}

// room says whether a partition more could be admitted.
func (l *limits) room(t *tenant) bool { return l.admitScope(t) }

// retireEmpty uncounts a partition if nothing is planned to be held in it.
func (l *limits) retireEmpty(p *partition) {
	if p.planned.memberships == 0 && p.planned.hidden == 0 {
		l.retire(p)
	}
}

// retire uncounts a partition without memberships.
func (l *limits) retire(p *partition) {
	if !p.counted {
		return
	}
	p.counted = false
	l.mu.Lock()
	defer l.mu.Unlock()
	l.countLocked(p.scope.home.tenant, -1, 0)
}

// admitsRow says whether a tenant, nil when unknown, could have a stats row.
func (l *limits) admitsRow(t *tenant, reserved bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return reserved || t != nil && (t.partitions > 0 || t.rows > 0) || l.tenants < l.maxTenants
}

// admitRow counts a stats row; false when its tenant would be one too many.
func (l *limits) admitRow(t *tenant) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !t.reserved && t.partitions == 0 && t.rows == 0 && l.tenants >= l.maxTenants {
		return false
	}
	l.countLocked(t, 0, 1)
	return true
}

func (l *limits) retireRow(t *tenant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.countLocked(t, 0, -1)
}

func (l *limits) countLocked(t *tenant, partitions, rows int) {
	used := t.partitions > 0 || t.rows > 0
	t.partitions += partitions
	t.rows += rows
	if t.reserved {
		return
	}
	l.partitions += partitions
	if now := t.partitions > 0 || t.rows > 0; now != used {
		if now {
			l.tenants++
		} else {
			l.tenants--
		}
	}
}
