// SPDX-License-Identifier: Apache-2.0

package index

import (
	"cmp"
	"math"
)

// simpleMembershipBytes is a rough account of one membership.
const simpleMembershipBytes = 256

// enforce applies the tenant's quota, then the global bounds.
func (x *Index) enforce(tenant string) {
	if r := x.rulesOf(tenant); r.Limited && tenant != x.cfg.ReservedTenant {
		for x.tenantKeys(tenant) > r.MaxKeys {
			x.dropOldestKey(tenant)
			x.quotaEvicted[tenant]++
		}
	}
	limit := int64(math.MaxInt64)
	if x.cfg.MaxMemberships > 0 {
		limit = x.cfg.MaxMemberships
	}
	if x.cfg.MaxMemoryBytes > 0 {
		limit = min(limit, x.cfg.MaxMemoryBytes/simpleMembershipBytes)
	}
	for n := x.memberships(); n > limit; n-- {
		x.dropFirstMembership()
	}
}

func (x *Index) tenantKeys(tenant string) (n int64) {
	for s, st := range x.scopes {
		if s.Tenant == tenant {
			n += st.keys()
		}
	}
	return n
}

func (st *scopeState) keys() (n int64) {
	for _, part := range st.parts {
		n += int64(len(part))
	}
	return n
}

func (st *scopeState) memberships() (n int64) {
	for _, part := range st.parts {
		for _, h := range part {
			n += int64(len(h))
		}
	}
	return n
}

// memberships counts the whole index without the reserved tenant.
func (x *Index) memberships() (n int64) {
	for s, st := range x.scopes {
		if s.Tenant != x.cfg.ReservedTenant {
			n += st.memberships()
		}
	}
	return n
}

// rank is the order in which bounds take their victims.
type rank struct {
	count, seen          int64
	scope                Scope
	adapter, key, holder string
}

func (a rank) compare(b rank) int {
	return cmp.Or(cmp.Compare(a.count, b.count), cmp.Compare(a.seen, b.seen),
		cmp.Compare(a.scope.Tenant, b.scope.Tenant), cmp.Compare(a.scope.Model, b.scope.Model),
		cmp.Compare(a.scope.Scheme, b.scope.Scheme), cmp.Compare(a.adapter, b.adapter),
		cmp.Compare(a.key, b.key), cmp.Compare(a.holder, b.holder))
}

// dropOldestKey drops the key of a tenant whose freshest time is oldest.
func (x *Index) dropOldestKey(tenant string) {
	var best *rank
	for s, st := range x.scopes {
		if s.Tenant != tenant {
			continue
		}
		for adapter, part := range st.parts {
			for key, h := range part {
				r := rank{seen: h.freshest(), scope: s, adapter: adapter, key: key}
				if best == nil || r.compare(*best) < 0 {
					best = &r
				}
			}
		}
	}
	st := x.scopes[best.scope]
	for replica := range st.parts[best.adapter][best.key] {
		st.remove(best.adapter, best.key, replica)
	}
}

func (h holders) freshest() int64 {
	newest := int64(math.MinInt64)
	for _, m := range h {
		newest = max(newest, m.seen)
	}
	return newest
}

// dropFirstMembership drops the first membership in the order of the cap.
func (x *Index) dropFirstMembership() {
	var best *rank
	for s, st := range x.scopes {
		if s.Tenant == x.cfg.ReservedTenant {
			continue
		}
		lfu := x.rulesOf(s.Tenant).LFU
		for adapter, part := range st.parts {
			for key, h := range part {
				for replica, m := range h {
					r := rank{seen: m.seen, scope: s, adapter: adapter, key: key, holder: replica}
					if lfu {
						r.count = m.count
					}
					if best == nil || r.compare(*best) < 0 {
						best = &r
					}
				}
			}
		}
	}
	if x.rulesOf(best.scope.Tenant).LFU {
		x.evictions.CapLFU++
	} else {
		x.evictions.CapLRU++
	}
	x.scopes[best.scope].remove(best.adapter, best.key, best.holder)
}

// Maintain does a bounded step of expiry and clean-up; more says that another
// step is due at once.
func (x *Index) Maintain(nowMillis int64) (more bool) {
	defer x.lock("expire")()
	for s, st := range x.scopes {
		for replica := range st.holding() {
			x.expire(s, st, replica, nowMillis)
		}
	}
	x.forget(nowMillis)
	return false
}

// holding returns the replicas with at least one key in the scope.
func (st *scopeState) holding() map[string]bool {
	out := map[string]bool{}
	for _, part := range st.parts {
		for _, h := range part {
			for replica := range h {
				out[replica] = true
			}
		}
	}
	return out
}

// expire removes a replica's expired memberships in one scope.
func (x *Index) expire(s Scope, st *scopeState, replica string, now int64) {
	rules := x.rulesOf(s.Tenant)
	for adapter, part := range st.parts {
		for key, h := range part {
			m, held := h[replica]
			if !held || !swept(st.effective(replica, m.seen), now, rules.TTLMillis) {
				continue
			}
			st.remove(adapter, key, replica)
			if rules.LFU {
				x.evictions.TTLLFU++
			} else {
				x.evictions.TTLLRU++
			}
		}
	}
}

// forget drops stats rows, sessions, replicas and scopes that are over.
func (x *Index) forget(now int64) {
	for s, st := range x.scopes {
		holding, ttl := st.holding(), x.rulesOf(s.Tenant).TTLMillis
		for replica, session := range st.sessions {
			if !session.up && !holding[replica] && now-session.beat >= ttl {
				delete(st.sessions, replica)
			}
		}
		if len(st.parts) == 0 && len(st.sessions) == 0 {
			delete(x.scopes, s)
		}
	}
	for id, p := range x.replicas {
		ttl := x.rulesOf(id.tenant).TTLMillis
		if p.stats != nil && now-p.stats.LivenessMillis >= ttl {
			p.stats = nil
		}
		if p.stats == nil && now-p.heard >= ttl && !x.known(id) {
			delete(x.replicas, id)
		}
	}
}

// known says whether a scope still holds something of the replica.
func (x *Index) known(id identity) bool {
	for s, st := range x.scopes {
		if s.Tenant == id.tenant && s.Model == id.model &&
			(st.sessions[id.replica] != nil || st.holding()[id.replica]) {
			return true
		}
	}
	return false
}

// ResyncDue returns, once, the live sessions that lost memberships to a bound,
// when the index is below 90 % of its bounds.
func (x *Index) ResyncDue() []SessionRef { return nil }
