// SPDX-License-Identifier: Apache-2.0

package index

import "slices"

// run is how far one slot is credited.
type creditRun struct {
	slot   uint16
	blocks int32
}

// credit adds one access to each membership in the runs of matches.
func (s *scope) credit(adapter string, keys Keys, matches []Match, now int64) {
	s.write.Lock()
	defer s.write.Unlock()
	p := s.parts[adapter]
	if s.closed || p == nil {
		return
	}
	var runs []creditRun
	blocks := int32(0)
	for _, d := range matches {
		if m := s.members[d.Replica]; m != nil {
			runs = append(runs, creditRun{m.slot, d.Blocks})
			blocks = max(blocks, d.Blocks)
		}
	}
	slices.SortFunc(runs, func(a, b creditRun) int { return int(a.slot) - int(b.slot) })
	w := s.x.begin(s)
	defer s.x.end(w)
	epoch := s.x.fading.credited(now)
	s.fadeBy(s.x.fading.next(now))
	keys = keys.first(int(blocks))
	for from := 0; from < keys.Len(); {
		lo, hi, next := w.claim(p, keys, from)
		for first := from; lo < hi; {
			n := w.creditRun(p, lo, hi, first, runs, epoch)
			lo, first = lo+n, first+n
		}
		from = next
		if w.full("apply") {
			w.yield()
		}
	}
	w.commit("apply")
}

// first returns the first keys of a list, at most n.
func (k Keys) first(n int) Keys {
	if k.Long != nil {
		return Keys{Long: k.Long[:min(n, len(k.Long))]}
	}
	return Keys{Short: k.Short[:min(n, len(k.Short))]}
}

// creditRun plans the credits of leading edits, the first of which is of block
// i, that have one set and the same runs over them. It returns how many.
func (w *writer) creditRun(p *partition, lo, hi, i int, runs []creditRun, epoch int64) (n int) {
	head := w.list[lo]
	ends := func(block int) bool {
		return slices.ContainsFunc(runs, func(r creditRun) bool { return int(r.blocks) == block })
	}
	for n = 1; lo+n < hi && w.list[lo+n].set == head.set && !ends(i+n); n++ {
	}
	if head.set == 0 {
		return n
	}
	hs := p.decode(w.hs[:0], head.set, head.tokens)
	w.hs = hs
	for j := range hs {
		at, found := slices.BinarySearchFunc(runs, hs[j].slot(), func(r creditRun, slot uint16) int {
			return int(r.slot) - int(slot)
		})
		if found && int(runs[at].blocks) > i {
			hs[j].count = w.s.x.fading.add(hs[j].count, epoch)
		}
	}
	if len(hs) == 0 {
		return n
	}
	to := p.setOf(hs, head.long)
	n = p.fitting(head.set, to, n)
	w.moveRun(lo, lo+n, to)
	if p.setFlags(head.set)&flagTokens != 0 {
		for j := lo; j < lo+n; j++ {
			w.retoken(&w.list[j], hs[0].tokens)
		}
	}
	return n
}
