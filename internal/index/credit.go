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
	for i := range min(int(blocks), keys.Len()) {
		w.creditKey(p, keys, i, runs, epoch)
		if w.full("apply") {
			w.yield()
		}
	}
	w.commit("apply")
}

// creditKey plans the credits of key i. The memo holds while the same runs go
// on.
func (w *writer) creditKey(p *partition, keys Keys, i int, runs []creditRun, epoch int64) {
	k, ok := p.ref(keys, i)
	if !ok {
		return
	}
	c := w.current(p, &k)
	if c.set == 0 {
		return
	}
	ends := slices.ContainsFunc(runs, func(r creditRun) bool { return int(r.blocks) == i })
	if m := &w.memo; !ends && m.valid && m.from == c.set && p.record(m.to).keys() < maxShared {
		w.move(p, &k, &c, m.to, c.tokens)
		return
	}
	hs := p.decode(w.hs[:0], c.set, c.tokens)
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
		return
	}
	to := p.setOf(hs, k.long())
	if p.setFlags(c.set)&flagTokens == 0 {
		w.memo = memo{p: p, valid: true, from: c.set, to: to}
	}
	w.move(p, &k, &c, to, hs[0].tokens)
}
