// SPDX-License-Identifier: Apache-2.0

package index

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// scope is one (tenant, model, scheme).
//
// Lock order: Index.mu, scope.write, scope.gate, then the small locks of
// replicas, limits and ranking. No two scopes are locked at a time.
type scope struct {
	x    *Index
	id   Scope
	home *home

	// write is held by the one goroutine that plans changes. It guards the
	// fields up to gate.
	write  sync.Mutex
	closed bool     // the scope left the index
	spare  []uint16 // slots to use again

	// gate is held shared by views and exclusively while changes are put in
	// place. A field below it changes only with both write and gate held.
	gate        gate
	parts       map[string]*partition
	slots       []slotState
	members     map[string]*member
	order       []*member // by name
	memberships int64     // of live slots
	holding     int       // live slots with a membership
	quiet       int       // of those, silent ones

	// recheckAt is when expiry or silence may have to be looked at again.
	recheckAt atomic.Int64
	// expiryDue is when the first membership had to be removed, 0 = never.
	expiryDue atomic.Int64
	// fadeAt is when LFU counts halve the next time, math.MaxInt64 = never.
	fadeAt atomic.Int64
	// idle says that Maintain may find members or partitions to forget.
	idle atomic.Bool
}

// member is a replica in a scope.
type member struct {
	name    string
	replica *replica
	slot    uint16
	// beat is the session's last heartbeat, 0 = none.
	beat atomic.Int64
	// The flags change like the fields of scope.
	session, up bool
	silent      bool
	busy        int  // running snapshots; under scope.write
	truncated   bool // lost memberships to a bound; under scope.write
}

// slotUse says what a slot is good for.
type slotUse uint8

const (
	slotFree slotUse = iota
	// slotHidden: a snapshot is gathered in it.
	slotHidden
	// slotFresh: takes the member's place with the running write.
	slotFresh
	slotLive
	// slotDead: its member moved on; sets still name it.
	slotDead
)

// slotState is what a holder's slot number stands for.
type slotState struct {
	member *member
	state  slotUse
	silent bool // of a live slot: what its member is
	held   int64
	// planned is held after the running write; the writer's.
	planned int64
}

// counts says whether the writer counts memberships of the slot.
func (s *slotState) counts() bool { return s.state == slotLive || s.state == slotFresh }

// flip replaces a member's slot.
type flip struct{ old, fresh uint16 }

func newScope(x *Index, id Scope, h *home) *scope {
	s := &scope{x: x, id: id, home: h, parts: map[string]*partition{}, members: map[string]*member{}}
	s.gate.open()
	s.recheckAt.Store(math.MaxInt64)
	s.fadeAt.Store(math.MaxInt64)
	return s
}

// member returns the replica's member, made on demand; nil when the scope has
// too many.
func (s *scope) member(name string) *member {
	if m := s.members[name]; m != nil {
		return m
	}
	if len(s.members) >= MaxReplicasPerScope {
		return nil
	}
	m := &member{name: name, replica: s.home.enlist(name, s)}
	s.exclusive("apply", func() {
		m.slot = s.freeSlotLocked(m, slotLive)
		s.members[name] = m
		at, _ := slices.BinarySearchFunc(s.order, name, func(m *member, name string) int { return cmp.Compare(m.name, name) })
		s.order = slices.Insert(s.order, at, m)
	})
	s.idle.Store(true)
	s.recheckBy(0)
	return m
}

// newSlot gives a member a second slot.
func (s *scope) newSlot(m *member, state slotUse) uint16 {
	var slot uint16
	s.exclusive("apply", func() { slot = s.freeSlotLocked(m, state) })
	return slot
}

func (s *scope) freeSlotLocked(m *member, state slotUse) uint16 {
	if n := len(s.spare); n > 0 {
		slot := s.spare[n-1]
		s.spare = s.spare[:n-1]
		s.slots[slot] = slotState{member: m, state: state, silent: m.silent}
		return slot
	}
	s.slots = append(s.slots, slotState{member: m, state: state, silent: m.silent})
	return uint16(len(s.slots) - 1)
}

// freeSlot takes a slot out of use that no set names.
func (s *scope) freeSlot(slot uint16) {
	s.exclusive("expire", func() { s.slots[slot] = slotState{} })
	s.spare = append(s.spare, slot)
}

// drop removes a member that holds nothing.
func (s *scope) drop(m *member) {
	s.freeSlot(m.slot)
	s.exclusive("expire", func() {
		delete(s.members, m.name)
		s.order = slices.DeleteFunc(s.order, func(o *member) bool { return o == m })
	})
	m.replica.part(s)
}

// partition returns the adapter's partition, made on demand.
func (s *scope) partition(adapter string) *partition {
	if p := s.parts[adapter]; p != nil {
		return p
	}
	p := newPartition(s, adapter)
	s.exclusive("apply", func() { s.parts[adapter] = p })
	s.x.bytes.add(p.settled())
	return p
}

// publishHeld shows readers what is planned for a slot.
func (s *scope) publishHeld(slot uint16) {
	st := &s.slots[slot]
	if st.held == st.planned {
		return
	}
	before := s.weight(st)
	if st.state == slotLive {
		st.member.replica.held.Add(st.planned - st.held)
	}
	st.held = st.planned
	s.reweigh(st, before)
	if st.held == 0 {
		s.idle.Store(true)
	}
}

// weight says how a slot counts in holding and quiet.
func (s *scope) weight(st *slotState) (w [2]int) {
	if st.state == slotLive && st.held > 0 {
		w[0] = 1
		if st.silent {
			w[1] = 1
		}
	}
	return w
}

func (s *scope) reweigh(st *slotState, before [2]int) {
	after := s.weight(st)
	s.holding += after[0] - before[0]
	s.quiet += after[1] - before[1]
}

// flip makes the fresh slot the member's. The counts of partitions and scope
// are published after it.
func (s *scope) flip(f flip) {
	old, fresh := &s.slots[f.old], &s.slots[f.fresh]
	m := old.member
	m.replica.held.Add(fresh.held - old.held)
	before := s.weight(old)
	old.state, old.member = slotDead, nil
	s.reweigh(old, before)
	before = s.weight(fresh)
	fresh.state, fresh.silent = slotLive, m.silent
	s.reweigh(fresh, before)
	m.slot = f.fresh
}

// publishOwner shows readers what is planned for a slot of a partition.
func (p *partition) publishOwner(slot uint16) {
	if n := len(p.owners); n > len(p.held) {
		p.held = append(p.held, make([]int32, n-len(p.held))...)
	}
	p.held[slot] = p.owners[slot].planned
}

// publishCounts shows readers and reports what is planned for a partition.
func (s *scope) publishCounts(p *partition) {
	memberships, keys := p.planned.memberships-p.memberships, p.planned.keys-p.keys
	p.memberships, p.keys = p.planned.memberships, p.planned.keys
	s.memberships += memberships
	s.home.add(memberships, keys)
}

// recheckBy makes sure that the scope is looked at by a time.
func (s *scope) recheckBy(millis int64) {
	for {
		at := s.recheckAt.Load()
		if at <= millis || s.recheckAt.CompareAndSwap(at, millis) {
			return
		}
	}
}

// wake sees to it that a changed partition's first expiry is not missed.
func (s *scope) wake(p *partition) {
	if _, second, ok := p.expiry.first(); ok && second != noSecond {
		due := expiresAt(second, s.x.rulesOf(s.id.Tenant).TTLMillis)
		s.recheckBy(due)
		if at := s.expiryDue.Load(); at == 0 || due < at {
			s.expiryDue.Store(due)
		}
	}
	s.x.evictor.offer(p)
}

// expiresAt is when memberships of a second are removed: expiry works on whole
// seconds.
func expiresAt(second, ttl int64) int64 { return (second+1)*1000 + ttl }
