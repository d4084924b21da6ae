// SPDX-License-Identifier: Apache-2.0

package index

import "slices"

// edit is one key of the running write: what its table says of it, and what is
// planned.
type edit struct {
	word    uint64
	was     uint32 // set in the table, 0 = absent
	set     uint32 // planned
	tokens  int32  // planned for the entry
	name    uint32 // block of a long key, else 0
	part    uint16 // place in writer.parts
	long    bool
	changed bool
	room    bool // the table has room for it
}

// edits are the keys of the running write, each once, in the order in which
// they were claimed. Keys are claimed in windows: all places of a window are
// asked for before the first is read, so that their misses overlap.
type edits struct {
	list  []edit
	parts []*partition // that edits belong to
	// index finds an edit: word -> round:32 | edit+1:32.
	index []uint64
	round uint32
	ahead [claimAhead]uint64 // words of the window
}

// claimAhead is the most keys of a window.
const claimAhead = 64

func newEdits() edits { return edits{index: make([]uint64, 4*claimAhead), round: 1} }

// reset forgets all edits.
func (es *edits) reset() {
	for _, p := range es.parts {
		p.part = 0
	}
	clear(es.parts)
	es.list, es.parts = es.list[:0], es.parts[:0]
	if es.round++; es.round == 0 {
		clear(es.index)
		es.round = 1
	}
}

// part returns the place of a partition in parts.
func (es *edits) partOf(p *partition) uint16 {
	if p.part == 0 {
		es.parts = append(es.parts, p)
		p.part = uint32(len(es.parts))
	}
	return uint16(p.part - 1)
}

// reserve makes room in the index for a number of edits more.
func (es *edits) reserve(n int) {
	es.list = slices.Grow(es.list, n)
	size := len(es.index)
	for size < 2*(len(es.list)+n) {
		size *= 2
	}
	if size == len(es.index) {
		return
	}
	es.index = make([]uint64, size)
	for i := range es.list {
		at, _ := es.probe(es.list[i].word, func(*edit) bool { return false })
		es.note(at, i)
	}
}

func (es *edits) note(at, i int) { es.index[at] = uint64(es.round)<<32 | uint64(i+1) }

// probe returns the first edit of a word that is accepted, or -1 and the place
// of the index where one belongs.
func (es *edits) probe(word uint64, accept func(*edit) bool) (at, found int) {
	mask := uint64(len(es.index) - 1)
	for i := word >> 8 & mask; ; i = (i + 1) & mask {
		v := es.index[i]
		if uint32(v>>32) != es.round {
			return int(i), -1
		}
		if e := &es.list[uint32(v)-1]; e.word == word && accept(e) {
			return int(i), int(uint32(v) - 1)
		}
	}
}

// claim makes edits for keys of a list from a place on. lo and hi are their
// range, next is the key behind them. A key that has an edit already comes
// alone, as does one of impossible length, which has none.
func (w *writer) claim(p *partition, keys Keys, from int) (lo, hi, next int) {
	to := min(from+claimAhead, keys.Len(), from+maxSection-len(w.list))
	if keys.Long != nil {
		lo, hi = w.claimLong(p, keys.Long[from:max(to, from+1)])
		return lo, hi, from + max(hi-lo, 1)
	}
	words := w.ahead[:max(to-from, 1)]
	for i, key := range keys.Short[from : from+len(words)] {
		words[i] = p.scope.x.mixer.word(key)
	}
	lo, hi = w.claimWords(p, words)
	return lo, hi, from + hi - lo
}

// claimWords makes edits for words of keys of eight bytes. It ends before the
// first that has one already, or with it when it is the first.
func (w *writer) claimWords(p *partition, words []uint64) (lo, hi int) {
	t := &p.short
	for _, word := range words {
		t.ready(word)
	}
	w.reserve(len(words))
	part, lo := w.partOf(p), len(w.list)
	mask := uint64(len(w.index) - 1)
	for _, word := range words {
		i := word >> 8 & mask
		for ; uint32(w.index[i]>>32) == w.round; i = (i + 1) & mask {
			at := int(uint32(w.index[i]) - 1)
			if e := &w.list[at]; e.word != word || e.part != part || e.long {
				continue
			}
			if len(w.list) == lo {
				return at, at + 1
			}
			return lo, len(w.list)
		}
		n := len(w.list)
		w.list = w.list[:n+1]
		w.note(int(i), n)
		fresh := edit{word: word, part: part}
		if e := t.find(word); e != nil {
			fresh.was, fresh.set, fresh.tokens = e.set, e.set, int32(e.extra)
		}
		w.list[n] = fresh
	}
	return lo, len(w.list)
}

// claimLong is claimWords for keys that may have other lengths.
func (w *writer) claimLong(p *partition, keys [][]byte) (lo, hi int) {
	w.reserve(len(keys))
	part, lo := w.partOf(p), len(w.list)
	for i, name := range keys {
		k, ok := p.scope.x.ref(Keys{Long: keys}, i)
		if !ok {
			break
		}
		at, found := w.probe(k.word, func(e *edit) bool {
			return e.part == part && e.long == k.long() && (!e.long || nameEquals(p.names.edit(e.name), name))
		})
		if found >= 0 && len(w.list) == lo {
			return found, found + 1
		}
		if found >= 0 {
			break
		}
		w.note(at, len(w.list))
		w.list = append(w.list, p.editOf(&k, part))
	}
	return lo, len(w.list)
}

// editOf returns a fresh edit of a key. A long key that is not in the table
// gets a block, which is given back unless the key is stored.
func (p *partition) editOf(k *keyRef, part uint16) edit {
	fresh := edit{word: k.word, part: part, long: k.long()}
	if e := p.lookup(k); e != nil {
		fresh.was, fresh.set, fresh.tokens = e.set, e.set, p.tokensOf(e, k.long())
		if k.long() {
			fresh.name = e.extra
		}
	} else if k.long() {
		fresh.name = p.names.alloc(nameWords(len(k.name)))
		putName(p.names.edit(fresh.name), k.name)
	}
	return fresh
}

// claimIn makes an edit for the key of a log's word that is in a set and
// stays there; found is -1 when there is none.
func (w *writer) claimIn(p *partition, id uint32, word uint64, long bool) (found int) {
	e, at := w.entryIn(p, id, word, long)
	if e == nil || at >= 0 {
		return at
	}
	w.reserve(1)
	place, _ := w.probe(word, func(*edit) bool { return false })
	w.note(place, len(w.list))
	fresh := edit{word: word, was: e.set, set: e.set, tokens: p.tokensOf(e, long), part: w.partOf(p), long: long}
	if long {
		fresh.name = e.extra
	}
	w.list = append(w.list, fresh)
	return len(w.list) - 1
}

// entryIn returns the committed entry of a log's word whose key is in a set
// and stays there, and its edit or -1; nil when there is none.
func (w *writer) entryIn(p *partition, id uint32, word uint64, long bool) (e *entry, at int) {
	at = -1
	e = p.table(long).findWhere(word, func(e *entry) bool {
		if p.part != 0 {
			_, at = w.probe(word, func(d *edit) bool {
				return uint32(d.part) == p.part-1 && d.long == long && (!long || d.name == e.extra)
			})
		}
		if at >= 0 {
			return w.list[at].set == id
		}
		return e.set == id
	})
	return e, at
}
