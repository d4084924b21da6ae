// SPDX-License-Identifier: Apache-2.0

package bench

// pool is the block pool of one replica: a fixed number of blocks, evicted
// least recently used first, the tail of a request before its head.
type pool struct {
	size  int
	at    map[uint32]int32 // block -> node
	nodes []node
}

// node is an element of the list of blocks, oldest first. Node 0 is its ends.
type node struct {
	block      uint32
	prev, next int32
}

func newPool(size int) *pool {
	return &pool{size: size, at: make(map[uint32]int32, size), nodes: make([]node, 1, size+1)}
}

func (p *pool) unlink(i int32) {
	n := p.nodes[i]
	p.nodes[n.prev].next, p.nodes[n.next].prev = n.next, n.prev
}

func (p *pool) append(i int32) {
	last := p.nodes[0].prev
	p.nodes[i].prev, p.nodes[i].next = last, 0
	p.nodes[last].next, p.nodes[0].prev = i, i
}

// run is a stretch of a request, by the places of its blocks.
type run struct{ from, to int }

// serve runs a request and returns what was evicted for it and which stretches
// were stored.
func (p *pool) serve(blocks []uint32) (evicted []uint32, stored []run) {
	// The whole request counts as used before anything is evicted.
	for i := len(blocks) - 1; i >= 0; i-- {
		if n, ok := p.at[blocks[i]]; ok {
			p.unlink(n)
			p.append(n)
		}
	}
	for i, b := range blocks {
		if _, ok := p.at[b]; ok {
			continue
		}
		n := int32(len(p.nodes))
		if len(p.at) < p.size {
			p.nodes = append(p.nodes, node{})
		} else {
			n = p.nodes[0].next
			p.unlink(n)
			delete(p.at, p.nodes[n].block)
			evicted = append(evicted, p.nodes[n].block)
		}
		p.nodes[n].block = b
		p.at[b] = n
		p.append(n)
		if last := len(stored) - 1; last >= 0 && stored[last].to == i {
			stored[last].to++
		} else {
			stored = append(stored, run{i, i + 1})
		}
	}
	for i := len(blocks) - 1; i >= 0; i-- {
		if n, ok := p.at[blocks[i]]; ok {
			p.unlink(n)
			p.append(n)
		}
	}
	return evicted, stored
}
