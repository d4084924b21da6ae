// SPDX-License-Identifier: Apache-2.0

package index

import (
	"fmt"
)

// Held is one membership, for tests.
type Held struct {
	Scope                 Scope
	Adapter, Key, Replica string
	SeenMillis            int64
	Tokens                int32
	Tier                  Tier
	Count                 int64
}

// Dump returns all memberships.
func (x *Index) Dump() (out []Held) {
	for _, s := range x.allScopes() {
		s.write.Lock()
		for _, p := range s.parts {
			p.each(func(key string, e *entry, long bool) {
				r := p.record(e.set)
				for i := range r.holders() {
					h := r.holder(i)
					st := &s.slots[h.slot()]
					if st.state == slotLive {
						out = append(out, Held{Scope: s.id, Adapter: p.adapter, Key: key, Replica: st.member.name,
							SeenMillis: h.seen(), Tokens: r.tokens(i, p.tokensOf(e, long)), Tier: h.tier(), Count: int64(r.count(i))})
					}
				}
			})
		}
		s.write.Unlock()
	}
	return out
}

// each calls f with all entries.
func (p *partition) each(f func(key string, e *entry, long bool)) {
	for _, long := range []bool{false, true} {
		p.table(long).each(func(e *entry) {
			if long {
				f(string(nameBytes(p.names.edit(e.extra))), e, true)
			} else {
				f(string(p.scope.x.bytesOf(e.key)), e, false)
			}
		})
	}
}

func (t *table) each(f func(*entry)) {
	for i, s := range t.owned {
		if i > 0 && t.owned[i-1] == s {
			continue
		}
		for j := range s.buckets {
			for k := range s.buckets[j].entries() {
				f(&s.buckets[j][k])
			}
		}
	}
}

// check returns the first broken invariant of a table that holds n words.
func (t *table) check(n int) error {
	found := 0
	for i, s := range t.owned {
		if i > 0 && t.owned[i-1] == s {
			continue
		}
		if &t.dir[i][0] != &s.buckets[0] || len(t.dir[i]) != len(s.buckets) {
			return fmt.Errorf("readers see another segment than the writer at %d", i)
		}
		used := 0
		for j := range s.buckets {
			b := &s.buckets[j]
			used += b.used()
			for k := range b {
				e := &b[k]
				if k >= b.used() && *e != (entry{}) {
					return fmt.Errorf("a used entry follows a free one")
				}
				for at := bucketOf(e.key, len(s.buckets)); e.set != 0 && at != j; at = s.after(at) {
					if !s.buckets[at].full() {
						return fmt.Errorf("a word cannot be reached from its home")
					}
				}
			}
		}
		if used != int(s.used) {
			return fmt.Errorf("a segment has %d entries, counted %d", used, s.used)
		}
		found += used
	}
	if found != n {
		return fmt.Errorf("%d entries, want %d", found, n)
	}
	return nil
}

// Check returns the first broken invariant of an index at rest.
func (x *Index) Check() error {
	for _, s := range x.allScopes() {
		s.write.Lock()
		err := s.check()
		s.write.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *scope) check() error {
	held := make([]int64, len(s.slots))
	memberships := int64(0)
	for _, p := range s.parts {
		if err := p.check(held); err != nil {
			return fmt.Errorf("partition %q: %w", p.adapter, err)
		}
		memberships += p.memberships
	}
	holding := 0
	for i, st := range s.slots {
		if st.held != held[i] || st.planned != held[i] {
			return fmt.Errorf("slot %d holds %d, counted %d, planned %d", i, held[i], st.held, st.planned)
		}
		if st.state == slotLive && st.held > 0 {
			holding++
		}
		if st.state != slotLive && st.state != slotFree {
			return fmt.Errorf("slot %d is left in state %d", i, st.state)
		}
	}
	if s.memberships != memberships || s.holding != holding {
		return fmt.Errorf("%d memberships and %d holding replicas, counted %d and %d", memberships, holding, s.memberships, s.holding)
	}
	return nil
}

func (p *partition) check(held []int64) error {
	keys := map[uint32]int{}
	memberships, distinct := int64(0), int64(0)
	owned := make([]int32, len(held))
	var err error
	w := newWriter()
	w.s = p.scope
	p.each(func(key string, e *entry, long bool) {
		keys[e.set]++
		distinct++
		r := p.record(e.set)
		if (r.flags()&flagLong != 0) != long {
			err = fmt.Errorf("set %d is of the wrong kind", e.set)
		}
		for i := range r.holders() {
			h := r.holder(i)
			held[h.slot()]++
			owned[h.slot()]++
			memberships++
		}
		k := keyRef{word: e.key}
		if long {
			k.name = nameBytes(p.names.edit(e.extra))
		}
		if p.lookup(&k) != e {
			err = fmt.Errorf("a key of set %d is not found", e.set)
		}
	})
	if err != nil {
		return err
	}
	if p.memberships != memberships || p.keys != distinct || p.planned.memberships != memberships || p.planned.keys != distinct || p.planned.hidden != 0 {
		return fmt.Errorf("%d memberships of %d keys, counted %d of %d, planned %+v", memberships, distinct, p.memberships, p.keys, p.planned)
	}
	for slot, o := range p.owners {
		if o.planned != owned[slot] || p.held[slot] != owned[slot] {
			return fmt.Errorf("slot %d holds %d here, counted %d", slot, owned[slot], p.held[slot])
		}
	}
	for _, t := range []*table{&p.short, &p.long, &p.intern} {
		n := 0
		t.each(func(*entry) { n++ })
		if err := t.check(n); err != nil {
			return err
		}
	}
	return p.checkSets(w, keys)
}

func (p *partition) checkSets(w *writer, keys map[uint32]int) error {
	queued := map[int]map[uint32]int64{}
	for _, q := range []*queue{&p.expiry, &p.evict, &p.fresh} {
		if q.idle {
			continue
		}
		queued[q.word] = map[uint32]int64{}
		for second, head := range q.heads {
			for id := head; id != 0; id = q.next(&p.sets, id) {
				queued[q.word][id] = second
			}
		}
		if len(queued[q.word]) != len(keys) {
			return fmt.Errorf("%d sets with keys, %d in queue %d", len(keys), len(queued[q.word]), q.word)
		}
	}
	words := 0
	for id, n := range keys {
		r := p.record(id)
		words += r.size()
		k := p.ranks(r)
		if int(r.keys()) != n || r.live() != k.live || k.live != r.holders() {
			return fmt.Errorf("set %d has %d keys and %d live holders, counted %d and %d", id, n, k.live, r.keys(), r.live())
		}
		if queued[wordExpiry][id] > k.expiry ||
			!p.evict.idle && queued[wordCap][id] != k.evict ||
			!p.fresh.idle && queued[wordQuota][id] != k.fresh {
			return fmt.Errorf("set %d is out of line: %+v", id, k)
		}
		if got := len(w.take(p, id, maxShared)); got != n {
			return fmt.Errorf("the log of set %d gives %d of %d keys", id, got, n)
		}
		for i := range r.holders() {
			found := false
			for _, other := range p.owners[r.holder(i).slot()].sets {
				found = found || other == id
			}
			if !found {
				return fmt.Errorf("slot %d does not know set %d", r.holder(i).slot(), id)
			}
		}
	}
	if len(keys) > 0 && p.sets.live < words {
		return fmt.Errorf("sets take %d words, accounted %d", words, p.sets.live)
	}
	return nil
}

// Names returns how many records of names the directory keeps.
func (x *Index) Names() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	n := len(x.scopes) + len(x.homes) + len(x.tenants) + len(x.models)
	for _, h := range x.homes {
		n += len(h.replicas)
	}
	return n
}

// CountAfter is the LFU count of a membership with so many credits in each
// half-life.
func CountAfter(halfLife int64, credits ...int) (count uint32) {
	f := fading{halfLife: halfLife}
	f.start.Store(1)
	for i, n := range credits {
		for range n {
			count = f.add(count, f.epoch(1+int64(i)*halfLife))
		}
	}
	return count
}
