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
	millis = math.MaxInt64
	for len(ids) == 0 {
		head, second, ok := p.fresh.first()
		if !ok || second == noSecond {
			return millis, nil
		}
		var line []uint32
		for id := head; id != 0; id = p.fresh.next(&p.sets, id) {
			line = append(line, id)
		}
		for _, id := range line {
			r := p.record(id)
			if now := p.ranks(r).fresh; now != second {
				p.requeue(&p.fresh, id, now)
				continue
			}
			at := p.newest(r)
			if at < millis {
				millis, ids = at, ids[:0]
			}
			if at == millis {
				ids = append(ids, id)
			}
		}
	}
	return millis, ids
}

// newest returns the freshest time of a set's live holders.
func (p *partition) newest(r record) (millis int64) {
	for _, w := range r.list() {
		if h := holder(w); p.scope.slots[h.slot()].counts() {
			millis = max(millis, h.seen())
		}
	}
	return millis
}

// dropOldest drops up to need keys whose freshest time is the given one and
// returns how many.
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
		dropped = w.dropFirst(p, ids, min(need, maxSection))
	} else {
		for _, id := range ids {
			dropped += w.dropKeys(p, id, w.take(p, id, maxShared))
			w.full("quota")
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

// dropFirst drops the first keys by bytes of several sets. Their logs are
// sorted once, backwards, so that repeated calls find their victims at the
// end.
func (w *writer) dropFirst(p *partition, ids []uint32, need int) (dropped int64) {
	for _, id := range ids {
		w.sortLog(p, id)
	}
	for range need {
		best, bestWord := uint32(0), uint64(0)
		for _, id := range ids {
			if words := w.take(p, id, 1); len(words) == 1 &&
				(best == 0 || w.compareWords(p, id, words[0], best, bestWord) < 0) {
				best, bestWord = id, words[0]
			}
		}
		if best == 0 {
			break
		}
		dropped += w.dropKeys(p, best, []uint64{bestWord})
	}
	return dropped
}

// sortLog sorts a log so that the first key by bytes comes last.
func (w *writer) sortLog(p *partition, id uint32) {
	r := p.record(id)
	if r.marked(markSorted) {
		return
	}
	w.tidyLog(p, id)
	start, end := r.span()
	block, _ := r.log()
	slices.SortFunc(p.logs.edit(block)[start:end], func(a, b uint64) int { return w.compareWords(p, id, b, id, a) })
	r.mark(markSorted)
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
