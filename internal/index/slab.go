// SPDX-License-Identifier: Apache-2.0

package index

import (
	"slices"
	"sync"
)

// slabBuckets is the most that is allocated together: 8 MiB.
const slabBuckets = 128 * 1024

// slabs allocates segments of the two largest sizes in large pieces, which the
// system can back with huge pages: a table is read at random places, and with
// pages of 4 KiB most reads would miss the translation cache too.
type slabs struct {
	mu    sync.Mutex
	pools [2]slabPool // of halfSegment, of maxSegment
}

// slabPool has blocks of one size.
type slabPool struct {
	all   []*slab
	spare []*slab // those with free blocks
	total int     // blocks
	free  int     // of them
}

// slab is one piece.
type slab struct {
	buckets []bucket
	blocks  int
	free    []int32
}

func (s *slabs) pool(size int) *slabPool {
	if size == halfSegment {
		return &s.pools[0]
	}
	return &s.pools[1]
}

// take returns a zeroed block, its slab and its number there.
func (s *slabs) take(size int) ([]bucket, *slab, int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pool(size)
	if len(p.spare) == 0 {
		p.grow(size)
	}
	b := p.spare[len(p.spare)-1]
	n := b.free[len(b.free)-1]
	b.free = b.free[:len(b.free)-1]
	if len(b.free) == 0 {
		p.spare = p.spare[:len(p.spare)-1]
	}
	p.free--
	from := int(n) * size
	block := b.buckets[from : from+size : from+size]
	clear(block)
	return block, b, n
}

// grow adds a slab: an eighth of what there is, so that little lies idle.
func (p *slabPool) grow(size int) {
	blocks := min(max(p.total/8, 1), slabBuckets/size)
	b := &slab{buckets: make([]bucket, blocks*size), blocks: blocks}
	adviseHuge(b.buckets)
	for i := range blocks {
		b.free = append(b.free, int32(i))
	}
	p.all, p.spare = append(p.all, b), append(p.spare, b)
	p.total += blocks
	p.free += blocks
}

// give takes a block back; a slab without used blocks goes.
func (s *slabs) give(b *slab, n int32, size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pool(size)
	b.free = append(b.free, n)
	p.free++
	if len(b.free) == 1 {
		p.spare = append(p.spare, b)
	}
	if len(b.free) == b.blocks {
		p.total -= b.blocks
		p.free -= b.blocks
		p.all = without(p.all, b)
		p.spare = without(p.spare, b)
	}
}

func without(list []*slab, b *slab) []*slab {
	return slices.DeleteFunc(list, func(o *slab) bool { return o == b })
}

// spareBytes is the memory of free blocks.
func (s *slabs) spareBytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(s.pools[0].free*halfSegment+s.pools[1].free*maxSegment) * bucketSize * entryBytes
}
