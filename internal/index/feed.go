// SPDX-License-Identifier: Apache-2.0

package index

// Feed is told what changed. While nobody listens it costs a write one call of
// Listening.
type Feed interface {
	// Listening reports whether anybody wants to know of changes.
	Listening() bool
	// Changed is told of changes after they became visible, in their order
	// within the scope. The scheme is empty for changes of a stats row. It is
	// called with a lock of the scope held, beside readers: it must not block,
	// not call the index and not keep what it is given.
	Changed(scope Scope, changes []Change)
}

// ChangeKind says what happened.
type ChangeKind uint8

// Kinds of Change.
const (
	ChangeAdded    ChangeKind = iota // a replica holds a key it did not hold
	ChangeRemoved                    // a replica lost a key, whatever the cause
	ChangeCleared                    // a replica lost all it held in the scope
	ChangeReported                   // a stats row was replaced or kept alive
)

// Change is one change of what a replica holds or reports.
type Change struct {
	Kind             ChangeKind
	Replica, Adapter string
	// Short is the key of a ChangeAdded or ChangeRemoved, unless Long is set.
	Short uint64
	Long  []byte
}

// feedOf returns the feed when somebody listens to a tenant.
func (x *Index) feedOf(t *tenant) Feed {
	if f := x.cfg.Feed; f != nil && !t.reserved && f.Listening() {
		return f
	}
	return nil
}

// tell notes a change of one key that the running write plans.
func (w *writer) tell(kind ChangeKind, p *partition, slot uint16, e *edit) {
	short, long := w.keyOf(p, e)
	w.changes = append(w.changes, Change{
		Kind: kind, Replica: w.s.slots[slot].member.name, Adapter: p.adapter, Short: short, Long: long,
	})
}

// keyOf returns the key of an edit.
func (w *writer) keyOf(p *partition, e *edit) (short uint64, long []byte) {
	if e.long {
		return 0, nameBytes(p.names.edit(e.name))
	}
	return p.scope.x.mixer.key(e.word), nil
}

// tellLost notes that the holders of a set that drop names lose a key.
func (w *writer) tellLost(p *partition, r record, e *edit, drop func(holding) bool) {
	for i := range r.holders() {
		h := holding{holder: r.holder(i), count: r.count(i)}
		if w.s.slots[h.slot()].counts() && drop(h) {
			w.tell(ChangeRemoved, p, h.slot(), e)
		}
	}
}

// tellReplaced reports by what a member's new slot, already visible, differs
// from its old one.
func (w *writer) tellReplaced(old, fresh uint16) {
	if w.feed == nil {
		return
	}
	for _, p := range w.s.parts {
		w.tellDifference(p, old, fresh, fresh, ChangeRemoved)
		w.tellDifference(p, fresh, old, fresh, ChangeAdded)
	}
	w.flush()
}

// tellDifference reports the keys that slot a has and slot b has not.
func (w *writer) tellDifference(p *partition, a, b, live uint16, kind ChangeKind) {
	for _, id := range p.setsOf(a) {
		r := p.record(id)
		if r.find(b) >= 0 {
			continue
		}
		long := r.flags()&flagLong != 0
		for _, word := range w.take(p, id, maxShared) {
			k := edit{word: word, long: long}
			if long {
				if e, _ := w.entryIn(p, id, word, true); e != nil {
					k.name = e.extra
				}
			}
			w.tell(kind, p, live, &k)
		}
		if len(w.changes) >= maxSection {
			w.flush()
		}
	}
}

// flush hands the noted changes over. They are visible by now.
func (w *writer) flush() {
	if len(w.changes) == 0 {
		return
	}
	w.feed.Changed(w.s.id, w.changes)
	clear(w.changes)
	w.changes = w.changes[:0]
	if cap(w.changes) > 2*maxSection {
		w.changes = nil
	}
}

// tell reports a change of the replica as a whole.
func (r *replica) tell(kind ChangeKind) {
	if f := r.home.x.feedOf(r.home.tenant); f != nil {
		f.Changed(Scope{Tenant: r.home.tenant.name, Model: r.home.name}, []Change{{Kind: kind, Replica: r.name}})
	}
}
