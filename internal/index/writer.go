// SPDX-License-Identifier: Apache-2.0

package index

import "time"

// maxSection bounds the changes that become visible in one exclusive section
// of an update, maxSweep those of background work.
const (
	maxSection = 4096
	maxSweep   = 512
)

// edit is one planned change: a key goes to a set, or away when set is 0.
type edit struct {
	p      *partition
	hash   uint64
	word   uint64
	set    uint32
	tokens int32
	name   uint32 // block of a long key, else 0
	long   bool
}

// writer plans changes of one scope and makes them visible together. Planning
// runs beside readers: it writes only what they do not read, new sets and the
// writer's words of old ones. Commit then points the keys to their new sets
// inside one short exclusive section.
//
// A writer belongs to whoever holds scope.write.
type writer struct {
	s     *scope
	edits []edit
	// index finds the edit of a key: hash -> round:32 | edit+1:32.
	index []uint64
	round uint32

	touched []*partition
	owners  []ownerRef
	flips   []flip
	pending []setRef // sets that may be without keys
	bloated []setRef // sets with an overlong log

	// feed is nil while nobody listens; changes wait for the commit.
	feed    Feed
	changes []Change

	memo  memo
	hs    []holding // scratch
	words []uint64  // scratch
}

// ownerRef names a count that waits for a commit.
type ownerRef struct {
	p    *partition
	slot uint16
}

// memo remembers the last move: neighbours in a chain mostly repeat it.
type memo struct {
	p        *partition
	valid    bool
	long     bool
	from, to uint32
	outcome  outcome
}

// current is what is planned for a key, or else what its table says.
type current struct {
	set    uint32
	tokens int32
	name   uint32
	edit   int32 // -1 = none planned
}

// begin takes a writer for a scope whose write lock is held.
func (x *Index) begin(s *scope) *writer {
	w := x.writers.Get().(*writer)
	w.s, w.feed = s, x.feedOf(s.home.tenant)
	return w
}

// end gives a writer without open edits back.
func (x *Index) end(w *writer) {
	w.s, w.feed, w.memo = nil, nil, memo{}
	x.writers.Put(w)
}

func newWriter() *writer { return &writer{index: make([]uint64, 256), round: 1} }

// current returns the state of a key.
func (w *writer) current(p *partition, k *keyRef) current {
	if len(w.edits) > 0 {
		if i := w.find(p, k); i >= 0 {
			e := &w.edits[i]
			return current{set: e.set, tokens: e.tokens, name: e.name, edit: i}
		}
	}
	e := p.lookup(k)
	if e == nil {
		return current{edit: -1}
	}
	c := current{set: e.set, tokens: p.tokensOf(e, k.long()), edit: -1}
	if k.long() {
		c.name = e.extra
	}
	return c
}

// find returns the edit of a key, or -1.
func (w *writer) find(p *partition, k *keyRef) int32 {
	mask := uint64(len(w.index) - 1)
	for i := k.hash >> 8 & mask; ; i = (i + 1) & mask {
		at := w.index[i]
		if uint32(at>>32) != w.round {
			return -1
		}
		e := &w.edits[uint32(at)-1]
		if e.word == k.word && e.p == p && e.long == k.long() &&
			(!e.long || nameEquals(p.names.edit(e.name), k.name)) {
			return int32(uint32(at) - 1)
		}
	}
}

// findEntry returns the edit of an entry of the committed table, or -1.
func (w *writer) findEntry(p *partition, hash uint64, e *entry, long bool) int32 {
	mask := uint64(len(w.index) - 1)
	for i := hash >> 8 & mask; ; i = (i + 1) & mask {
		at := w.index[i]
		if uint32(at>>32) != w.round {
			return -1
		}
		d := &w.edits[uint32(at)-1]
		if d.word == e.key && d.p == p && d.long == long && (!long || d.name == e.extra) {
			return int32(uint32(at) - 1)
		}
	}
}

// move plans that a key goes from its current set to another, with a token
// count for its entry. Counts of holders are the caller's business.
func (w *writer) move(p *partition, k *keyRef, c *current, to uint32, tokens int32) {
	if c.set != to {
		if c.set != 0 {
			w.leave(p, c.set, k.word)
		}
		w.arrive(p, c.set, to, k.word)
	} else if c.tokens == tokens {
		return
	}
	if c.edit >= 0 {
		e := &w.edits[c.edit]
		e.set, e.tokens = to, tokens
		return
	}
	if c.set == 0 {
		p.table(k.long()).plan(k.hash, &w.s.gate)
		if k.long() {
			c.name = p.names.alloc(nameWords(len(k.name)))
			putName(p.names.edit(c.name), k.name)
		}
	}
	w.add(edit{p: p, hash: k.hash, word: k.word, set: to, tokens: tokens, name: c.name, long: k.long()})
}

// arrive enters a key into its new set and counts distinct keys.
func (w *writer) arrive(p *partition, from, to uint32, word uint64) {
	was, is := false, false
	if from != 0 {
		was = p.record(from).live() > 0
	}
	if to != 0 {
		p.enter(to, word)
		is = p.record(to).live() > 0
	}
	if was != is {
		if is {
			p.planned.keys++
		} else {
			p.planned.keys--
		}
	}
	w.touch(p)
}

// add appends an edit.
func (w *writer) add(e edit) {
	w.edits = append(w.edits, e)
	if 2*len(w.edits) > len(w.index) {
		w.index = make([]uint64, 2*len(w.index))
		for i := range w.edits {
			w.note(w.edits[i].hash, i)
		}
		return
	}
	w.note(e.hash, len(w.edits)-1)
}

func (w *writer) note(hash uint64, i int) {
	mask := uint64(len(w.index) - 1)
	at := hash >> 8 & mask
	for uint32(w.index[at]>>32) == w.round {
		at = (at + 1) & mask
	}
	w.index[at] = uint64(w.round)<<32 | uint64(i+1)
}

func (w *writer) touch(p *partition) {
	if !p.touched {
		p.touched = true
		w.touched = append(w.touched, p)
	}
}

// count plans a change of the memberships of a slot.
func (w *writer) count(p *partition, slot uint16, n int32) {
	if n == 0 {
		return
	}
	w.touch(p)
	o := p.owner(slot)
	o.planned += n
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
	if len(w.edits) > 0 || len(w.touched) > 0 || len(w.flips) > 0 {
		w.s.exclusive(op, w.apply)
		w.clean()
		w.flush()
	}
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
	for i := range w.edits {
		w.edits[i].apply()
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
func (e *edit) apply() {
	p := e.p
	if !e.long {
		if e.set == 0 {
			p.short.delete(e.hash, e.word)
		} else {
			p.short.set(e.hash, entry{key: e.word, set: e.set, extra: uint32(e.tokens)})
		}
		return
	}
	at := p.long.findWhere(e.hash, e.word, func(at *entry) bool { return at.extra == e.name })
	switch {
	case e.set == 0 && at != nil:
		p.long.remove(e.hash, at)
	case e.set == 0:
	case at != nil:
		at.set = e.set
		setNameTokens(p.names.edit(e.name), e.tokens)
	default:
		setNameTokens(p.names.edit(e.name), e.tokens)
		p.long.insert(e.hash, entry{key: e.word, set: e.set, extra: e.name})
	}
}

// clean frees what the committed changes left behind.
func (w *writer) clean() {
	for _, p := range w.touched {
		p.short.endRound()
		p.long.endRound()
		p.touched = false
	}
	for i := range w.edits {
		if e := &w.edits[i]; e.set == 0 {
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

// removed gives back what a key that is gone leaves behind. Segments shrink
// slowly: looking at some of them is enough.
func (w *writer) removed(e *edit, i int) {
	if e.long {
		p := e.p
		p.names.release(e.name, nameWords(int(uint32(p.names.edit(e.name)[0]))))
	}
	if i%8 == 0 || len(w.edits) < 8 {
		e.p.table(e.long).shrink(e.hash, &w.s.gate)
	}
}

func (w *writer) reset() {
	if len(w.edits) > maxSweep {
		clear(w.edits) // lets go of partitions
	}
	w.edits, w.touched, w.owners = w.edits[:0], w.touched[:0], w.owners[:0]
	w.flips, w.pending, w.bloated = w.flips[:0], w.pending[:0], w.bloated[:0]
	w.memo = memo{}
	if w.round++; w.round == 0 {
		clear(w.index)
		w.round = 1
	}
}
