// SPDX-License-Identifier: Apache-2.0

package index

// entry is one word of a table. set 0 means free; a free entry is all zero.
type entry struct {
	key   uint64
	set   uint32
	extra uint32
}

// entryBytes is the size of an entry.
const entryBytes = 16

// orNil is nil for a free entry: the word 0 finds one too.
func (e *entry) orNil() *entry {
	if e.set == 0 {
		return nil
	}
	return e
}

// bucketSize is the entries of a bucket.
const bucketSize = 4

// bucket is what is read together: one line of a cache.
//
// Invariant: its used entries come first.
type bucket [bucketSize]entry

func (b *bucket) full() bool { return b[bucketSize-1].set != 0 }

// used returns the number of used entries.
func (b *bucket) used() int {
	for n := range b {
		if b[n].set == 0 {
			return n
		}
	}
	return bucketSize
}

func (b *bucket) entries() []entry { return b[:b.used()] }

// close frees a used place; the last used one takes it.
func (b *bucket) close(n int) {
	last := b.used() - 1
	b[n] = b[last]
	b[last] = entry{}
}
