// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"strconv"

	"github.com/zeebo/xxh3"
)

const (
	// ringPoints is the number of points of a replica, ringSeed their hash's
	// seed.
	ringPoints = 150
	ringSeed   = 1337
	// prefixHashBlocks is the length of the prefix that prefix_hash goes by.
	prefixHashBlocks = 16
	// prefixHashPieces is the same for text.
	prefixHashPieces = 4
)

// ring is consistent hashing with bounded loads: equal keys meet on a replica
// as long as it has not much more to do than the others.
type ring struct {
	name string
	// blocks is the length of the prefix that is hashed.
	blocks int
	// bySticky prefers the sticky key, if there is one.
	bySticky bool

	points  []point
	members []string // whose points these are, sorted
}

type point struct {
	hash   uint64
	member int32
}

// Name implements Policy.
func (p *ring) Name() string { return p.name }

// Choose implements Policy.
func (p *ring) Choose(s *Selection) Choice {
	p.follow(s)
	value, known := p.key(s.Request)
	hash := s.Rand.Uint64()
	if known {
		var key [8]byte
		binary.BigEndian.PutUint64(key[:], value)
		hash = xxh3.HashSeed(key[:], ringSeed)
	}
	choice := byPolicy(p.walk(s, hash), TieNone)
	if known {
		choice.Source = SourceHashPlacement
	}
	return choice
}

// key returns what tells where a request belongs.
func (p *ring) key(r *Request) (key uint64, known bool) {
	keys, blocks := r.Chain.Keys, p.blocks
	switch {
	case p.bySticky && r.Sticky != 0:
		return r.Sticky, true
	case len(keys) == 0:
		return 0, false
	case r.Chain.Text:
		blocks = min(blocks, prefixHashPieces)
	}
	return keys[min(len(keys), blocks)-1], true
}

// walk returns the first replica from hash on that has room, or the one with
// the fewest requests if none has.
func (p *ring) walk(s *Selection, hash uint64) int {
	total, idlest := 0, 0
	for i := range s.Len() {
		total += s.At(i).Inflight
		if s.At(i).Inflight < s.At(idlest).Inflight {
			idlest = i
		}
	}
	average := float64(total+1) / float64(s.Len())
	bound := int(math.Ceil(max(1.25*average, average+10)))
	at, _ := slices.BinarySearchFunc(p.points, hash, func(q point, hash uint64) int { return cmp.Compare(q.hash, hash) })
	for i := range p.points {
		member := int(p.points[(at+i)%len(p.points)].member)
		if s.At(member).Inflight+1 <= bound {
			return member
		}
	}
	return idlest
}

// follow builds the ring of the eligible replicas if they changed.
func (p *ring) follow(s *Selection) {
	same := len(p.members) == s.Len()
	for i := 0; same && i < s.Len(); i++ {
		same = p.members[i] == s.At(i).ID
	}
	if same {
		return
	}
	p.members, p.points = p.members[:0], p.points[:0]
	for i := range s.Len() {
		id := s.At(i).ID
		p.members = append(p.members, id)
		for n := range ringPoints {
			p.points = append(p.points, point{xxh3.HashStringSeed(id+"#"+strconv.Itoa(n), ringSeed), int32(i)})
		}
	}
	slices.SortFunc(p.points, func(a, b point) int {
		return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.member, b.member))
	})
}
