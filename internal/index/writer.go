// SPDX-License-Identifier: Apache-2.0

package index

import "time"

// maxSection bounds the changes that become visible in one exclusive section
// of an update, maxSweep those of background work.
const (
	maxSection = 4096
	maxSweep   = 512
)

// writer plans changes of one scope and makes them visible together. Planning
// runs beside readers: it writes only what they do not read, new sets and the
// writer's words of old ones. Commit then points the keys to their new sets
// inside one short exclusive section.
//
// A writer belongs to whoever holds scope.write.
type writer struct {
	edits
	s *scope

	touched []*partition
	owners  []ownerRef
	flips   []flip
	pending []setRef // sets that may be without keys
	bloated []setRef // sets with an overlong log

	// feed is nil while nobody listens; changes wait for the commit.
	feed    Feed
	changes []Change

	hs    []holding // scratch
	words []uint64  // scratch
}

// ownerRef names a count that waits for a commit.
type ownerRef struct {
	p    *partition
	slot uint16
}

// begin takes a writer for a scope whose write lock is held.
func (x *Index) begin(s *scope) *writer {
	w := x.writers.Get().(*writer)
	w.s, w.feed = s, x.feedOf(s.home.tenant)
	return w
}

// end gives a writer without open edits back.
func (x *Index) end(w *writer) {
	w.s, w.feed = nil, nil
	x.writers.Put(w)
}

func newWriter() *writer { return &writer{edits: newEdits()} }

// moveRun plans that the keys of neighbouring edits, all of one set and one
// table, go to another. Counts of holders are the caller's business.
func (w *writer) moveRun(lo, hi int, to uint32) {
	run := w.list[lo:hi]
	from, p := run[0].set, w.parts[run[0].part]
	if from == to {
		return
	}
	was, is := false, false
	if from != 0 {
		was = p.record(from).live() > 0
		w.leave(p, from, run)
	} else {
		w.makeRoom(p, run)
	}
	if to != 0 {
		p.enter(to, run)
		is = p.record(to).live() > 0
	}
	for i := range run {
		run[i].set, run[i].changed = to, true
	}
	switch {
	case is && !was:
		p.planned.keys += int64(len(run))
	case was && !is:
		p.planned.keys -= int64(len(run))
	}
	w.touch(p)
}

// makeRoom plans that absent keys enter their table.
func (w *writer) makeRoom(p *partition, run []edit) {
	t := p.table(run[0].long)
	for i := range run {
		if e := &run[i]; e.was == 0 && !e.room {
			t.plan(e.word, &w.s.gate)
			e.room = true
		}
	}
}

// retoken plans the token count of an entry.
func (w *writer) retoken(e *edit, tokens int32) {
	if e.tokens != tokens {
		e.tokens, e.changed = tokens, true
		w.touch(w.parts[e.part])
	}
}

func (w *writer) touch(p *partition) {
	if !p.touched {
		p.touched = true
		w.touched = append(w.touched, p)
	}
}

// count plans a change of the memberships of a slot.
func (w *writer) count(p *partition, slot uint16, n int) {
	if n == 0 {
		return
	}
	w.touch(p)
	o := p.owner(slot)
	o.planned += int32(n)
	w.owners = append(w.owners, ownerRef{p, slot})
	st := &w.s.slots[slot]
	st.planned += int64(n)
	if st.counts() {
		p.planned.memberships += int64(n)
	} else if st.state == slotHidden {
		p.planned.hidden += int64(n)
	}
}

// commit makes all that was planned visible.
func (w *writer) commit(op string) {
	if len(w.touched) > 0 || len(w.flips) > 0 {
		w.s.exclusive(op, w.apply)
	}
	w.clean()
	w.flush()
}

// exclusive runs f while no reader has a view of the scope.
func (s *scope) exclusive(op string, f func()) {
	begin := s.x.waitBegin()
	s.gate.Lock()
	s.x.waited(WaitWrite, begin)
	if s.x.cfg.Observe == nil {
		f()
		s.gate.Unlock()
		return
	}
	start := time.Now()
	f()
	spent := time.Since(start)
	s.gate.Unlock()
	s.x.cfg.Observe(op, spent)
}

// apply is the exclusive part of commit.
func (w *writer) apply() {
	for _, p := range w.touched {
		p.sets.publish()
		p.names.publish()
	}
	for i := range w.list {
		if e := &w.list[i]; e.changed {
			w.parts[e.part].apply(e)
		}
	}
	for _, f := range w.flips {
		w.s.flip(f)
	}
	for _, o := range w.owners {
		o.p.publishOwner(o.slot)
		w.s.publishHeld(o.slot)
	}
	for _, p := range w.touched {
		w.s.publishCounts(p)
	}
}

// apply changes the table.
func (p *partition) apply(e *edit) {
	t, extra := &p.short, uint32(e.tokens)
	if e.long {
		t, extra = &p.long, e.name
		setNameTokens(p.names.edit(e.name), e.tokens)
	}
	switch {
	case e.was == 0 && e.set == 0:
	case e.was == 0:
		t.insert(entry{key: e.word, set: e.set, extra: extra})
	case e.long:
		at := t.findWhere(e.word, func(at *entry) bool { return at.extra == extra })
		if e.set == 0 {
			t.remove(at)
		} else {
			at.set = e.set
		}
	case e.set == 0:
		t.remove(t.find(e.word))
	default:
		at := t.find(e.word)
		at.set, at.extra = e.set, extra
	}
}

// clean frees what the committed changes left behind.
func (w *writer) clean() {
	for _, p := range w.touched {
		p.short.endRound()
		p.long.endRound()
		p.touched = false
	}
	for i := range w.list {
		if e := &w.list[i]; e.set == 0 {
			w.removed(e, i)
		}
	}
	for _, b := range w.bloated {
		if r := b.p.record(b.id); r.keys() > 0 {
			w.tidyLog(b.p, b.id)
		} else {
			r.unmark(markBloated)
		}
	}
	for _, d := range w.pending {
		r := d.p.record(d.id)
		r.unmark(markPending)
		if r.keys() == 0 {
			d.p.free(d.id, w.hs)
		} else {
			d.p.dequeue(d.id)
			d.p.enqueue(d.id)
		}
	}
	for _, p := range w.touched {
		p.settle()
		w.s.wake(p)
	}
	w.reset()
}

// removed gives back what a key that is not in the table leaves behind.
// Segments shrink slowly: looking at some of them is enough.
func (w *writer) removed(e *edit, i int) {
	p := w.parts[e.part]
	if e.long {
		p.names.release(e.name, nameWords(int(uint32(p.names.edit(e.name)[0]))))
	}
	if e.changed && (i%8 == 0 || len(w.list) < 8) {
		p.table(e.long).shrink(e.word, &w.s.gate)
	}
}

func (w *writer) reset() {
	w.edits.reset()
	w.touched, w.owners = w.touched[:0], w.owners[:0]
	w.flips, w.pending, w.bloated = w.flips[:0], w.pending[:0], w.bloated[:0]
}
