// SPDX-License-Identifier: Apache-2.0

package index

import (
	"cmp"
	"slices"
)

// Counters returns the totals at a time. It takes no lock of a scope.
func (x *Index) Counters(nowMillis int64) Counters {
	x.limits.mu.Lock()
	tenants, partitions := x.limits.tenants, x.limits.partitions
	x.limits.mu.Unlock()
	c := Counters{
		Memberships: x.memberships.Load(), MaxMemberships: x.cfg.MaxMemberships,
		Keys: x.keys.Load(), Tenants: int64(tenants), Partitions: int64(partitions),
		Bytes: x.bytes.load(), MaxBytes: x.cfg.MaxMemoryBytes, Evictions: x.evictions.load(),
	}
	c.Bytes.Table += x.slabs.spareBytes()
	for _, h := range x.allHomes() {
		if h.tenant.reserved {
			continue
		}
		for _, r := range h.allReplicas() {
			r.tally(&c.Replicas, nowMillis)
		}
	}
	for _, s := range x.allScopes() {
		if due := s.expiryDue.Load(); due > 0 {
			c.OldestExpiredMillis = max(c.OldestExpiredMillis, nowMillis-due)
		}
	}
	return c
}

// tally counts a replica under its state.
func (r *replica) tally(states *ReplicaStates, now int64) {
	holds, reports := r.held.Load() > 0, r.stats.Load() != nil
	switch {
	case !holds && !reports:
	case r.isSilent(now):
		states.Silent++
	case !holds:
		states.StatsOnly++
	case !reports:
		states.EventsOnly++
	default:
		states.Live++
	}
}

// EachModel calls f with the distinct keys of each model that holds some.
func (x *Index) EachModel(f func(model string, keys int64)) {
	counts := map[string]int64{}
	x.mu.RLock()
	for name, m := range x.models {
		if n := m.keys.Load(); n > 0 {
			counts[name] = n
		}
	}
	x.mu.RUnlock()
	for name, n := range counts {
		f(name, n)
	}
}

// EachTenant calls f with each tenant that has keys or stats, in order.
func (x *Index) EachTenant(f func(TenantRow)) {
	var rows []TenantRow
	for _, t := range x.allTenants() {
		row := TenantRow{
			Tenant: t.name, Keys: t.heldKeys(), HasStats: x.limits.rowsOf(t) > 0,
			QuotaEvicted: t.quotaEvicted.Load(), Rules: x.rulesOf(t.name),
		}
		if !t.reserved && (row.Keys > 0 || row.HasStats) {
			rows = append(rows, row)
		}
	}
	slices.SortFunc(rows, func(a, b TenantRow) int { return cmp.Compare(a.Tenant, b.Tenant) })
	for _, row := range rows {
		f(row)
	}
}

// EachQuota calls f with each tenant that has a quota or lost keys to one.
func (x *Index) EachQuota(f func(TenantRow)) {
	for _, t := range x.allTenants() {
		row := TenantRow{
			Tenant: t.name, Keys: t.heldKeys(), HasStats: x.limits.rowsOf(t) > 0,
			QuotaEvicted: t.quotaEvicted.Load(), Rules: x.rulesOf(t.name),
		}
		if !t.reserved && (row.Rules.Limited || row.QuotaEvicted > 0) {
			f(row)
		}
	}
}

func (x *Index) allTenants() []*tenant {
	x.mu.RLock()
	defer x.mu.RUnlock()
	out := make([]*tenant, 0, len(x.tenants))
	for _, t := range x.tenants {
		out = append(out, t)
	}
	return out
}

func (l *limits) rowsOf(t *tenant) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return t.rows
}

// EachReplica calls f with each (tenant, replica) that has keys or stats, in
// order.
func (x *Index) EachReplica(f func(ReplicaRow)) {
	rows := map[ReplicaRow]*ReplicaRow{} // by tenant and replica alone
	homes := x.allHomes()
	slices.SortFunc(homes, func(a, b *home) int { return cmp.Compare(a.name, b.name) })
	for _, h := range homes {
		if h.tenant.reserved {
			continue
		}
		for _, r := range h.allReplicas() {
			held, stats := r.held.Load(), r.stats.Load()
			if held == 0 && stats == nil {
				continue
			}
			key := ReplicaRow{Tenant: h.tenant.name, Replica: r.name}
			if rows[key] == nil {
				rows[key] = &ReplicaRow{Tenant: key.Tenant, Replica: key.Replica}
			}
			rows[key].add(held, r, stats)
		}
	}
	sorted := make([]*ReplicaRow, 0, len(rows))
	for _, row := range rows {
		sorted = append(sorted, row)
	}
	slices.SortFunc(sorted, func(a, b *ReplicaRow) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Replica, b.Replica))
	})
	for _, row := range sorted {
		f(*row)
	}
}

// EachServing calls f with each (tenant, model, replica) that has keys or
// stats, in no order. It takes no lock of a scope.
func (x *Index) EachServing(f func(ServingRow)) {
	for _, h := range x.allHomes() {
		if h.tenant.reserved {
			continue
		}
		for _, r := range h.allReplicas() {
			row := ServingRow{
				Tenant: h.tenant.name, Model: h.name, Replica: r.name,
				Memberships: r.held.Load(), LastEventMillis: r.event.Load(),
			}
			if row.Memberships > 0 || r.stats.Load() != nil {
				f(row)
			}
		}
	}
}

// Replica returns what is known of a replica; zero for an unknown one.
func (x *Index) Replica(tenant, model, replica string, nowMillis int64) (state ReplicaState) {
	h := x.home(tenant, model)
	if h == nil {
		return state
	}
	r := h.known(replica)
	if r == nil {
		return state
	}
	state.Memberships, state.Silent = r.held.Load(), r.isSilent(nowMillis)
	if s := r.stats.Load(); s != nil {
		state.Stats, state.HasStats = *s, true
	}
	return state
}

// add merges what one model knows of a replica.
func (row *ReplicaRow) add(held int64, r *replica, stats *Stats) {
	row.Memberships += held
	if held > 0 {
		row.LastSeenMillis = max(row.LastSeenMillis, r.newest())
	}
	if stats != nil && (!row.HasStats || stats.LivenessMillis > row.Stats.LivenessMillis) {
		row.HasStats, row.Stats = true, *stats
	}
}

// newest returns the newest stored time of a replica's memberships.
func (r *replica) newest() (millis int64) {
	r.mu.Lock()
	scopes := slices.Clone(r.scopes)
	r.mu.Unlock()
	for _, s := range scopes {
		s.write.Lock()
		if m := s.members[r.name]; m != nil {
			for _, p := range s.parts {
				millis = max(millis, p.newestOf(m.slot))
			}
		}
		s.write.Unlock()
	}
	return millis
}

// newestOf returns the newest stored time of a slot.
func (p *partition) newestOf(slot uint16) (millis int64) {
	if int(slot) >= len(p.owners) {
		return 0
	}
	for _, id := range p.owners[slot].sets {
		r := p.record(id)
		if i := r.find(slot); i >= 0 {
			millis = max(millis, r.holder(i).seen())
		}
	}
	return millis
}

// CacheState returns the stats rows of a tenant and model, sorted by replica,
// and its distinct keys. The reserved tenant has neither.
func (x *Index) CacheState(tenant, model string) (rows []ReplicaStatsRow, distinctKeys int64) {
	h := x.home(tenant, model)
	if h == nil || h.tenant.reserved {
		return nil, 0
	}
	for _, r := range h.allReplicas() {
		if s := r.stats.Load(); s != nil {
			rows = append(rows, ReplicaStatsRow{Replica: r.name, Stats: *s})
		}
	}
	slices.SortFunc(rows, func(a, b ReplicaStatsRow) int { return cmp.Compare(a.Replica, b.Replica) })
	return rows, h.heldKeys()
}

// SchemesWithKeys returns the hash schemes under which a tenant and model hold
// keys, sorted.
func (x *Index) SchemesWithKeys(tenant, model string) (schemes []string) {
	h := x.home(tenant, model)
	if h == nil {
		return nil
	}
	for _, s := range h.eachScope() {
		s.gate.RLock()
		if s.memberships > 0 {
			schemes = append(schemes, s.id.Scheme)
		}
		s.gate.RUnlock()
	}
	slices.Sort(schemes)
	return schemes
}
