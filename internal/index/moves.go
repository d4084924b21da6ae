// SPDX-License-Identifier: Apache-2.0

package index

import "slices"

// This file is what stores and removals plan. Neighbours of a chain mostly
// stand in one set and move to one: what becomes of them is found out once for
// a run of keys.

// outcome is what a store did to a membership.
type outcome uint8

const (
	stored outcome = iota
	refreshed
	movedTier
	older
)

func (a *Applied) note(o outcome, n int) {
	switch o {
	case stored:
		a.Stored += n
	case refreshed:
		a.Refreshed += n
	case movedTier:
		a.MovedTier += n
	case older:
		a.Older += n
	}
}

// storeAll plans that a holder takes keys.
func (w *writer) storeAll(a *Applied, p *partition, h holder, op *Op) {
	added := 0
	told := w.feed != nil && w.s.slots[h.slot()].counts()
	for from := 0; from < op.Keys.Len(); {
		if len(w.list) >= maxSection {
			w.count(p, h.slot(), added)
			added = 0
			w.commit("apply")
		}
		lo, hi, next := w.claim(p, op.Keys, from)
		for first := from; lo < hi; {
			n, o := w.storeRun(p, h, lo, hi, &op.Tokens, first)
			a.note(o, n)
			if o == stored {
				added += n
				for i := lo; told && i < lo+n; i++ {
					w.tell(ChangeAdded, p, h.slot(), &w.list[i])
				}
			}
			lo, first = lo+n, first+n
		}
		from = next
	}
	w.count(p, h.slot(), added)
}

// storeRun plans what becomes of leading edits that go the same way, and
// returns how many. tokens counts from first on.
func (w *writer) storeRun(p *partition, h holder, lo, hi int, tokens *Tokens, first int) (n int, o outcome) {
	head := &w.list[lo]
	from := head.set
	to, plain, o := w.withHolder(p, head, h, tokens.At(first))
	n = w.alike(p, lo, hi, tokens, first)
	if o == older {
		return n, o
	}
	n = p.fitting(from, to, n)
	w.moveRun(lo, lo+n, to)
	w.retoken(head, plain)
	if from == 0 {
		for i := 1; i < n; i++ {
			w.list[lo+i].tokens = tokens.At(first + i)
		}
	}
	return n, o
}

// alike returns how many leading edits have the set of the first and, unless
// they are new, the token counts of the report.
func (w *writer) alike(p *partition, lo, hi int, tokens *Tokens, first int) (n int) {
	head := w.list[lo]
	n = 1
	if head.set == 0 {
		for lo+n < hi && w.list[lo+n].set == 0 && w.list[lo+n].long == head.long {
			n++
		}
		return n
	}
	if head.tokens != tokens.At(first) || p.setFlags(head.set)&flagTokens != 0 {
		return 1
	}
	for lo+n < hi && w.list[lo+n].set == head.set && w.list[lo+n].tokens == tokens.At(first+n) {
		n++
	}
	return n
}

func (p *partition) setFlags(id uint32) int {
	if id == 0 {
		return 0
	}
	return p.record(id).flags()
}

// withHolder returns the set that a key goes to when a holder reports it, and
// the token count of its entry.
func (w *writer) withHolder(p *partition, e *edit, h holder, tokens int32) (to uint32, plain int32, o outcome) {
	hs := p.decode(w.hs[:0], e.set, e.tokens)
	at, held := slices.BinarySearchFunc(hs, h.slot(), func(x holding, slot uint16) int {
		return int(x.slot()) - int(slot)
	})
	fresh := holding{holder: h, tokens: tokens}
	switch {
	case !held:
		hs = slices.Insert(hs, at, fresh)
	case h.seen() < hs[at].seen():
		w.hs = hs
		return e.set, e.tokens, older
	default:
		o = refreshed
		if hs[at].tier() != h.tier() {
			o = movedTier
		}
		fresh.count = hs[at].count
		hs[at] = fresh
	}
	w.hs = hs
	return p.setOf(hs, e.long), hs[0].tokens, o
}

// removeAll plans that a slot loses keys and returns how many it held.
func (w *writer) removeAll(p *partition, slot uint16, keys Keys) (n int) {
	removed := 0
	for from := 0; from < keys.Len(); {
		if len(w.list) >= maxSection {
			w.count(p, slot, -removed)
			n, removed = n+removed, 0
			w.commit("evict")
		}
		lo, hi, next := w.claim(p, keys, from)
		for lo < hi {
			run, held := w.removeRun(p, slot, lo, hi)
			if held {
				removed += run
				for i := lo; w.feed != nil && i < lo+run; i++ {
					w.tell(ChangeRemoved, p, slot, &w.list[i])
				}
			}
			lo += run
		}
		from = next
	}
	w.count(p, slot, -removed)
	return n + removed
}

// removeRun plans that leading edits of one set lose a slot, if they have it.
func (w *writer) removeRun(p *partition, slot uint16, lo, hi int) (n int, held bool) {
	head := w.list[lo]
	for n = 1; lo+n < hi && w.list[lo+n].set == head.set && (head.set != 0 || w.list[lo+n].long == head.long); n++ {
	}
	if head.set == 0 || p.record(head.set).find(slot) < 0 {
		return n, false
	}
	return w.withoutHolders(p, lo, lo+n, func(h holding) bool { return h.slot() == slot }), true
}

// withoutHolders plans that leading edits of one set lose the holders that
// drop names, and returns how many.
func (w *writer) withoutHolders(p *partition, lo, hi int, drop func(holding) bool) (n int) {
	from, mixed := w.list[lo].set, p.setFlags(w.list[lo].set)&flagTokens != 0
	hs := slices.DeleteFunc(p.decode(w.hs[:0], from, w.list[lo].tokens), drop)
	w.hs = hs
	to := p.setOf(hs, w.list[lo].long)
	n = p.fitting(from, to, hi-lo)
	w.moveRun(lo, lo+n, to)
	for i := lo; mixed && len(hs) > 0 && i < lo+n; i++ {
		w.retoken(&w.list[i], hs[0].tokens)
	}
	return n
}
