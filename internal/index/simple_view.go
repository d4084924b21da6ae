// SPDX-License-Identifier: Apache-2.0

package index

import (
	"cmp"
	"slices"
)

// View is one consistent picture of a scope. It holds writers of the scope up:
// release it promptly and never keep it across I/O. It is not safe for
// concurrent use.
type View struct {
	x       *Index
	scope   Scope
	adapter string
	now     int64
	ttl     int64
	st      *scopeState
	names   []string // slot -> replica
	run     []credit
}

// credit names one membership to be counted.
type credit struct{ key, replica string }

// Acquire returns a view of a scope and one of its adapters at a time. A
// membership counts while it is younger than ttlMillis.
func (x *Index) Acquire(scope Scope, adapter string, nowMillis, ttlMillis int64) View {
	x.mu.RLock()
	v := View{x: x, scope: scope, adapter: adapter, now: nowMillis, ttl: ttlMillis, st: x.scopes[scope]}
	if v.st == nil {
		v.st = &scopeState{}
	}
	for replica := range v.st.holding() {
		v.names = append(v.names, replica)
	}
	slices.Sort(v.names)
	return v
}

// Release ends the view.
func (v *View) Release() {
	v.x.mu.RUnlock()
	if len(v.run) == 0 {
		return
	}
	v.x.mu.Lock()
	defer v.x.mu.Unlock()
	st := v.x.scopes[v.scope]
	if st == nil {
		return
	}
	for _, c := range v.run {
		if m, held := st.parts[v.adapter][c.key][c.replica]; held {
			m.count++
			st.parts[v.adapter][c.key][c.replica] = m
		}
	}
}

// fresh returns the effective time of a membership and whether it counts.
func (v *View) fresh(replica string, m membership) (int64, bool) {
	at := v.st.effective(replica, m.seen)
	return at, v.now-at < v.ttl && !v.silent(replica)
}

func (v *View) silent(replica string) bool {
	return v.x.silent(identity{v.scope.Tenant, v.scope.Model, replica}, v.now)
}

// MatchChain appends the leading runs of a chain to dst, one for each replica
// that freshly holds its first key, in the order of slots. counts gives each
// block's own tokens. Runs without tokens are left out; a key equal to the one
// before ends all runs.
func (v *View) MatchChain(dst []Match, keys Keys, counts Tokens) []Match {
	v.keep(keys)
	for slot, replica := range v.names {
		m := Match{Replica: replica, Slot: uint32(slot)}
		var sum int64
		for i := range keys.Len() {
			key := bytesOf(keys, i)
			if i > 0 && key == bytesOf(keys, i-1) {
				break
			}
			held, ok := v.st.parts[v.adapter][key][replica]
			if !ok {
				break
			}
			at, fresh := v.fresh(replica, held)
			if !fresh {
				break
			}
			if m.Blocks == 0 {
				m.LastSeenMillis = at
			}
			m.Blocks++
			m.LastSeenMillis = min(m.LastSeenMillis, at)
			m.Tier = max(m.Tier, held.tier)
			if len(counts.Counts) > 0 {
				sum += int64(counts.Counts[i])
			} else {
				sum += int64(counts.Step)
			}
		}
		if m.Tokens = int32(sum); sum > 0 {
			dst = append(dst, m)
		}
	}
	return dst
}

// MatchExact appends the fresh holders of the first key to dst, in the order
// of slots.
func (v *View) MatchExact(dst []Match, keys Keys) []Match {
	v.keep(keys)
	if keys.Len() == 0 {
		return dst
	}
	for slot, replica := range v.names {
		held, ok := v.st.parts[v.adapter][bytesOf(keys, 0)][replica]
		if !ok {
			continue
		}
		if at, fresh := v.fresh(replica, held); fresh {
			dst = append(dst, Match{Replica: replica, Slot: uint32(slot), Blocks: 1,
				Tokens: held.tokens, LastSeenMillis: at, Tier: held.tier})
		}
	}
	return dst
}

func (v *View) keep(keys Keys) {
	v.run = v.run[:0]
	for i := range keys.Len() {
		v.run = append(v.run, credit{key: bytesOf(keys, i)})
	}
	v.run = v.run[:0]
}

// Credit counts an access to every membership in the runs of matches of the
// last match of this view, in tenants whose rules say LFU. It takes effect
// when the view is released.
func (v *View) Credit(matches []Match) {
	if !v.x.rulesOf(v.scope.Tenant).LFU {
		return
	}
	chain := v.run[:cap(v.run)]
	var run []credit
	for _, m := range matches {
		for i := range m.Blocks {
			run = append(run, credit{chain[i].key, m.Replica})
		}
	}
	v.run = run
}

// Serving returns the number of replicas that hold a key in the scope and are
// not silent.
func (v *View) Serving() (n int) {
	for _, replica := range v.names {
		if !v.silent(replica) {
			n++
		}
	}
	return n
}

// Candidates appends the serving replicas to dst, or those that hold a key of
// the view's partition, sorted by replica id. forAffinity leaves out replicas
// whose session is down or quiet.
func (v *View) Candidates(dst []Candidate, inPartition, forAffinity bool) []Candidate {
	for slot, replica := range v.names {
		if v.silent(replica) || inPartition && !v.inPartition(replica) {
			continue
		}
		if forAffinity && !v.x.affine(v.st, identity{v.scope.Tenant, v.scope.Model, replica}, v.now) {
			continue
		}
		dst = append(dst, Candidate{Replica: replica, Slot: uint32(slot)})
	}
	return dst
}

func (v *View) inPartition(replica string) bool {
	for _, h := range v.st.parts[v.adapter] {
		if _, held := h[replica]; held {
			return true
		}
	}
	return false
}

// Stats returns the stats row of the replica in a slot.
func (v *View) Stats(slot uint32) (Stats, bool) {
	p := v.x.replicas[identity{v.scope.Tenant, v.scope.Model, v.names[slot]}]
	if p == nil || p.stats == nil {
		return Stats{}, false
	}
	return *p.stats, true
}

// Counts returns the counters a miss is classified by.
func (v *View) Counts() ViewCounts {
	c := ViewCounts{Memberships: v.x.memberships(), ScopeMemberships: v.st.memberships()}
	for _, h := range v.st.parts[v.adapter] {
		c.PartitionMemberships += int64(len(h))
	}
	for s, st := range v.x.scopes {
		if s.Tenant == v.scope.Tenant {
			c.TenantKeys += st.keys()
			if s.Model == v.scope.Model {
				c.ModelKeys += st.keys()
			}
		}
	}
	return c
}

// sortedRows orders stats rows by replica.
func sortedRows(rows []ReplicaStatsRow) []ReplicaStatsRow {
	slices.SortFunc(rows, func(a, b ReplicaStatsRow) int { return cmp.Compare(a.Replica, b.Replica) })
	return rows
}
