// SPDX-License-Identifier: Apache-2.0

package bpe

import (
	"context"
	"unicode/utf8"
)

// none is no id.
const none = ^uint32(0)

// merge is what a pair of symbols becomes; the lowest rank goes first.
type merge struct {
	rank, id uint32
}

// pair packs two symbols.
func pair(left, right uint32) uint64 { return uint64(left)<<32 | uint64(right) }

// model is the byte-pair encoder.
type model struct {
	vocabulary map[string]uint32
	merges     map[uint64]merge
	// symbols are bytes if byteLevel, else characters.
	byteLevel bool
	bytes     [256]uint32
	// whole looks a piece up in the vocabulary before merging; single says of
	// each id whether merging its text gives nothing but it.
	whole  bool
	single []bool
	// unknown stands for what has no symbol, none to leave it out; fuse joins
	// neighbours.
	unknown uint32
	fuse    bool
	// fallback writes a character without a symbol as the ids of its bytes.
	fallback bool
	fallen   [256]uint32
}

// scratch is memory that an encoder uses again and again.
type scratch struct {
	symbols []symbol
	heap    []candidate
	ranks   []uint32
	ids     []uint32
}

// quadratic is the length up to which looking at all pairs beats a heap.
const quadratic = 48

// encode appends the ids of a piece.
func (m *model) encode(ctx context.Context, dst []uint32, piece string, s *scratch) []uint32 {
	if len(piece) == 1 && m.byteLevel {
		if id := m.bytes[piece[0]]; id != none {
			return append(dst, id)
		}
		return m.appendUnknown(dst, len(dst))
	}
	if id, ok := m.vocabulary[piece]; ok && (m.whole || int(id) < len(m.single) && m.single[id]) {
		return append(dst, id)
	}
	s.ids = m.initial(s.ids[:0], piece)
	if len(s.ids) <= quadratic {
		return append(dst, m.mergeShort(s)...)
	}
	return m.mergeLong(ctx, dst, s)
}

// initial appends the symbols of a piece before any merge.
func (m *model) initial(dst []uint32, piece string) []uint32 {
	start := len(dst)
	if m.byteLevel {
		for i := range len(piece) {
			if id := m.bytes[piece[i]]; id != none {
				dst = append(dst, id)
			} else {
				dst = m.appendUnknown(dst, start)
			}
		}
		return dst
	}
	for i := 0; i < len(piece); {
		_, size := utf8.DecodeRuneInString(piece[i:])
		character := piece[i : i+size]
		i += size
		if id, ok := m.vocabulary[character]; ok {
			dst = append(dst, id)
		} else if !m.fallback {
			dst = m.appendUnknown(dst, start)
		} else {
			for _, b := range []byte(character) {
				dst = append(dst, m.fallen[b])
			}
		}
	}
	return dst
}

func (m *model) appendUnknown(dst []uint32, start int) []uint32 {
	if m.unknown == none || m.fuse && len(dst) > start && dst[len(dst)-1] == m.unknown {
		return dst
	}
	return append(dst, m.unknown)
}

// mergeShort merges s.ids in place.
func (m *model) mergeShort(s *scratch) []uint32 {
	ids, ranks := s.ids, s.ranks[:0]
	rank := func(i int) uint32 {
		if i+1 < len(ids) {
			if found, ok := m.merges[pair(ids[i], ids[i+1])]; ok {
				return found.rank
			}
		}
		return none
	}
	for i := range ids {
		ranks = append(ranks, rank(i))
	}
	s.ranks = ranks
	for {
		best, at := none, -1
		for i, r := range ranks {
			if r < best {
				best, at = r, i
			}
		}
		if at < 0 {
			return ids
		}
		ids[at] = m.merges[pair(ids[at], ids[at+1])].id
		ids = append(ids[:at+1], ids[at+2:]...)
		ranks = append(ranks[:at+1], ranks[at+2:]...)
		ranks[at] = rank(at)
		if at > 0 {
			ranks[at-1] = rank(at - 1)
		}
	}
}

// symbol is a link in the list of a long piece's symbols; id is none once it
// was merged into its left neighbour.
type symbol struct {
	id         uint32
	prev, next int32
}

// candidate is a merge that was possible when it was noted.
type candidate struct {
	rank, id    uint32
	at          int32
	left, right uint32
}

func (c *candidate) before(o *candidate) bool {
	return c.rank < o.rank || c.rank == o.rank && c.at < o.at
}

// mergeLong merges the symbols of a long piece with a heap, in time n log n.
func (m *model) mergeLong(ctx context.Context, dst []uint32, s *scratch) []uint32 {
	symbols := s.symbols[:0]
	for i, id := range s.ids {
		symbols = append(symbols, symbol{id: id, prev: int32(i - 1), next: int32(i + 1)})
	}
	symbols[len(symbols)-1].next = -1
	s.symbols, s.heap = symbols, s.heap[:0]
	for i := range len(symbols) - 1 {
		m.note(s, int32(i))
	}
	for steps := 0; len(s.heap) > 0; steps++ {
		if steps%checkEvery == 0 && ctx.Err() != nil {
			return dst
		}
		c := s.pop()
		left := &symbols[c.at]
		if left.id != c.left || left.next < 0 || symbols[left.next].id != c.right {
			continue // merged meanwhile
		}
		right := &symbols[left.next]
		left.id, left.next = c.id, right.next
		right.id = none
		if left.next >= 0 {
			symbols[left.next].prev = c.at
			m.note(s, c.at)
		}
		if left.prev >= 0 {
			m.note(s, left.prev)
		}
	}
	for i := int32(0); i >= 0; i = symbols[i].next {
		dst = append(dst, symbols[i].id)
	}
	return dst
}

// note puts the merge of a symbol with its right neighbour on the heap.
func (m *model) note(s *scratch, at int32) {
	left := &s.symbols[at]
	if left.next < 0 {
		return
	}
	right := s.symbols[left.next].id
	if found, ok := m.merges[pair(left.id, right)]; ok {
		s.push(candidate{rank: found.rank, id: found.id, at: at, left: left.id, right: right})
	}
}

func (s *scratch) push(c candidate) {
	s.heap = append(s.heap, c)
	for i := len(s.heap) - 1; i > 0; {
		parent := (i - 1) / 2
		if !s.heap[i].before(&s.heap[parent]) {
			break
		}
		s.heap[i], s.heap[parent] = s.heap[parent], s.heap[i]
		i = parent
	}
}

func (s *scratch) pop() candidate {
	top, last := s.heap[0], len(s.heap)-1
	s.heap[0] = s.heap[last]
	s.heap = s.heap[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			break
		}
		if child+1 < last && s.heap[child+1].before(&s.heap[child]) {
			child++
		}
		if !s.heap[child].before(&s.heap[i]) {
			break
		}
		s.heap[i], s.heap[child] = s.heap[child], s.heap[i]
		i = child
	}
	return top
}
