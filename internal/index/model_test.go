// SPDX-License-Identifier: Apache-2.0

package index_test

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"github.com/inferencecache/inference-cache/internal/index"
)

// model is the index in the plainest form: maps, scans, no care for time or
// memory. Where the index may choose, the model is told what it chose.
type model struct {
	cfg          index.Config
	defaults     index.TenantRules
	rules        map[string]index.TenantRules
	scopes       map[index.Scope]*modelScope
	replicas     map[identity]*presence
	evictions    index.Evictions
	quotaEvicted map[string]int64
}

// membership is what one replica said about one key.
type membership struct {
	seen   int64
	tokens int32
	tier   index.Tier
	count  int64
}

// holders maps replicas to their hold on one key.
type holders map[string]membership

// modelScope holds adapter -> key bytes -> holders.
type modelScope struct {
	parts    map[string]map[string]holders
	sessions map[string]*session
}

type session struct {
	up   bool
	beat int64
}

type identity struct{ tenant, model, replica string }

type presence struct {
	stats       *index.Stats
	heard       int64
	payloads    int
	lastPayload int64
	regular     bool
}

func newModel(cfg index.Config) *model {
	return &model{
		cfg: cfg, defaults: cfg.DefaultRules,
		scopes:       map[index.Scope]*modelScope{},
		replicas:     map[identity]*presence{},
		quotaEvicted: map[string]int64{},
	}
}

func (m *model) rulesOf(tenant string) index.TenantRules {
	if r, ok := m.rules[tenant]; ok {
		return r
	}
	return m.defaults
}

func (m *model) scope(s index.Scope) *modelScope {
	if m.scopes[s] == nil {
		m.scopes[s] = &modelScope{parts: map[string]map[string]holders{}, sessions: map[string]*session{}}
	}
	return m.scopes[s]
}

func (m *model) presence(id identity) *presence {
	if m.replicas[id] == nil {
		m.replicas[id] = &presence{}
	}
	return m.replicas[id]
}

// effective is the time that age counts from.
func (st *modelScope) effective(replica string, seen int64) int64 {
	if s := st.sessions[replica]; s != nil {
		return max(seen, s.beat)
	}
	return seen
}

func keyAt(k index.Keys, i int) string {
	if k.Long != nil {
		return string(k.Long[i])
	}
	return string(binary.BigEndian.AppendUint64(nil, k.Short[i]))
}

// swept says that a time is so old that Maintain removes it: expiry works on
// whole seconds.
func swept(effective, now, ttl int64) bool {
	return math.Floor(float64(effective)/1000) < math.Floor(float64(now-ttl)/1000)
}

// apply returns what the index should, without enforcing bounds.
func (m *model) apply(b *index.Batch) (a index.Applied) {
	for i := range b.Ops {
		m.applyOp(&a, b.Scope, b.Replica, b.Replica, b.AtMillis, b.NowMillis, &b.Ops[i])
	}
	m.hear(identity{b.Scope.Tenant, b.Scope.Model, b.Replica}, b.NowMillis)
	return a
}

// applyOp changes what as holds; session is the replica whose session counts.
func (m *model) applyOp(a *index.Applied, s index.Scope, as, session string, at, now int64, op *index.Op) {
	st := m.scopes[s]
	switch {
	case op.Kind == index.OpStore:
		m.store(a, s, as, session, at, now, op)
	case st == nil:
	case op.Kind == index.OpRemove:
		for i := range op.Keys.Len() {
			a.Removed += st.remove(op.Adapter, keyAt(op.Keys, i), as)
		}
	case op.Kind == index.OpClear:
		a.Cleared += st.clear(as)
	}
}

func (m *model) store(a *index.Applied, s index.Scope, as, session string, at, now int64, op *index.Op) {
	n := op.Keys.Len()
	if n == 0 {
		return
	}
	if !m.admits(s, op.Adapter) {
		a.ScopeLimit += n
		return
	}
	st := m.scope(s)
	if now-st.effective(session, at) >= m.rulesOf(s.Tenant).TTLMillis {
		a.Expired += n
		return
	}
	m.presence(identity{s.Tenant, s.Model, session})
	part := st.parts[op.Adapter]
	if part == nil {
		part = map[string]holders{}
	}
	for i := range n {
		key := keyAt(op.Keys, i)
		if len(key) == 0 || len(key) > index.MaxKeyBytes {
			continue
		}
		if part[key] == nil {
			part[key] = holders{}
		}
		old, held := part[key][as]
		switch {
		case !held:
			a.Stored++
		case at < old.seen:
			a.Older++
			continue
		case old.tier != op.Tier:
			a.MovedTier++
		default:
			a.Refreshed++
		}
		part[key][as] = membership{seen: at, tokens: op.Tokens.At(i), tier: op.Tier, count: old.count}
	}
	if len(part) > 0 {
		st.parts[op.Adapter] = part
	}
}

// admits says whether a store may create what it needs.
func (m *model) admits(s index.Scope, adapter string) bool {
	if s.Tenant == m.cfg.ReservedTenant {
		return true
	}
	if st := m.scopes[s]; st != nil && len(st.parts[adapter]) > 0 {
		return true
	}
	tenants, partitions := m.sizes()
	return partitions < m.cfg.MaxPartitions && (tenants[s.Tenant] || len(tenants) < m.cfg.MaxTenants)
}

// sizes returns tenants and partitions in use, reserved tenant left out.
func (m *model) sizes() (tenants map[string]bool, partitions int) {
	tenants = map[string]bool{}
	for s, st := range m.scopes {
		if s.Tenant != m.cfg.ReservedTenant && len(st.parts) > 0 {
			tenants[s.Tenant] = true
			partitions += len(st.parts)
		}
	}
	for id, p := range m.replicas {
		if p.stats != nil && id.tenant != m.cfg.ReservedTenant {
			tenants[id.tenant] = true
		}
	}
	return tenants, partitions
}

func (st *modelScope) remove(adapter, key, replica string) int {
	part := st.parts[adapter]
	if _, held := part[key][replica]; !held {
		return 0
	}
	delete(part[key], replica)
	if len(part[key]) == 0 {
		delete(part, key)
	}
	if len(part) == 0 {
		delete(st.parts, adapter)
	}
	return 1
}

func (st *modelScope) clear(replica string) (n int) {
	for adapter, part := range st.parts {
		for key := range part {
			n += st.remove(adapter, key, replica)
		}
	}
	return n
}

func (m *model) removeEverywhere(tenant, model, replica, adapter string, anyAdapter bool, keys index.Keys) (n int) {
	for s, st := range m.scopes {
		if s.Tenant != tenant || s.Model != model {
			continue
		}
		for a := range st.parts {
			if !anyAdapter && a != adapter {
				continue
			}
			for i := range keys.Len() {
				n += st.remove(a, keyAt(keys, i), replica)
			}
		}
	}
	return n
}

func (m *model) clearReplica(tenant, model, replica string) (n int) {
	for s, st := range m.scopes {
		if s.Tenant == tenant && s.Model == model {
			n += st.clear(replica)
		}
	}
	if p := m.replicas[identity{tenant, model, replica}]; p != nil {
		p.stats = nil
	}
	return n
}

// commit replaces what a replica holds in a scope by the stores of a batch,
// each at its own time.
func (m *model) commit(s index.Scope, replica string, now int64, times []int64, ops []index.Op) (a index.Applied) {
	const hidden = "\x00hidden"
	for i := range ops {
		m.applyOp(&a, s, hidden, replica, times[i], now, &ops[i])
	}
	st := m.scopes[s]
	if st != nil {
		a.Cleared = st.clear(replica)
		for _, part := range st.parts {
			for _, h := range part {
				if held, ok := h[hidden]; ok {
					h[replica] = held
					delete(h, hidden)
				}
			}
		}
	}
	m.hear(identity{s.Tenant, s.Model, replica}, now)
	return a
}

// enforceQuota drops keys over the tenant's quota.
func (m *model) enforceQuota(tenant string) {
	r := m.rulesOf(tenant)
	if !r.Limited || tenant == m.cfg.ReservedTenant {
		return
	}
	for m.tenantKeys(tenant) > r.MaxKeys {
		m.dropOldestKey(tenant)
		m.quotaEvicted[tenant]++
	}
}

func (m *model) tenantKeys(tenant string) (n int64) {
	for s, st := range m.scopes {
		if s.Tenant == tenant {
			n += st.keys()
		}
	}
	return n
}

func (st *modelScope) keys() (n int64) {
	for _, part := range st.parts {
		n += int64(len(part))
	}
	return n
}

func (st *modelScope) memberships() (n int64) {
	for _, part := range st.parts {
		for _, h := range part {
			n += int64(len(h))
		}
	}
	return n
}

func (m *model) memberships() (n int64) {
	for s, st := range m.scopes {
		if s.Tenant != m.cfg.ReservedTenant {
			n += st.memberships()
		}
	}
	return n
}

// dropOldestKey drops the key whose freshest time is oldest, ties by model,
// scheme, adapter and bytes.
func (m *model) dropOldestKey(tenant string) {
	type candidate struct {
		at           int64
		scope        index.Scope
		adapter, key string
	}
	var all []candidate
	for s, st := range m.scopes {
		if s.Tenant != tenant {
			continue
		}
		for adapter, part := range st.parts {
			for key, h := range part {
				freshest := int64(math.MinInt64)
				for _, held := range h {
					freshest = max(freshest, held.seen)
				}
				all = append(all, candidate{freshest, s, adapter, key})
			}
		}
	}
	best := slices.MinFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.scope.Model, b.scope.Model),
			cmp.Compare(a.scope.Scheme, b.scope.Scheme), cmp.Compare(a.adapter, b.adapter),
			cmp.Compare(a.key, b.key))
	})
	st := m.scopes[best.scope]
	for replica := range st.parts[best.adapter][best.key] {
		st.remove(best.adapter, best.key, replica)
	}
}

// expire removes expired memberships of a scope.
func (m *model) expire(s index.Scope, st *modelScope, now int64) {
	rules := m.rulesOf(s.Tenant)
	for adapter, part := range st.parts {
		for key, h := range part {
			for replica, held := range h {
				if !swept(st.effective(replica, held.seen), now, rules.TTLMillis) {
					continue
				}
				st.remove(adapter, key, replica)
				if rules.LFU {
					m.evictions.TTLLFU++
				} else {
					m.evictions.TTLLRU++
				}
			}
		}
	}
}

// maintain expires everything and forgets what is over.
func (m *model) maintain(now int64) {
	for s, st := range m.scopes {
		m.expire(s, st, now)
		holding, ttl := st.holding(), m.rulesOf(s.Tenant).TTLMillis
		for replica, session := range st.sessions {
			if !session.up && !holding[replica] && now-session.beat >= ttl {
				delete(st.sessions, replica)
			}
		}
		if len(st.parts) == 0 && len(st.sessions) == 0 {
			delete(m.scopes, s)
		}
	}
	for id, p := range m.replicas {
		ttl := m.rulesOf(id.tenant).TTLMillis
		if p.stats != nil && now-p.stats.LivenessMillis >= ttl {
			p.stats = nil
		}
		if p.stats == nil && now-p.heard >= ttl && !m.known(id) {
			delete(m.replicas, id)
		}
	}
}

func (m *model) known(id identity) bool {
	for s, st := range m.scopes {
		if s.Tenant == id.tenant && s.Model == id.model &&
			(st.sessions[id.replica] != nil || st.holding()[id.replica]) {
			return true
		}
	}
	return false
}

func (st *modelScope) holding() map[string]bool {
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
