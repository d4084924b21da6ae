// SPDX-License-Identifier: Apache-2.0

package index

import (
	"cmp"
	"slices"
)

// Counters returns the totals at a time.
func (x *Index) Counters(nowMillis int64) Counters {
	x.mu.RLock()
	defer x.mu.RUnlock()
	tenants, partitions := x.sizes()
	c := Counters{
		Memberships: x.memberships(), MaxMemberships: x.cfg.MaxMemberships,
		Tenants: int64(len(tenants)), Partitions: int64(partitions),
		MaxBytes: x.cfg.MaxMemoryBytes, Evictions: x.evictions,
	}
	c.Bytes.Table = c.Memberships * simpleMembershipBytes
	for s, st := range x.scopes {
		if s.Tenant != x.cfg.ReservedTenant {
			c.Keys += st.keys()
		}
	}
	for id, p := range x.replicas {
		if id.tenant == x.cfg.ReservedTenant {
			continue
		}
		holds := x.held(id) > 0
		switch {
		case !holds && p.stats == nil:
		case x.silent(id, nowMillis):
			c.Replicas.Silent++
		case !holds:
			c.Replicas.StatsOnly++
		case p.stats == nil:
			c.Replicas.EventsOnly++
		default:
			c.Replicas.Live++
		}
	}
	return c
}

// held counts the memberships of a replica over schemes and adapters.
func (x *Index) held(id identity) (n int64) {
	for s, st := range x.scopes {
		if s.Tenant != id.tenant || s.Model != id.model {
			continue
		}
		for _, part := range st.parts {
			for _, h := range part {
				if _, ok := h[id.replica]; ok {
					n++
				}
			}
		}
	}
	return n
}

// EachModel calls f with the distinct keys of each model that holds some.
func (x *Index) EachModel(f func(model string, keys int64)) {
	x.mu.RLock()
	keys := map[string]int64{}
	for s, st := range x.scopes {
		if s.Tenant != x.cfg.ReservedTenant && len(st.parts) > 0 {
			keys[s.Model] += st.keys()
		}
	}
	x.mu.RUnlock()
	for model, n := range keys {
		f(model, n)
	}
}

// EachTenant calls f with each tenant that has keys or stats, in order.
func (x *Index) EachTenant(f func(TenantRow)) {
	x.mu.RLock()
	tenants, _ := x.sizes()
	var rows []TenantRow
	for tenant := range tenants {
		row := TenantRow{Tenant: tenant, Keys: x.tenantKeys(tenant),
			QuotaEvicted: x.quotaEvicted[tenant], Rules: x.rulesOf(tenant)}
		for id, p := range x.replicas {
			row.HasStats = row.HasStats || id.tenant == tenant && p.stats != nil
		}
		rows = append(rows, row)
	}
	x.mu.RUnlock()
	slices.SortFunc(rows, func(a, b TenantRow) int { return cmp.Compare(a.Tenant, b.Tenant) })
	for _, row := range rows {
		f(row)
	}
}

// EachReplica calls f with each (tenant, replica) that has keys or stats, in
// order.
func (x *Index) EachReplica(f func(ReplicaRow)) {
	x.mu.RLock()
	type tenantReplica struct{ tenant, replica string }
	rows := map[tenantReplica]*ReplicaRow{}
	row := func(tenant, replica string) *ReplicaRow {
		at := tenantReplica{tenant, replica}
		if rows[at] == nil {
			rows[at] = &ReplicaRow{Tenant: tenant, Replica: replica}
		}
		return rows[at]
	}
	for s, st := range x.scopes {
		for _, part := range st.parts {
			for _, h := range part {
				for replica, m := range h {
					r := row(s.Tenant, replica)
					r.Memberships++
					r.LastSeenMillis = max(r.LastSeenMillis, m.seen)
				}
			}
		}
	}
	for id, p := range x.replicas {
		if p.stats == nil {
			continue
		}
		r := row(id.tenant, id.replica)
		if !r.HasStats || p.stats.LivenessMillis > r.Stats.LivenessMillis {
			r.HasStats, r.Stats = true, *p.stats
		}
	}
	x.mu.RUnlock()
	sorted := make([]*ReplicaRow, 0, len(rows))
	for at, r := range rows {
		if at.tenant != x.cfg.ReservedTenant {
			sorted = append(sorted, r)
		}
	}
	slices.SortFunc(sorted, func(a, b *ReplicaRow) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Replica, b.Replica))
	})
	for _, r := range sorted {
		f(*r)
	}
}

// CacheState returns the stats rows of a tenant and model, sorted by replica,
// and its distinct keys. The reserved tenant has neither.
func (x *Index) CacheState(tenant, model string) (rows []ReplicaStatsRow, distinctKeys int64) {
	if tenant == x.cfg.ReservedTenant {
		return nil, 0
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	for id, p := range x.replicas {
		if id.tenant == tenant && id.model == model && p.stats != nil {
			rows = append(rows, ReplicaStatsRow{Replica: id.replica, Stats: *p.stats})
		}
	}
	for s, st := range x.scopes {
		if s.Tenant == tenant && s.Model == model {
			distinctKeys += st.keys()
		}
	}
	return sortedRows(rows), distinctKeys
}

// SchemesWithKeys returns the hash schemes under which a tenant and model hold
// keys, sorted.
func (x *Index) SchemesWithKeys(tenant, model string) (schemes []string) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for s, st := range x.scopes {
		if s.Tenant == tenant && s.Model == model && len(st.parts) > 0 {
			schemes = append(schemes, s.Scheme)
		}
	}
	slices.Sort(schemes)
	return schemes
}
