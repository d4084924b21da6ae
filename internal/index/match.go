// SPDX-License-Identifier: Apache-2.0

package index

import "math"

// matcher is the scratch of one match: the replicas whose runs go on, sorted
// by slot like the holders of a set. A run is kept as a holder that stands for
// all its memberships so far, with the coldest tier and the oldest stored
// time: where slot and tier agree, one comparison of words brings it up to
// date.
type matcher struct {
	runs   []holder
	places []int32 // of runs: their place among the matches
	limits []limit // by place
	warm   uint64
}

// limit is what a replica's session does for the age of its memberships.
type limit struct {
	floor  int64  // the last heartbeat
	oldest holder // a membership stored before is not fresh
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
	base := len(dst)
	dst = m.chain(v, dst, keys, counts)
	v.x.matches.Put(m)
	return withTokens(dst, base)
}

// withTokens drops matches without tokens.
func withTokens(dst []Match, base int) []Match {
	kept := dst[:base]
	for _, d := range dst[base:] {
		if d.Tokens > 0 {
			kept = append(kept, d)
		}
	}
	return kept
}

func (m *matcher) chain(v *View, dst []Match, keys Keys, counts Tokens) []Match {
	p, n, base := v.part, keys.Len(), len(dst)
	set := uint32(0)
	m.runs = m.runs[:0]
	sum, step := int64(0), int64(counts.Step)
	ahead, window := 0, firstWindow
	i := 0
	for ; i < n; i++ {
		if i == ahead {
			ahead = m.touch(p, keys, i, window)
			window = min(2*window, lastWindow)
		}
		if i > 0 && keys.repeats(i) {
			break
		}
		e := p.entryAt(keys, i)
		if e == nil {
			break
		}
		if e.set != set {
			r := record(p.sets.words(e.set))
			if set == 0 {
				dst = m.seed(v, dst, r)
			} else {
				m.intersect(dst[base:], r.list(), int32(i), sum)
			}
			if len(m.runs) == 0 {
				break
			}
			set = e.set
		}
		if len(counts.Counts) > 0 {
			step = int64(counts.Counts[i])
		}
		sum += step
	}
	for j := range m.runs {
		m.finish(dst[base:], j, int32(i), sum)
	}
	return dst
}

// repeats says whether a key equals the one before it.
func (k Keys) repeats(i int) bool {
	if k.Long == nil {
		return k.Short[i] == k.Short[i-1]
	}
	return string(k.Long[i]) == string(k.Long[i-1])
}

// entryAt returns the entry of key i, or nil.
func (p *partition) entryAt(keys Keys, i int) *entry {
	if keys.Long == nil {
		word := keys.Short[i]
		return p.short.find(p.short.hash(word), word)
	}
	k, ok := p.ref(keys, i)
	if !ok {
		return nil
	}
	return p.lookup(k)
}

// Windows of touch, in keys: most chains miss early, long ones profit from
// reading far ahead.
const (
	firstWindow = 8
	lastWindow  = 64
	// nearSegments is the size up to which a table is assumed to be cached.
	nearSegments = 4
)

// touch fetches the places of the next keys from memory, all at once, and
// returns where that ends.
func (m *matcher) touch(p *partition, keys Keys, from, window int) int {
	if keys.Long != nil || len(p.short.dir) <= nearSegments {
		return math.MaxInt
	}
	to := min(from+window, len(keys.Short))
	sum := uint64(0)
	for _, word := range keys.Short[from:to] {
		sum += p.short.touch(p.short.hash(word))
	}
	m.warm += sum
	return to
}

// seed starts a run for every fresh holder of the first key.
func (m *matcher) seed(v *View, dst []Match, r record) []Match {
	m.runs, m.places, m.limits = m.runs[:0], m.places[:0], m.limits[:0]
	for _, w := range r.list() {
		h := holder(w)
		st := &v.scope.slots[h.slot()]
		if st.state != slotLive || st.member.silent {
			continue
		}
		l := limit{floor: st.member.beat.Load()}
		if v.now-l.floor >= v.ttl {
			l.oldest = holder(max(v.now-v.ttl+1, 0))
		}
		if h&seenMask < l.oldest {
			continue
		}
		m.places = append(m.places, int32(len(m.runs)))
		m.runs = append(m.runs, h)
		m.limits = append(m.limits, l)
		dst = append(dst, Match{Replica: st.member.name, Slot: uint32(h.slot())})
	}
	return dst
}

// intersect ends the runs of replicas that do not freshly hold block i.
func (m *matcher) intersect(matches []Match, list []uint64, i int32, sum int64) {
	runs, kept, j := m.runs, 0, 0
	for n, run := range runs {
		for j < len(list) && holder(list[j])>>slotShift < run>>slotShift {
			j++
		}
		if j == len(list) {
			for ; n < len(runs); n++ {
				m.finish(matches, n, i, sum)
			}
			break
		}
		h := holder(list[j])
		if h != run {
			switch merged, ok := m.merge(run, h, m.places[n]); {
			case !ok:
				m.finish(matches, n, i, sum)
				continue
			default:
				run = merged
			}
		}
		if kept != n {
			m.places[kept] = m.places[n]
		}
		runs[kept] = run
		kept++
	}
	m.runs = runs[:kept]
}

// merge adds a membership to a run; ok is false when it ends the run.
func (m *matcher) merge(run, h holder, place int32) (merged holder, ok bool) {
	switch {
	case (h^run)>>seenBits == 0: // same slot and tier
		merged = min(run, h)
	case h>>slotShift != run>>slotShift:
		return run, false
	default:
		merged = packHolder(run.slot(), max(run.tier(), h.tier()), min(run.seen(), h.seen()))
	}
	return merged, merged&seenMask >= m.limits[place].oldest
}

// finish writes run n with a length and its tokens.
func (m *matcher) finish(matches []Match, n int, blocks int32, sum int64) {
	place := m.places[n]
	d := &matches[place]
	d.Blocks = blocks
	d.Tokens = int32(min(max(sum, 0), math.MaxInt32))
	d.LastSeenMillis = max(m.runs[n].seen(), m.limits[place].floor)
	d.Tier = m.runs[n].tier()
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
	e := v.part.lookup(k)
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
