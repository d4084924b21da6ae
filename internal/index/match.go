// SPDX-License-Identifier: Apache-2.0

package index

import "math"

// runner is a replica whose run goes on. Runners are sorted by slot, like the
// holders of a set.
type runner struct {
	holder holder // slot, coldest tier and oldest effective time of the run
	floor  int64  // its session's last heartbeat
	match  int32  // its place in the matches
}

// matcher is the scratch of one match.
type matcher struct {
	runners []runner
	warm    uint64
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
	var set uint32
	var last keyRef
	sum, step := int64(0), int64(counts.Step)
	ahead, window := 0, firstWindow
	i := 0
	for ; i < n; i++ {
		if i == ahead {
			ahead = m.touch(p, keys, i, window)
			window = min(2*window, lastWindow)
		}
		k, ok := p.ref(keys, i)
		if !ok || i > 0 && sameKey(k, last) {
			break
		}
		last = k
		e := p.lookup(k)
		if e == nil {
			break
		}
		if e.set != set {
			r := record(p.sets.words(e.set))
			if set == 0 {
				dst = m.seed(v, dst, r)
			} else {
				m.intersect(v, dst[base:], r, int32(i), sum)
			}
			if len(m.runners) == 0 {
				break
			}
			set = e.set
		}
		if len(counts.Counts) > 0 {
			step = int64(counts.Counts[i])
		}
		sum += step
	}
	for j := range m.runners {
		m.finish(dst[base:], &m.runners[j], int32(i), sum)
	}
	m.runners = m.runners[:0]
	return dst
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

func sameKey(a, b keyRef) bool {
	return a.word == b.word && a.long() == b.long() && string(a.name) == string(b.name)
}

// seed starts a run for every fresh holder of the first key.
func (m *matcher) seed(v *View, dst []Match, r record) []Match {
	m.runners = m.runners[:0]
	base := int32(len(dst))
	for _, w := range r.list() {
		h := holder(w)
		st := &v.scope.slots[h.slot()]
		if st.state != slotLive || st.member.silent {
			continue
		}
		floor := st.member.beat.Load()
		at := max(h.seen(), floor)
		if v.now-at >= v.ttl {
			continue
		}
		dst = append(dst, Match{Replica: st.member.name, Slot: uint32(h.slot())})
		m.runners = append(m.runners, runner{
			holder: packHolder(h.slot(), h.tier(), at), floor: floor, match: int32(len(dst)) - 1 - base,
		})
	}
	return dst
}

// intersect ends the runs of replicas that do not freshly hold block i.
func (m *matcher) intersect(v *View, matches []Match, r record, i int32, sum int64) {
	list := r.list()
	kept, j := 0, 0
	for n := range m.runners {
		run := &m.runners[n]
		slot := run.holder.slot()
		for j < len(list) && holder(list[j]).slot() < slot {
			j++
		}
		if j < len(list) {
			if h := holder(list[j]); h.slot() == slot {
				at := max(h.seen(), run.floor)
				if v.now-at < v.ttl {
					tier := max(run.holder.tier(), h.tier())
					run.holder = packHolder(slot, tier, min(run.holder.seen(), at))
					m.runners[kept] = *run
					kept++
					continue
				}
			}
		}
		m.finish(matches, run, i, sum)
	}
	m.runners = m.runners[:kept]
}

// finish writes a run of the given length and tokens.
func (m *matcher) finish(matches []Match, run *runner, blocks int32, sum int64) {
	d := &matches[run.match]
	d.Blocks = blocks
	d.Tokens = int32(min(max(sum, 0), math.MaxInt32))
	d.LastSeenMillis = run.holder.seen()
	d.Tier = run.holder.tier()
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
