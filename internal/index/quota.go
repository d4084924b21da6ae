// SPDX-License-Identifier: Apache-2.0

package index

import (
	"bytes"
	"cmp"
	"math"
	"slices"
)

// enforceQuota drops whole keys of a tenant over its quota: oldest first by
// their freshest time, then by model, scheme, adapter and bytes.
func (x *Index) enforceQuota(t *tenant) {
	rules := x.rulesOf(t.name)
	if !rules.Limited || t.reserved || t.keys.Load() <= rules.MaxKeys {
		return
	}
	t.quota.Lock()
	defer t.quota.Unlock()
	defer x.endRun("quota", x.startRun())
	for over := t.keys.Load() - rules.MaxKeys; over > 0; over = t.keys.Load() - rules.MaxKeys {
		p, millis := x.oldestOf(t)
		if p == nil {
			return
		}
		t.quotaEvicted.Add(p.dropOldest(millis, int(min(over, math.MaxInt32))))
	}
}

// oldestOf returns the partition of a tenant with the oldest keys and their
// time.
func (x *Index) oldestOf(t *tenant) (oldest *partition, millis int64) {
	millis = math.MaxInt64
	for _, s := range x.scopesOf(t) {
		s.write.Lock()
		for _, p := range s.sortedParts() {
			if at, _ := p.oldestKeys(); at < millis {
				oldest, millis = p, at
			}
		}
		s.write.Unlock()
	}
	return oldest, millis
}

// scopesOf returns a tenant's scopes by model and scheme.
func (x *Index) scopesOf(t *tenant) (out []*scope) {
	x.mu.RLock()
	for _, h := range t.homes {
		out = append(out, h.eachScope()...)
	}
	x.mu.RUnlock()
	slices.SortFunc(out, func(a, b *scope) int {
		return cmp.Or(cmp.Compare(a.id.Model, b.id.Model), cmp.Compare(a.id.Scheme, b.id.Scheme))
	})
	return out
}

func (s *scope) sortedParts() []*partition {
	out := make([]*partition, 0, len(s.parts))
	for _, p := range s.parts {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *partition) int { return cmp.Compare(a.adapter, b.adapter) })
	return out
}

// oldestKeys returns the sets whose freshest time is oldest, and that time.
func (p *partition) oldestKeys() (millis int64, ids []uint32) {
	for len(ids) == 0 {
		head, at, ok := p.fresh.first()
		if !ok || at == noSecond {
			return math.MaxInt64, nil
		}
		millis = at
		for id := head; id != 0; {
			next := p.fresh.next(&p.sets, id)
			if now := p.ranks(p.record(id)).fresh; now != at {
				p.requeue(&p.fresh, id, now)
			} else {
				ids = append(ids, id)
			}
			id = next
		}
	}
	return millis, ids
}

// dropOldest drops keys whose freshest time is the given one, up to need and
// not many more than maxSweep, and returns how many. It may only prepare that:
// no step takes long, however many keys have one time.
func (p *partition) dropOldest(millis int64, need int) (dropped int64) {
	s := p.scope
	s.write.Lock()
	defer s.write.Unlock()
	if s.closed || s.parts[p.adapter] != p {
		return 0
	}
	at, ids := p.oldestKeys()
	if at != millis {
		return 0
	}
	w := s.x.begin(s)
	defer s.x.end(w)
	total := 0
	for _, id := range ids {
		total += int(p.record(id).keys())
	}
	if total > need {
		if w.sortLogs(p, ids) {
			dropped = w.dropFirst(p, ids, min(need, maxSweep))
		}
	} else {
		for i := 0; i < len(ids) && dropped < maxSweep; i++ {
			dropped += w.dropKeys(p, ids[i], w.take(p, ids[i], maxShared))
		}
	}
	w.commit("quota")
	s.x.limits.retireEmpty(p)
	return dropped
}

// dropKeys plans that keys of a set lose all live holders.
func (w *writer) dropKeys(p *partition, id uint32, words []uint64) int64 {
	r := p.record(id)
	live := func(h holding) bool { return w.s.slots[h.slot()].counts() }
	n := w.without(p, id, words, live)
	for _, word := range r.list() {
		h := holder(word)
		if !live(holding{holder: h}) {
			continue
		}
		w.count(p, h.slot(), -n)
		if m := w.s.slots[h.slot()].member; n > 0 && m.up {
			m.truncated = true
			w.s.x.truncated.Store(true)
		}
	}
	if r.keys() == 0 {
		p.requeue(&p.fresh, id, noSecond)
	}
	return int64(n)
}

// sortLogs sorts logs backwards, so that repeated calls find their victims at
// the end. One step sorts the keys of one set, or little more; done is false
// when some are left to the next.
func (w *writer) sortLogs(p *partition, ids []uint32) (done bool) {
	sorted := 0
	for _, id := range ids {
		r := p.record(id)
		if r.marked(markSorted) {
			continue
		}
		if sorted >= maxShared {
			return false
		}
		sorted += int(r.keys())
		w.sortLog(p, id)
	}
	return true
}

// sortLog sorts a log so that the first key by bytes comes last.
func (w *writer) sortLog(p *partition, id uint32) {
	w.tidyLog(p, id)
	r := p.record(id)
	start, end := r.span()
	block, _ := r.log()
	log, m := p.logs.edit(block)[start:end], &w.s.x.mixer
	if r.flags()&flagLong != 0 {
		w.sortNames(p, id, log)
		r.mark(markSorted)
		return
	}
	for i, word := range log {
		log[i] = m.key(word)
	}
	slices.Sort(log)
	slices.Reverse(log)
	for i, key := range log {
		log[i] = m.word(key)
	}
	r.mark(markSorted)
}

// sortNames is sortLog for long keys, each of which is read once.
func (w *writer) sortNames(p *partition, id uint32, log []uint64) {
	type named struct {
		name []byte
		word uint64
	}
	names := make([]named, len(log))
	for i, word := range log {
		names[i] = named{w.keyBytes(p, id, word, true), word}
	}
	slices.SortFunc(names, func(a, b named) int { return bytes.Compare(b.name, a.name) })
	for i := range names {
		log[i] = names[i].word
	}
}

// victim is a set and the first of its keys by bytes.
type victim struct {
	id   uint32
	word uint64
}

// dropFirst drops the first keys by bytes of several sets with sorted logs. The
// sets form a heap by their first keys.
func (w *writer) dropFirst(p *partition, ids []uint32, need int) (dropped int64) {
	heap := make([]victim, 0, len(ids))
	for _, id := range ids {
		if words := w.take(p, id, 1); len(words) == 1 {
			heap = append(heap, victim{id, words[0]})
		}
	}
	for i := len(heap)/2 - 1; i >= 0; i-- {
		w.sinkVictim(p, heap, i)
	}
	for ; need > 0 && len(heap) > 0; need-- {
		first := heap[0]
		dropped += w.dropKeys(p, first.id, []uint64{first.word})
		if words := w.take(p, first.id, 1); len(words) == 1 {
			heap[0].word = words[0]
		} else {
			heap[0] = heap[len(heap)-1]
			heap = heap[:len(heap)-1]
		}
		w.sinkVictim(p, heap, 0)
	}
	return dropped
}

func (w *writer) sinkVictim(p *partition, heap []victim, i int) {
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(heap); c++ {
			if w.compareWords(p, heap[c].id, heap[c].word, heap[least].id, heap[least].word) < 0 {
				least = c
			}
		}
		if least == i {
			return
		}
		heap[i], heap[least] = heap[least], heap[i]
		i = least
	}
}

// compareWords orders the keys behind two log words by bytes.
func (w *writer) compareWords(p *partition, aSet uint32, a uint64, bSet uint32, b uint64) int {
	aLong, bLong := p.setFlags(aSet)&flagLong != 0, p.setFlags(bSet)&flagLong != 0
	if m := &w.s.x.mixer; !aLong && !bLong {
		return cmp.Compare(m.key(a), m.key(b))
	}
	return bytes.Compare(w.keyBytes(p, aSet, a, aLong), w.keyBytes(p, bSet, b, bLong))
}

func (w *writer) keyBytes(p *partition, set uint32, word uint64, long bool) []byte {
	if !long {
		return w.s.x.bytesOf(word)
	}
	if e, _ := w.entryIn(p, set, word, true); e != nil {
		return nameBytes(p.names.edit(e.extra))
	}
	return nil
}
