// SPDX-License-Identifier: Apache-2.0

package index

import "math/bits"

// chunkBits gives the size of an arena chunk: 64 Ki words.
const (
	chunkBits  = 16
	chunkWords = 1 << chunkBits
	// firstChunkWords is what a small partition starts with.
	firstChunkWords = 128
	exactClasses    = 16
	arenaClasses    = exactClasses + 1 + 4*12
)

// arena hands out blocks of words. A block is named by the number of its first
// word, never 0, and lies inside one chunk. Blocks hold no pointers, so the
// collector does not look into them.
//
// Readers index shown; a writer works on chunks and calls publish inside an
// exclusive section before it makes a new block reachable.
type arena struct {
	shown  [][]uint64
	chunks [][]uint64
	next   uint32 // first word never handed out
	free   [arenaClasses]uint32
	live   int // words in use
}

// words returns a block and what follows it in its chunk, for readers.
func (a *arena) words(id uint32) []uint64 {
	return a.shown[id>>chunkBits][id&(chunkWords-1):]
}

// edit returns the same for the writer.
func (a *arena) edit(id uint32) []uint64 {
	return a.chunks[id>>chunkBits][id&(chunkWords-1):]
}

// classOf returns the class of a block and its rounded size. Sizes above
// exactClasses are rounded up by less than a quarter.
func classOf(words int) (class, size int) {
	if words <= exactClasses {
		words = max(words, 2)
		return words, words
	}
	shift := bits.Len(uint(words-1)) - 3
	steps := (words + 1<<shift - 1) >> shift // 5..8
	return exactClasses + 1 + (shift-2)*4 + steps - 5, steps << shift
}

// alloc returns a block of at least the given words; its content is arbitrary.
func (a *arena) alloc(words int) uint32 {
	class, size := classOf(words)
	a.live += size
	if id := a.free[class]; id != 0 {
		a.free[class] = uint32(a.edit(id)[1])
		return id
	}
	for !a.fits(size) {
		a.extend()
	}
	id := a.next
	a.next += uint32(size)
	return id
}

// fits says whether the last chunk has room for a block.
func (a *arena) fits(size int) bool {
	if len(a.chunks) == 0 {
		return false
	}
	last := len(a.chunks) - 1
	return int(a.next)-last<<chunkBits+size <= len(a.chunks[last])
}

// extend doubles the only chunk while it is small, else adds a chunk.
func (a *arena) extend() {
	switch {
	case len(a.chunks) == 0:
		a.chunks = [][]uint64{make([]uint64, firstChunkWords)}
		a.next = 1
	case len(a.chunks) == 1 && len(a.chunks[0]) < chunkWords:
		grown := make([]uint64, 2*len(a.chunks[0]))
		copy(grown, a.chunks[0])
		a.chunks = [][]uint64{grown}
	default:
		a.chunks = append(a.chunks, make([]uint64, chunkWords))
		a.next = uint32(len(a.chunks)-1) << chunkBits
	}
}

// release gives a block back; words is what it was allocated with. The first
// word of a free block is 0, the second names the next free one.
func (a *arena) release(id uint32, words int) {
	class, size := classOf(words)
	a.live -= size
	block := a.edit(id)
	block[0], block[1] = 0, uint64(a.free[class])
	a.free[class] = id
}

// publish shows the writer's chunks to readers.
func (a *arena) publish() { a.shown = a.chunks }

// bytes returns the memory of the arena.
func (a *arena) bytes() int64 {
	if len(a.chunks) == 1 {
		return int64(len(a.chunks[0])) * 8
	}
	return int64(len(a.chunks)) * chunkWords * 8
}
