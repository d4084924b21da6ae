// SPDX-License-Identifier: Apache-2.0

package index

import (
	"math"
	"slices"
)

// matcher is the scratch of one match: the replicas whose runs go on, sorted
// by slot like the holders of a set. A run is kept as a holder that stands for
// all its memberships so far, with the coldest tier and the oldest stored
// time: where slot and tier agree, one comparison of words brings it up to
// date.
type matcher struct {
	scope    *scope
	part     *partition
	now, ttl int64

	runs []holder
	// seeds are the runs' slots as they began; a seed's place is its match's.
	seeds []uint16
	// oldest is what a membership must not be older than to be fresh, unless
	// its replica has had a heartbeat since.
	oldest holder
	// sets are those of the blocks from a window on.
	sets [lastWindow]uint32
}

// MatchChain appends the leading runs of a chain to dst, one for each replica
// that freshly holds its first key, in the order of slots. counts gives each
// block's own tokens. Runs without tokens are left out; a key equal to the one
// before ends all runs.
//
// Keys with equal holders share one set, so that a block costs one look into
// the table, and holders cost something only where the set changes.
func (v *View) MatchChain(dst []Match, keys Keys, counts Tokens) []Match {
	v.keys, v.credits = keys, nil
	if v.part == nil || keys.Len() == 0 {
		return dst
	}
	m := v.x.matches.Get().(*matcher)
	m.scope, m.part, m.now, m.ttl = v.scope, v.part, v.now, v.ttl
	base := len(dst)
	dst = m.chain(dst, keys, counts)
	m.scope, m.part = nil, nil
	v.x.matches.Put(m)
	return withTokens(dst, base)
}

// withTokens drops matches without tokens.
func withTokens(dst []Match, base int) []Match {
	none := func(d Match) bool { return d.Tokens <= 0 }
	first := slices.IndexFunc(dst[base:], none)
	if first < 0 {
		return dst
	}
	return dst[:base+first+len(slices.DeleteFunc(dst[base+first:], none))]
}

func (m *matcher) chain(dst []Match, keys Keys, counts Tokens) []Match {
	base, p := len(dst), m.part
	m.runs = m.runs[:0]
	set, sum, step := uint32(0), int64(0), int64(counts.Step)
	from := 0
	for window := firstWindow; ; window = min(2*window, lastWindow) {
		window = min(window, keys.Len()-from)
		found := m.resolve(p, keys, from, window)
		for i, next := range m.sets[:found] {
			if next != set {
				r := record(p.sets.words(next))
				if set == 0 {
					dst = m.seed(dst, r)
				} else {
					m.intersect(dst[base:], r.list(), int32(from+i), sum)
				}
				if len(m.runs) == 0 {
					return dst
				}
				set = next
			}
			if len(counts.Counts) > 0 {
				step = int64(counts.Counts[from+i])
			}
			sum += step
		}
		from += found
		if found < window || from == keys.Len() {
			break
		}
	}
	place := 0
	for _, run := range m.runs {
		for m.seeds[place] != run.slot() {
			place++
		}
		m.finish(&dst[base+place], run, int32(from), sum)
	}
	return dst
}

// Windows of resolve, in keys: most chains miss early, long ones profit from
// reading far ahead.
const (
	firstWindow = 8
	lastWindow  = 64
	// nearSegments is the size up to which a table is assumed to be cached.
	nearSegments = 4
)

// resolve fills sets with those of the next keys, up to the first that is
// absent or repeats the one before it, and returns how many. The places of
// all keys are asked for first, so that their misses overlap.
func (m *matcher) resolve(p *partition, keys Keys, from, window int) (found int) {
	if keys.Long != nil {
		return m.resolveLong(p, keys.Long, from, window)
	}
	words, t := keys.Short[from:from+window], &p.short
	if len(t.dir) > nearSegments {
		for _, word := range words {
			t.ready(t.hash(word))
		}
	}
	for i, word := range words {
		if i+from > 0 && word == keys.Short[from+i-1] {
			return i
		}
		e := t.find(t.hash(word), word)
		if e == nil {
			return i
		}
		m.sets[i] = e.set
	}
	return len(words)
}

func (m *matcher) resolveLong(p *partition, keys [][]byte, from, window int) int {
	all := Keys{Long: keys}
	for i := range window {
		if at := from + i; at > 0 && string(keys[at]) == string(keys[at-1]) {
			return i
		}
		k, ok := p.ref(all, from+i)
		if !ok {
			return i
		}
		e := p.lookup(&k)
		if e == nil {
			return i
		}
		m.sets[i] = e.set
	}
	return window
}

// seed starts a run for every fresh holder of the first key and makes room
// for their matches, which end fills in.
func (m *matcher) seed(dst []Match, r record) []Match {
	m.runs, m.seeds = m.runs[:0], m.seeds[:0]
	m.oldest = holder(max(m.now-m.ttl+1, 0))
	for _, w := range r.list() {
		h := holder(w)
		st := &m.scope.slots[h.slot()]
		if st.state != slotLive || st.member.silent || !m.fresh(h) {
			continue
		}
		m.runs = append(m.runs, h)
		m.seeds = append(m.seeds, h.slot())
	}
	dst = slices.Grow(dst, len(m.runs))
	return dst[:len(dst)+len(m.runs)]
}

// fresh says whether a membership counts.
func (m *matcher) fresh(h holder) bool {
	return h&seenMask >= m.oldest || m.now-m.scope.slots[h.slot()].member.beat.Load() < m.ttl
}

// intersect ends the runs of replicas that do not freshly hold block i.
func (m *matcher) intersect(matches []Match, list []uint64, i int32, sum int64) {
	n := m.align(list)
	if n == len(m.runs) {
		return
	}
	runs := m.runs
	j, kept := n, n
	for n < len(runs) && j < len(list) {
		run, h := runs[n], holder(list[j])
		switch {
		case h>>slotShift < run>>slotShift:
			j++
			continue
		case h>>slotShift == run>>slotShift && m.fresh(h):
			runs[kept] = packHolder(run.slot(), max(run.tier(), h.tier()), min(run.seen(), h.seen()))
			j++
			kept++
		default:
			m.end(matches, run, i, sum)
		}
		n++
		same := m.shift(runs[n:], list[j:], kept)
		n, j, kept = n+same, j+same, kept+same
	}
	for ; n < len(runs); n++ {
		m.end(matches, runs[n], i, sum)
	}
	m.runs = runs[:kept]
}

// shift is align for runs that move down to a place.
func (m *matcher) shift(runs []holder, list []uint64, to int) int {
	list = list[:min(len(list), len(runs))]
	out := m.runs[to:][:len(list)]
	runs = runs[:len(list)]
	for n, word := range list {
		h, run := holder(word), runs[n]
		if (h^run)>>seenBits != 0 || h&seenMask < m.oldest {
			return n
		}
		out[n] = min(run, h)
	}
	return len(list)
}

// align brings runs up to date as long as the holders of a set are the same
// replicas in the same tiers, and returns how many. Mostly that is all.
func (m *matcher) align(list []uint64) int {
	runs := m.runs
	if len(list) > len(runs) {
		list = list[:len(runs)]
	}
	runs = runs[:len(list)]
	for n, word := range list {
		h, run := holder(word), runs[n]
		if (h^run)>>seenBits != 0 || h&seenMask < m.oldest {
			return n
		}
		if h < run {
			runs[n] = h
		}
	}
	return len(list)
}

// end finishes a run before the others.
func (m *matcher) end(matches []Match, run holder, blocks int32, sum int64) {
	place, _ := slices.BinarySearch(m.seeds, run.slot())
	m.finish(&matches[place], run, blocks, sum)
}

// finish writes the match of a run with a length and its tokens.
func (m *matcher) finish(d *Match, run holder, blocks int32, sum int64) {
	member := m.scope.slots[run.slot()].member
	d.Replica = member.name
	d.Slot = uint32(run.slot())
	d.Blocks = blocks
	d.Tokens = int32(min(max(sum, 0), math.MaxInt32))
	d.LastSeenMillis = max(run.seen(), member.beat.Load())
	d.Tier = run.tier()
}

// MatchExact appends the fresh holders of the first key to dst, in the order
// of slots.
func (v *View) MatchExact(dst []Match, keys Keys) []Match {
	v.keys, v.credits = keys, nil
	if v.part == nil || keys.Len() == 0 {
		return dst
	}
	k, ok := v.part.ref(keys, 0)
	if !ok {
		return dst
	}
	e := v.part.lookup(&k)
	if e == nil {
		return dst
	}
	r := record(v.part.sets.words(e.set))
	plain := v.part.tokensOf(e, k.long())
	for i, w := range r.list() {
		h := holder(w)
		st := &v.scope.slots[h.slot()]
		if st.state != slotLive || st.member.silent {
			continue
		}
		at := max(h.seen(), st.member.beat.Load())
		if v.now-at >= v.ttl {
			continue
		}
		dst = append(dst, Match{
			Replica: st.member.name, Slot: uint32(h.slot()), Blocks: 1,
			Tokens: r.tokens(i, plain), LastSeenMillis: at, Tier: h.tier(),
		})
	}
	return dst
}
