// SPDX-License-Identifier: Apache-2.0

package index_test

import (
	"cmp"
	"maps"
	"slices"

	"github.com/inferencecache/inference-cache/internal/index"
)

func (m *model) hear(id identity, now int64) {
	if p := m.replicas[id]; p != nil {
		p.heard = max(p.heard, now)
	}
}

func (m *model) setStats(id identity, s index.Stats) bool {
	p := m.replicas[id]
	if p == nil || p.stats == nil {
		tenants, _ := m.sizes()
		if id.tenant != m.cfg.ReservedTenant && !tenants[id.tenant] && len(tenants) >= m.cfg.MaxTenants {
			return false
		}
		p = m.presence(id)
	}
	if p.stats != nil {
		if s.ReportedMillis < p.stats.ReportedMillis {
			return false
		}
		s.LivenessMillis = max(s.LivenessMillis, p.stats.LivenessMillis)
	}
	if p.payloads > 0 && s.ReportedMillis-p.lastPayload > 60_000 {
		p.payloads = 0
	}
	p.payloads++
	p.regular = p.regular || p.payloads >= 3
	p.lastPayload = s.ReportedMillis
	p.stats = &s
	p.heard = max(p.heard, s.ReportedMillis)
	return true
}

func (m *model) touch(id identity, at int64) {
	if p := m.replicas[id]; p != nil && p.stats != nil {
		p.stats.LivenessMillis = max(p.stats.LivenessMillis, at)
		p.heard = max(p.heard, at)
	}
}

func (m *model) sessionUp(s index.Scope, replica string, now int64) {
	st := m.scope(s)
	if st.sessions[replica] == nil {
		st.sessions[replica] = &session{}
	}
	st.sessions[replica].up = true
	p := m.presence(identity{s.Tenant, s.Model, replica})
	p.regular = true
	p.heard = max(p.heard, now)
}

func (m *model) heartbeat(s index.Scope, replica string, now int64) {
	st := m.scopes[s]
	if st == nil || st.sessions[replica] == nil {
		return
	}
	m.expire(s, st, now)
	st.sessions[replica].beat = max(st.sessions[replica].beat, now)
	m.hear(identity{s.Tenant, s.Model, replica}, now)
}

func (m *model) sessionDown(s index.Scope, replica string, now int64) {
	if st := m.scopes[s]; st != nil && st.sessions[replica] != nil {
		st.sessions[replica].up = false
		m.hear(identity{s.Tenant, s.Model, replica}, now)
	}
}

func (m *model) silent(id identity, now int64) bool {
	p, timeout := m.replicas[id], m.cfg.SilenceTimeoutMillis
	return p != nil && p.regular && timeout > 0 && now-p.heard >= timeout
}

func (m *model) affine(st *modelScope, id identity, now int64) bool {
	s, timeout := st.sessions[id.replica], m.cfg.AffinitySilenceTimeoutMillis
	if s == nil {
		return true
	}
	return s.up && (timeout <= 0 || now-m.replicas[id].heard < timeout)
}

// at is a place and time to look from.
type at struct {
	scope   index.Scope
	adapter string
	now     int64
	ttl     int64
}

// fresh returns a membership, its effective time and whether it counts.
func (m *model) fresh(v at, key, replica string) (held membership, seen int64, ok bool) {
	st := m.scopes[v.scope]
	if st == nil {
		return held, 0, false
	}
	held, ok = st.parts[v.adapter][key][replica]
	seen = st.effective(replica, held.seen)
	return held, seen, ok && v.now-seen < v.ttl &&
		!m.silent(identity{v.scope.Tenant, v.scope.Model, replica}, v.now)
}

func (m *model) holdersOf(s index.Scope) []string {
	if st := m.scopes[s]; st != nil {
		return slices.Sorted(maps.Keys(st.holding()))
	}
	return nil
}

// chain returns the runs of a chain, by replica and without slots.
func (m *model) chain(v at, keys index.Keys, counts index.Tokens) (out []index.Match) {
	for _, replica := range m.holdersOf(v.scope) {
		run := index.Match{Replica: replica}
		for i := range keys.Len() {
			if i > 0 && keyAt(keys, i) == keyAt(keys, i-1) {
				break
			}
			held, seen, ok := m.fresh(v, keyAt(keys, i), replica)
			if !ok {
				break
			}
			if run.Blocks == 0 {
				run.LastSeenMillis = seen
			}
			run.Blocks++
			run.LastSeenMillis = min(run.LastSeenMillis, seen)
			run.Tier = max(run.Tier, held.tier)
			if len(counts.Counts) > 0 {
				run.Tokens += counts.Counts[i]
			} else {
				run.Tokens += counts.Step
			}
		}
		if run.Tokens > 0 {
			out = append(out, run)
		}
	}
	return out
}

func (m *model) exact(v at, key string) (out []index.Match) {
	for _, replica := range m.holdersOf(v.scope) {
		if held, seen, ok := m.fresh(v, key, replica); ok {
			out = append(out, index.Match{Replica: replica, Blocks: 1, Tokens: held.tokens, LastSeenMillis: seen, Tier: held.tier})
		}
	}
	return out
}

// credit counts accesses to the runs of matches.
func (m *model) credit(v at, keys index.Keys, matches []index.Match) {
	if !m.rulesOf(v.scope.Tenant).LFU {
		return
	}
	for _, run := range matches {
		for i := range run.Blocks {
			h := m.scopes[v.scope].parts[v.adapter][keyAt(keys, int(i))]
			held := h[run.Replica]
			held.count++
			h[run.Replica] = held
		}
	}
}

func (m *model) candidates(v at, inPartition, forAffinity bool) (out []string) {
	for _, replica := range m.holdersOf(v.scope) {
		id := identity{v.scope.Tenant, v.scope.Model, replica}
		st := m.scopes[v.scope]
		if m.silent(id, v.now) || forAffinity && !m.affine(st, id, v.now) {
			continue
		}
		held := !inPartition
		for _, h := range st.parts[v.adapter] {
			_, ok := h[replica]
			held = held || ok
		}
		if held {
			out = append(out, replica)
		}
	}
	return out
}

func (m *model) counts(v at) index.ViewCounts {
	c := index.ViewCounts{Memberships: m.memberships(), TenantKeys: m.tenantKeys(v.scope.Tenant)}
	if st := m.scopes[v.scope]; st != nil {
		c.ScopeMemberships = st.memberships()
		for _, h := range st.parts[v.adapter] {
			c.PartitionMemberships += int64(len(h))
		}
	}
	for s, st := range m.scopes {
		if s.Tenant == v.scope.Tenant && s.Model == v.scope.Model {
			c.ModelKeys += st.keys()
		}
	}
	return c
}

// counters returns what the index should, without memory.
func (m *model) counters(now int64) index.Counters {
	tenants, partitions := m.sizes()
	c := index.Counters{
		Memberships: m.memberships(), MaxMemberships: m.cfg.MaxMemberships,
		Tenants: int64(len(tenants)), Partitions: int64(partitions), Evictions: m.evictions,
	}
	for s, st := range m.scopes {
		if s.Tenant != m.cfg.ReservedTenant {
			c.Keys += st.keys()
		}
	}
	for id, p := range m.replicas {
		if id.tenant == m.cfg.ReservedTenant {
			continue
		}
		holds := false
		for s, st := range m.scopes {
			holds = holds || s.Tenant == id.tenant && s.Model == id.model && st.holding()[id.replica]
		}
		switch {
		case !holds && p.stats == nil:
		case m.silent(id, now):
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

func (m *model) modelKeys() map[string]int64 {
	out := map[string]int64{}
	for s, st := range m.scopes {
		if s.Tenant != m.cfg.ReservedTenant && len(st.parts) > 0 {
			out[s.Model] += st.keys()
		}
	}
	return out
}

func (m *model) tenantRows() (rows []index.TenantRow) {
	tenants, _ := m.sizes()
	for _, tenant := range slices.Sorted(maps.Keys(tenants)) {
		row := index.TenantRow{Tenant: tenant, Keys: m.tenantKeys(tenant),
			QuotaEvicted: m.quotaEvicted[tenant], Rules: m.rulesOf(tenant)}
		for id, p := range m.replicas {
			row.HasStats = row.HasStats || id.tenant == tenant && p.stats != nil
		}
		rows = append(rows, row)
	}
	return rows
}

func (m *model) replicaRows() (out []index.ReplicaRow) {
	rows := map[[2]string]*index.ReplicaRow{}
	row := func(tenant, replica string) *index.ReplicaRow {
		k := [2]string{tenant, replica}
		if rows[k] == nil {
			rows[k] = &index.ReplicaRow{Tenant: tenant, Replica: replica}
		}
		return rows[k]
	}
	for s, st := range m.scopes {
		for _, part := range st.parts {
			for _, h := range part {
				for replica, held := range h {
					r := row(s.Tenant, replica)
					r.Memberships++
					r.LastSeenMillis = max(r.LastSeenMillis, held.seen)
				}
			}
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(m.replicas), func(a, b identity) int { return cmp.Compare(a.model, b.model) }) {
		if p := m.replicas[id]; p.stats != nil {
			r := row(id.tenant, id.replica)
			if !r.HasStats || p.stats.LivenessMillis > r.Stats.LivenessMillis {
				r.HasStats, r.Stats = true, *p.stats
			}
		}
	}
	for _, r := range rows {
		if r.Tenant != m.cfg.ReservedTenant {
			out = append(out, *r)
		}
	}
	slices.SortFunc(out, func(a, b index.ReplicaRow) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Replica, b.Replica))
	})
	return out
}

func (m *model) cacheState(tenant, model string) (rows []index.ReplicaStatsRow, keys int64) {
	if tenant == m.cfg.ReservedTenant {
		return nil, 0
	}
	for id, p := range m.replicas {
		if id.tenant == tenant && id.model == model && p.stats != nil {
			rows = append(rows, index.ReplicaStatsRow{Replica: id.replica, Stats: *p.stats})
		}
	}
	slices.SortFunc(rows, func(a, b index.ReplicaStatsRow) int { return cmp.Compare(a.Replica, b.Replica) })
	for s, st := range m.scopes {
		if s.Tenant == tenant && s.Model == model {
			keys += st.keys()
		}
	}
	return rows, keys
}
