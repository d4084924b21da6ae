// SPDX-License-Identifier: Apache-2.0

package index

import "slices"

// matcher is the scratch of one match.
type matcher struct {
	scope    *scope
	part     *partition
	mixer    *mixer
	now, ttl int64
	runs     runs
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
	m.scope, m.part, m.now, m.ttl, m.mixer = v.scope, v.part, v.now, v.ttl, &v.x.mixer
	base := len(dst)
	dst = m.chain(dst, keys, counts)
	m.scope, m.part, m.runs.prev = nil, nil, nil
	v.x.matches.Put(m)
	return withTokens(dst, base)
}

// withTokens drops matches without tokens.
func withTokens(dst []Match, base int) []Match {
	for i := base; i < len(dst); i++ {
		if dst[i].Tokens <= 0 {
			return append(dst[:i], slices.DeleteFunc(dst[i:], func(d Match) bool { return d.Tokens <= 0 })...)
		}
	}
	return dst
}

func (m *matcher) chain(dst []Match, keys Keys, counts Tokens) []Match {
	base, p := len(dst), m.part
	m.runs.list = nil
	set, sum, from := uint32(0), int64(0), 0
	for window := firstWindow; ; window = min(2*window, lastWindow) {
		window = min(window, keys.Len()-from)
		found := m.resolve(p, keys, from, window)
		for i := 0; i < found; {
			if next := m.sets[i]; next != set {
				list := record(p.sets.words(next)).list()
				if set == 0 {
					dst = m.seed(dst, list)
				} else {
					m.step(list, dst[base:], int32(from+i), sum)
				}
				if m.runs.going == 0 {
					return dst
				}
				set = next
			}
			start := i
			for i++; i < found && m.sets[i] == set; i++ {
			}
			sum += counts.own(from+start, from+i)
		}
		from += found
		if found < window || from == keys.Len() {
			break
		}
	}
	m.endAll(dst[base:], int32(from), sum)
	return dst
}

// own is the tokens of blocks when counts are each block's own.
func (t Tokens) own(from, to int) (sum int64) {
	if len(t.Counts) == 0 {
		return int64(to-from) * int64(t.Step)
	}
	for _, n := range t.Counts[from:to] {
		sum += int64(n)
	}
	return sum
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
	words, t, mix := keys.Short[from:from+window], &p.short, *m.mixer
	if len(t.dir) > nearSegments {
		for _, word := range words {
			t.ready(mix.word(word))
		}
	}
	var last *uint64
	if from > 0 {
		last = &keys.Short[from-1]
	}
	return t.sets(m.sets[:], words, last, mix)
}

func (m *matcher) resolveLong(p *partition, keys [][]byte, from, window int) int {
	all := Keys{Long: keys}
	for i := range window {
		if at := from + i; at > 0 && string(keys[at]) == string(keys[at-1]) {
			return i
		}
		k, ok := p.scope.x.ref(all, from+i)
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

// MatchExact appends the fresh holders of the first key to dst, in the order
// of slots.
func (v *View) MatchExact(dst []Match, keys Keys) []Match {
	v.keys, v.credits = keys, nil
	if v.part == nil || keys.Len() == 0 {
		return dst
	}
	k, ok := v.x.ref(keys, 0)
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
		if st.state != slotLive || st.silent {
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
