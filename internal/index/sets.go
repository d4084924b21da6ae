// SPDX-License-Identifier: Apache-2.0

package index

import "slices"

// This file is the life of a holder set: found by content or created, entered
// and left by keys, freed once a write that left it empty is over.

// decode appends a set's holdings to dst without those of dead slots. tokens
// is what the key's entry says.
func (p *partition) decode(dst []holding, id uint32, tokens int32) []holding {
	if id == 0 {
		return dst
	}
	r := p.record(id)
	for i := range r.holders() {
		h := r.holder(i)
		if p.scope.slots[h.slot()].state == slotDead {
			continue
		}
		dst = append(dst, holding{holder: h, count: r.count(i), tokens: r.tokens(i, tokens)})
	}
	return dst
}

// setOf returns a set with these holdings, sorted by slot, and room for a key;
// 0 for none.
func (p *partition) setOf(hs []holding, long bool) uint32 {
	if len(hs) == 0 {
		return 0
	}
	flags := shapeOf(hs)
	if long {
		flags |= flagLong
	}
	content := contentHash(p.scope.x.seed, hs, flags)
	e := p.intern.find(content)
	if e != nil {
		if r := p.record(e.set); r.keys() < maxShared && r.equals(hs, flags) {
			return e.set
		}
	}
	id := p.create(hs, flags)
	if e != nil {
		e.set = id
	} else {
		p.intern.plan(content, noLock{})
		p.intern.insert(entry{key: content, set: id})
		p.intern.endRound()
	}
	return id
}

func (p *partition) create(hs []holding, flags int) uint32 {
	id := p.sets.alloc(setWords(len(hs), flags))
	p.record(id).encode(hs, flags)
	for _, h := range hs {
		o := p.owner(h.slot())
		if len(o.sets) > 2*o.live+32 {
			p.setsOf(h.slot())
		}
		o.sets = append(o.sets, id)
		o.live++
	}
	p.enqueue(id)
	return id
}

// enqueue counts the live holders of a set and puts it into the queues.
func (p *partition) enqueue(id uint32) {
	r := p.record(id)
	k := p.ranks(r)
	r.setLive(k.live)
	p.expiry.add(&p.sets, id, k.expiry)
	p.evict.add(&p.sets, id, k.evict)
	p.fresh.add(&p.sets, id, k.fresh)
}

func (p *partition) dequeue(id uint32) {
	p.expiry.remove(&p.sets, id)
	p.evict.remove(&p.sets, id)
	p.fresh.remove(&p.sets, id)
}

// ranks is a set's place in the three queues.
type ranks struct {
	live                 int
	expiry, evict, fresh int64
}

func (p *partition) ranks(r record) ranks {
	k := ranks{expiry: noSecond, evict: noSecond, fresh: noSecond}
	newest := int64(-1)
	for i, w := range r.list() {
		h := holder(w)
		slot := &p.scope.slots[h.slot()]
		if !slot.counts() {
			continue
		}
		k.live++
		k.expiry = min(k.expiry, max(h.seen(), slot.member.beat.Load())/1000)
		k.evict = min(k.evict, p.evictRank(r, i))
		newest = max(newest, h.seen())
	}
	if k.live > 0 {
		k.fresh = newest
	}
	return k
}

// evictRank is the place of one membership in the order of the cap: LFU count,
// then second.
func (p *partition) evictRank(r record, i int) int64 {
	rank := r.holder(i).seen() / 1000
	if n := min(r.count(i), maxCredits); p.lfu && n >= p.faded {
		rank |= int64(n) << secondBits
	}
	return rank
}

// enter adds keys to a set.
func (p *partition) enter(id uint32, run []edit) {
	r := p.record(id)
	r.addKeys(len(run))
	start, end := r.span()
	block, capacity := r.log()
	if end+len(run) > capacity {
		block, start, end = p.growLog(r, block, capacity, start, end, len(run))
	}
	log := p.logs.edit(block)[end : end+len(run)]
	for i := range log {
		log[i] = run[i].word
	}
	r.setSpan(start, end+len(run))
	r.unmark(markSorted)
}

// growLog makes room at the end of a log.
func (p *partition) growLog(r record, block uint32, capacity, start, end, more int) (uint32, int, int) {
	used := end - start
	_, grown := classOf(max(4, used+more, used+used/2))
	fresh := p.logs.alloc(grown)
	if capacity > 0 {
		copy(p.logs.edit(fresh), p.logs.edit(block)[start:end])
		p.logs.release(block, capacity)
	}
	r.setLog(fresh, grown)
	return fresh, 0, used
}

// leave takes keys out of a set. Keys mostly leave in the order they came, or
// backwards, so that the log stays short.
func (w *writer) leave(p *partition, id uint32, run []edit) {
	r := p.record(id)
	if start, end := r.span(); end > start {
		block, _ := r.log()
		log := p.logs.edit(block)
		for i := 0; i < len(run) && end > start; i++ {
			switch run[i].word {
			case log[end-1]:
				end--
			case log[start]:
				start++
			}
		}
		r.setSpan(start, end)
	}
	w.left(p, id, r, len(run))
}

// left counts keys that left.
func (w *writer) left(p *partition, id uint32, r record, n int) {
	r.addKeys(-n)
	start, end := r.span()
	switch {
	case r.keys() == 0 && !r.marked(markPending):
		r.mark(markPending)
		w.pending = append(w.pending, setRef{p, id})
	case end-start > 3*int(r.keys())+64 && !r.marked(markBloated):
		r.mark(markBloated)
		w.bloated = append(w.bloated, setRef{p, id})
	}
}

// setRef names a set.
type setRef struct {
	p  *partition
	id uint32
}

// free gives back a set without keys.
func (p *partition) free(id uint32, scratch []holding) {
	p.dequeue(id)
	r := p.record(id)
	for _, w := range r.list() {
		p.owners[holder(w).slot()].live--
	}
	p.forget(id, r, scratch)
	if block, capacity := r.log(); capacity > 0 {
		p.logs.release(block, capacity)
	}
	p.sets.release(id, r.size())
}

// forget takes a set out of intern.
func (p *partition) forget(id uint32, r record, scratch []holding) {
	hs := scratch[:0]
	for i := range r.holders() {
		hs = append(hs, holding{holder: r.holder(i), count: r.count(i), tokens: r.tokens(i, 0)})
	}
	content := contentHash(p.scope.x.seed, hs, r.flags())
	if e := p.intern.find(content); e != nil && e.set == id {
		p.intern.remove(e)
		p.intern.shrink(content, noLock{})
	}
}

// tidyLog drops from a log what left the set.
func (w *writer) tidyLog(p *partition, id uint32) {
	r := p.record(id)
	start, end := r.span()
	block, _ := r.log()
	log := p.logs.edit(block)[start:end]
	long := r.flags()&flagLong != 0
	log = slices.DeleteFunc(log, func(word uint64) bool {
		e, _ := w.entryIn(p, id, word, long)
		return e == nil
	})
	if len(log) > int(r.keys()) {
		slices.Sort(log)
		log = slices.Compact(log)
		r.unmark(markSorted)
	}
	r.setSpan(start, start+len(log))
	r.unmark(markBloated)
}

// take returns up to n keys of a set, last comers first.
func (w *writer) take(p *partition, id uint32, n int) []uint64 {
	r := p.record(id)
	if start, end := r.span(); end-start > int(r.keys()) {
		w.tidyLog(p, id)
	}
	start, end := r.span()
	if end == start {
		return nil
	}
	block, _ := r.log()
	w.words = append(w.words[:0], p.logs.edit(block)[max(start, end-n):end]...)
	slices.Reverse(w.words)
	return w.words
}

// without plans that keys of a set lose the holders that drop names.
func (w *writer) without(p *partition, id uint32, words []uint64, drop func(holding) bool) (moved int) {
	long := p.setFlags(id)&flagLong != 0
	for len(words) > 0 {
		lo, hi, n := w.claimFrom(p, id, words, long)
		words = words[n:]
		for lo < hi {
			n := 0
			if w.list[lo].set == id {
				n = w.withoutRun(p, lo, hi, drop)
				moved += n
			}
			lo += max(n, 1)
		}
	}
	return moved
}

// claimFrom claims the keys of a set's log as claim does: n says how many
// words are through.
func (w *writer) claimFrom(p *partition, id uint32, words []uint64, long bool) (lo, hi, n int) {
	if !long {
		lo, hi = w.claimWords(p, words[:min(len(words), claimAhead)])
		return lo, hi, hi - lo
	}
	if at := w.claimIn(p, id, words[0], long); at >= 0 {
		return at, at + 1, 1
	}
	return 0, 0, 1
}

// withoutRun plans that leading edits of one set lose the holders that drop
// names, tells of it and returns how many.
func (w *writer) withoutRun(p *partition, lo, hi int, drop func(holding) bool) (n int) {
	from := w.list[lo].set
	for n = 1; lo+n < hi && w.list[lo+n].set == from; n++ {
	}
	n = w.withoutHolders(p, lo, lo+n, drop)
	for i := lo; w.feed != nil && i < lo+n; i++ {
		w.tellLost(p, p.record(from), &w.list[i], drop)
	}
	return n
}

// fitting returns how many of n keys may go from one set to another.
func (p *partition) fitting(from, to uint32, n int) int {
	if to == 0 || to == from {
		return n
	}
	return min(n, maxShared-int(p.record(to).keys()))
}

// noLock locks nothing: for tables without readers.
type noLock struct{}

func (noLock) Lock()   {}
func (noLock) Unlock() {}
