// SPDX-License-Identifier: Apache-2.0

package index

// queue orders the sets of a partition by a second, or another rank, smallest
// first; inside a second the order is free. Each second in use has a doubly linked list that
// runs through two words of its sets:
//
//	word    second
//	word+1  next:32 | prev:32      0 = none
//
// Invariant: every second in heads is in heap. heap may hold more.
type queue struct {
	word int
	// idle: nobody asks for the order, so none is kept.
	idle  bool
	heads map[int64]uint32
	heap  []int64
}

func newQueue(word int) queue { return queue{word: word, heads: map[int64]uint32{}} }

// add puts a set in line.
func (q *queue) add(a *arena, id uint32, second int64) {
	if q.idle {
		return
	}
	r := a.edit(id)
	head, inUse := q.heads[second]
	r[q.word], r[q.word+1] = uint64(second), uint64(head)
	if head != 0 {
		h := a.edit(head)
		h[q.word+1] = h[q.word+1]&0xffffffff | uint64(id)<<32
	}
	q.heads[second] = id
	if !inUse {
		q.push(second)
	}
}

// remove takes a set out of line.
func (q *queue) remove(a *arena, id uint32) {
	if q.idle {
		return
	}
	r := a.edit(id)
	next, prev := uint32(r[q.word+1]), uint32(r[q.word+1]>>32)
	if next != 0 {
		n := a.edit(next)
		n[q.word+1] = n[q.word+1]&0xffffffff | uint64(prev)<<32
	}
	switch {
	case prev != 0:
		p := a.edit(prev)
		p[q.word+1] = p[q.word+1]&^0xffffffff | uint64(next)
	case next != 0:
		q.heads[int64(r[q.word])] = next
	default:
		delete(q.heads, int64(r[q.word]))
	}
}

// all returns the sets in line.
func (q *queue) all(a *arena) (ids []uint32) {
	for _, head := range q.heads {
		for id := head; id != 0; id = q.next(a, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// next returns the set that follows in the same second, 0 = none.
func (q *queue) next(a *arena, id uint32) uint32 { return uint32(a.edit(id)[q.word+1]) }

// first returns a set of the smallest second. ok is false for an empty queue.
func (q *queue) first() (id uint32, second int64, ok bool) {
	for len(q.heap) > 0 {
		if id, inUse := q.heads[q.heap[0]]; inUse {
			return id, q.heap[0], true
		}
		q.pop()
	}
	return 0, noSecond, false
}

func (q *queue) push(second int64) {
	if len(q.heap) > 2*len(q.heads)+64 {
		q.rebuild()
		return
	}
	q.heap = append(q.heap, second)
	for i := len(q.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if q.heap[up] <= q.heap[i] {
			break
		}
		q.heap[up], q.heap[i] = q.heap[i], q.heap[up]
		i = up
	}
}

func (q *queue) pop() {
	last := len(q.heap) - 1
	q.heap[0] = q.heap[last]
	q.heap = q.heap[:last]
	q.sink(0)
}

func (q *queue) sink(i int) {
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(q.heap); c++ {
			if q.heap[c] < q.heap[least] {
				least = c
			}
		}
		if least == i {
			return
		}
		q.heap[i], q.heap[least] = q.heap[least], q.heap[i]
		i = least
	}
}

// rebuild drops seconds that are out of use from the heap.
func (q *queue) rebuild() {
	q.heap = q.heap[:0]
	for second := range q.heads {
		q.heap = append(q.heap, second)
	}
	for i := len(q.heap)/2 - 1; i >= 0; i-- {
		q.sink(i)
	}
}

// bytes estimates the memory of the queue.
func (q *queue) bytes() int64 { return int64(len(q.heads))*24 + int64(cap(q.heap))*8 }
