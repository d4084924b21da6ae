// SPDX-License-Identifier: Apache-2.0

// Package pool is the KV block pool of one engine: a fixed number of blocks,
// reference counts of the requests that use them, and a cache of full blocks
// that stay reusable until their memory is needed.
//
// Its behaviour is vLLM's. A free block keeps its content; free blocks are
// reused least recently freed first, and one request frees its blocks tail
// first. A key may be held by several blocks (copies), because a prompt that
// is wholly cached still recomputes its last block. The package has no clock,
// no goroutine and no I/O.
package pool

// ID names one block, from 0 to the capacity minus 1.
type ID int32

const none ID = -1

// Eviction reports that a cached block lost its key because its memory was
// needed. Last is true when no copy of the key is left.
type Eviction[K comparable] struct {
	Key  K
	Last bool
}

type block[K comparable] struct {
	key        K
	cached     bool
	references int32
	prev, next ID // neighbours in the free list; meaningful while references == 0
}

// Pool is one engine's block pool. It is not safe for concurrent use.
//
// Invariant: a block is in the free list exactly while its references are 0.
// Invariant: copies[k] lists exactly the cached blocks with key k, oldest
// first, and is absent when there are none.
type Pool[K comparable] struct {
	blocks     []block[K]
	copies     map[K][]ID
	head, tail ID
	free       int
	cached     int
}

// New returns an empty pool of capacity blocks. Capacity below 1 is taken as 1.
func New[K comparable](capacity int) *Pool[K] {
	capacity = max(capacity, 1)
	p := &Pool[K]{
		blocks: make([]block[K], capacity),
		copies: make(map[K][]ID),
		head:   none,
		tail:   none,
	}
	for id := range p.blocks {
		p.pushFree(ID(id))
	}
	return p
}

// Capacity is the number of blocks.
func (p *Pool[K]) Capacity() int { return len(p.blocks) }

// Free is the number of blocks no request uses, cached ones included.
func (p *Pool[K]) Free() int { return p.free }

// Used is the number of blocks that requests use.
func (p *Pool[K]) Used() int { return len(p.blocks) - p.free }

// Cached is the number of blocks with a key, copies counted one by one.
func (p *Pool[K]) Cached() int { return p.cached }

// Keys is the number of distinct keys held.
func (p *Pool[K]) Keys() int { return len(p.copies) }

// Holds tells whether a copy of key is cached.
func (p *Pool[K]) Holds(key K) bool { return len(p.copies[key]) > 0 }

// Run is the number of leading keys that are cached.
func (p *Pool[K]) Run(keys []K) int {
	for i, key := range keys {
		if !p.Holds(key) {
			return i
		}
	}
	return len(keys)
}

// Acquire takes the cached blocks of all keys, which must be a run as Run
// reports it, and fresh further blocks for new content. It returns the blocks
// in that order and what had to be evicted, or ok false and no change when
// there are too few free blocks.
func (p *Pool[K]) Acquire(keys []K, fresh int) (ids []ID, evicted []Eviction[K], ok bool) {
	ids = make([]ID, 0, len(keys)+fresh)
	revived := 0
	for _, key := range keys {
		id := p.copies[key][0]
		if p.blocks[id].references == 0 {
			revived++
		}
		ids = append(ids, id)
	}
	if revived+fresh > p.free {
		return nil, nil, false
	}
	for _, id := range ids {
		if p.blocks[id].references == 0 {
			p.unlinkFree(id)
		}
		p.blocks[id].references++
	}
	for range fresh {
		id := p.head
		p.unlinkFree(id)
		if p.blocks[id].cached {
			evicted = append(evicted, p.forget(id))
		}
		p.blocks[id].references = 1
		ids = append(ids, id)
	}
	return ids, evicted, true
}

// Fill gives a block in use its key once its content is complete. It reports
// whether this is the only copy. Filling a block twice is a caller's error and
// is ignored.
func (p *Pool[K]) Fill(id ID, key K) (first bool) {
	b := &p.blocks[id]
	if b.cached {
		return false
	}
	b.key, b.cached = key, true
	p.cached++
	p.copies[key] = append(p.copies[key], id)
	return len(p.copies[key]) == 1
}

// Release gives back one request's blocks, which must be in the order of its
// tokens. Blocks without other users become free, the last one first.
func (p *Pool[K]) Release(ids []ID) {
	for i := len(ids) - 1; i >= 0; i-- {
		b := &p.blocks[ids[i]]
		b.references--
		if b.references == 0 {
			p.pushFree(ids[i])
		}
	}
}

// Reset drops all cached content. Like vLLM it does nothing and returns false
// while a request uses a block.
func (p *Pool[K]) Reset() bool {
	if p.Used() > 0 {
		return false
	}
	var zero K
	for id := range p.blocks {
		p.blocks[id].key, p.blocks[id].cached = zero, false
	}
	clear(p.copies)
	p.cached = 0
	return true
}

// forget takes the key from a block.
func (p *Pool[K]) forget(id ID) Eviction[K] {
	b := &p.blocks[id]
	key := b.key
	rest := p.copies[key]
	for i, other := range rest {
		if other == id {
			rest = append(rest[:i], rest[i+1:]...)
			break
		}
	}
	if len(rest) == 0 {
		delete(p.copies, key)
	} else {
		p.copies[key] = rest
	}
	var zero K
	b.key, b.cached = zero, false
	p.cached--
	return Eviction[K]{Key: key, Last: len(rest) == 0}
}

// pushFree appends a block to the free list, where it is reused last.
func (p *Pool[K]) pushFree(id ID) {
	b := &p.blocks[id]
	b.prev, b.next = p.tail, none
	if p.tail == none {
		p.head = id
	} else {
		p.blocks[p.tail].next = id
	}
	p.tail = id
	p.free++
}

func (p *Pool[K]) unlinkFree(id ID) {
	b := &p.blocks[id]
	if b.prev == none {
		p.head = b.next
	} else {
		p.blocks[b.prev].next = b.next
	}
	if b.next == none {
		p.tail = b.prev
	} else {
		p.blocks[b.next].prev = b.prev
	}
	p.free--
}
