// SPDX-License-Identifier: Apache-2.0

package index

// Snapshot gathers all that a replica holds in a scope. It is invisible until
// Commit. It must end in Commit or Abort and is not safe for concurrent use.
type Snapshot struct {
	x       *Index
	scope   Scope
	replica string
	runs    []snapshotRun
	bytes   int64
}

type snapshotRun struct {
	at int64
	op Op
}

// BeginSnapshot starts a snapshot.
func (x *Index) BeginSnapshot(scope Scope, replica string) *Snapshot {
	return &Snapshot{x: x, scope: scope, replica: replica}
}

// Store adds memberships reported at a producer's time. Ops other than
// OpStore are ignored.
func (s *Snapshot) Store(atMillis int64, op Op) {
	if op.Kind != OpStore || s.x == nil {
		return
	}
	before := s.bytes
	op.Keys.Short = append([]uint64(nil), op.Keys.Short...)
	if op.Keys.Long != nil {
		op.Keys.Long = s.copyLong(op.Keys.Long)
	}
	op.Tokens.Counts = append([]int32(nil), op.Tokens.Counts...)
	s.runs = append(s.runs, snapshotRun{at: atMillis, op: op})
	s.bytes += int64(len(op.Keys.Short))*8 + int64(len(op.Tokens.Counts))*4 + 128
	s.x.bytes.add(Bytes{Arena: s.bytes - before})
}

func (s *Snapshot) copyLong(keys [][]byte) [][]byte {
	out := make([][]byte, len(keys))
	for i, k := range keys {
		out[i] = append([]byte(nil), k...)
		s.bytes += int64(len(k)) + 24
	}
	return out
}

// Abort forgets the snapshot. After Commit it does nothing.
func (s *Snapshot) Abort() {
	if s.x != nil {
		s.x.bytes.add(Bytes{Arena: -s.bytes})
		s.x, s.runs = nil, nil
	}
}

// Commit replaces the replica's memberships in the scope by those stored, in
// one visible step. The new ones are gathered beside the old in a hidden slot,
// which then takes the place of the replica's.
func (s *Snapshot) Commit(nowMillis int64) (a Applied) {
	if s.x == nil {
		return a
	}
	x := s.x
	defer x.endRun("snapshot", x.startRun())
	defer s.Abort()
	b := Batch{Scope: s.scope}
	for _, r := range s.runs {
		b.Ops = append(b.Ops, r.op)
	}
	sc := x.lockScope(s.scope, x.mayStore(&b, &a))
	if sc == nil {
		x.enforceOf(s.scope.Tenant)
		return a
	}
	defer func() {
		sc.write.Unlock()
		x.enforce(sc.home.tenant)
	}()
	w := x.begin(sc)
	defer x.end(w)
	m := sc.members[s.replica]
	if m == nil {
		if len(s.runs) == 0 {
			return a
		}
		if m = sc.member(s.replica); m == nil {
			return a
		}
	}
	m.busy++
	defer func() { m.busy-- }()
	s.fill(w, m, &a, nowMillis)
	m.replica.hearEvent(nowMillis)
	return a
}

// fill gathers the runs in a hidden slot and lets it replace the member's.
func (s *Snapshot) fill(w *writer, m *member, a *Applied, now int64) {
	hidden := w.s.newSlot(m, slotHidden)
	t := target{w: w, replica: s.replica, now: now, rules: w.s.x.rulesOf(s.scope.Tenant), slot: hidden, hasSlot: true}
	for i := range s.runs {
		t.at = clampSeen(s.runs[i].at)
		t.store(a, &s.runs[i].op)
		if w.full("snapshot") {
			w.yield()
		}
	}
	w.commit("snapshot")
	a.Cleared = int(w.s.slots[m.slot].planned)
	old := w.promote(m, hidden)
	w.commit("snapshot")
	w.tellReplaced(old, hidden)
	w.sweepPromoted(hidden)
	w.sweepDead(old)
	for _, p := range w.partitions() {
		w.s.x.limits.retireEmpty(p)
	}
}
