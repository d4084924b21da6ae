// SPDX-License-Identifier: Apache-2.0

package index

// Apply changes what one replica holds in one scope, in the order of the
// batch and visible as one step.
func (x *Index) Apply(b *Batch) Applied {
	defer x.lock("apply")()
	var a Applied
	for i := range b.Ops {
		x.applyOp(&a, b.Scope, b.Replica, b.AtMillis, b.NowMillis, &b.Ops[i])
	}
	x.hear(identity{b.Scope.Tenant, b.Scope.Model, b.Replica}, b.NowMillis)
	x.enforce(b.Scope.Tenant)
	return a
}

func (x *Index) applyOp(a *Applied, scope Scope, replica string, at, now int64, op *Op) {
	switch op.Kind {
	case OpStore:
		x.store(a, scope, replica, at, now, op)
	case OpRemove:
		if st := x.scopes[scope]; st != nil {
			for i := range op.Keys.Len() {
				a.Removed += st.remove(op.Adapter, bytesOf(op.Keys, i), replica)
			}
		}
	case OpClear:
		if st := x.scopes[scope]; st != nil {
			a.Cleared += st.clear(replica)
		}
	}
}

func (x *Index) store(a *Applied, scope Scope, replica string, at, now int64, op *Op) {
	n := op.Keys.Len()
	if !x.admits(scope, op.Adapter) {
		a.ScopeLimit += n
		return
	}
	st := x.scope(scope)
	if now-st.effective(replica, at) >= x.rulesOf(scope.Tenant).TTLMillis {
		a.Expired += n
		return
	}
	part := st.parts[op.Adapter]
	if part == nil {
		part = map[string]holders{}
	}
	for i := range n {
		key := bytesOf(op.Keys, i)
		if !validKey(key) {
			continue
		}
		h := part[key]
		if h == nil {
			h = holders{}
			part[key] = h
		}
		m, held := h[replica]
		switch {
		case !held:
			a.Stored++
		case at < m.seen:
			a.Older++
			continue
		case m.tier != op.Tier:
			a.MovedTier++
		default:
			a.Refreshed++
		}
		h[replica] = membership{seen: at, tokens: op.Tokens.At(i), tier: op.Tier, count: m.count}
	}
	if len(part) > 0 {
		st.parts[op.Adapter] = part
		x.presence(identity{scope.Tenant, scope.Model, replica})
	}
}

// admits says whether a store may create what it needs.
func (x *Index) admits(scope Scope, adapter string) bool {
	if scope.Tenant == x.cfg.ReservedTenant {
		return true
	}
	if st := x.scopes[scope]; st != nil && len(st.parts[adapter]) > 0 {
		return true
	}
	tenants, partitions := x.sizes()
	return partitions < x.cfg.MaxPartitions &&
		(tenants[scope.Tenant] || len(tenants) < x.cfg.MaxTenants)
}

// sizes returns the tenants and the number of partitions in use, reserved
// tenant left out.
func (x *Index) sizes() (tenants map[string]bool, partitions int) {
	tenants = map[string]bool{}
	for s, st := range x.scopes {
		if s.Tenant != x.cfg.ReservedTenant && len(st.parts) > 0 {
			tenants[s.Tenant] = true
			partitions += len(st.parts)
		}
	}
	for id, p := range x.replicas {
		if p.stats != nil && id.tenant != x.cfg.ReservedTenant {
			tenants[id.tenant] = true
		}
	}
	return tenants, partitions
}

func (st *scopeState) remove(adapter, key, replica string) int {
	part := st.parts[adapter]
	h := part[key]
	if _, held := h[replica]; !held {
		return 0
	}
	delete(h, replica)
	if len(h) == 0 {
		delete(part, key)
	}
	if len(part) == 0 {
		delete(st.parts, adapter)
	}
	return 1
}

func (st *scopeState) clear(replica string) (n int) {
	for adapter, part := range st.parts {
		for key := range part {
			n += st.remove(adapter, key, replica)
		}
	}
	return n
}

// RemoveEverywhere removes keys of one replica in all schemes, of one adapter
// or of all, and returns the number of memberships removed.
func (x *Index) RemoveEverywhere(tenant, model, replica, adapter string, anyAdapter bool, keys Keys) int {
	defer x.lock("evict")()
	n := 0
	for s, st := range x.scopes {
		if s.Tenant != tenant || s.Model != model {
			continue
		}
		for a := range st.parts {
			if !anyAdapter && a != adapter {
				continue
			}
			for i := range keys.Len() {
				n += st.remove(a, bytesOf(keys, i), replica)
			}
		}
	}
	return n
}

// ClearReplica removes all memberships of a replica, in every scheme and
// adapter, and its stats row. It returns the number of memberships removed.
func (x *Index) ClearReplica(tenant, model, replica string) int {
	defer x.lock("clear")()
	n := 0
	for s, st := range x.scopes {
		if s.Tenant == tenant && s.Model == model {
			n += st.clear(replica)
		}
	}
	if p := x.replicas[identity{tenant, model, replica}]; p != nil {
		p.stats = nil
	}
	return n
}

// Snapshot gathers all that a replica holds in a scope. It is invisible until
// Commit. It must end in Commit or Abort and is not safe for concurrent use.
type Snapshot struct {
	x       *Index
	scope   Scope
	replica string
	ops     []Op
	times   []int64
	done    bool
}

// BeginSnapshot starts a snapshot.
func (x *Index) BeginSnapshot(scope Scope, replica string) *Snapshot {
	return &Snapshot{x: x, scope: scope, replica: replica}
}

// Store adds memberships reported at a producer's time. Ops other than
// OpStore are ignored.
func (s *Snapshot) Store(atMillis int64, op Op) {
	if op.Kind != OpStore || s.done {
		return
	}
	op.Keys = Keys{Short: append([]uint64(nil), op.Keys.Short...), Long: copyLong(op.Keys.Long)}
	op.Tokens.Counts = append([]int32(nil), op.Tokens.Counts...)
	s.ops, s.times = append(s.ops, op), append(s.times, atMillis)
}

func copyLong(keys [][]byte) [][]byte {
	if keys == nil {
		return nil
	}
	out := make([][]byte, len(keys))
	for i, k := range keys {
		out[i] = append([]byte(nil), k...)
	}
	return out
}

// Commit replaces the replica's memberships in the scope by those stored, in
// one visible step.
func (s *Snapshot) Commit(nowMillis int64) Applied {
	var a Applied
	if s.done {
		return a
	}
	s.done = true
	x := s.x
	defer x.lock("snapshot")()
	if st := x.scopes[s.scope]; st != nil {
		a.Cleared = st.clear(s.replica)
	}
	for i := range s.ops {
		x.applyOp(&a, s.scope, s.replica, s.times[i], nowMillis, &s.ops[i])
	}
	x.hear(identity{s.scope.Tenant, s.scope.Model, s.replica}, nowMillis)
	x.enforce(s.scope.Tenant)
	return a
}

// Abort forgets the snapshot. After Commit it does nothing.
func (s *Snapshot) Abort() { s.done, s.ops = true, nil }
