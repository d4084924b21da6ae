// SPDX-License-Identifier: Apache-2.0

package index

import (
	"encoding/binary"
	"slices"
)

// partition holds the keys of one adapter of a scope.
//
// Readers use the upper fields inside a view; they change inside exclusive
// sections only. The lower ones belong to the writer, that is to whoever holds
// scope.write.
type partition struct {
	scope   *scope
	adapter string

	short table // keys of 8 bytes by themselves
	long  table // other keys by hash; extra names their block in names
	sets  arena
	names arena
	held  []int32 // memberships by slot

	memberships int64 // of live slots
	keys        int64 // with a live holder

	logs    arena
	intern  table // content of a set -> a set with room
	owners  []owner
	expiry  queue // by the oldest effective second
	evict   queue // by the rank of the cap
	fresh   queue // by the freshest millisecond
	planned struct{ memberships, keys, hidden int64 }
	trims   int    // how often ids of sets lost their meaning
	touched bool   // waits for a commit
	part    uint32 // 1 + place among the partitions of the running write
	counted bool   // one of the partitions in use
	lfu     bool   // what evict is ordered by
	// faded is below which counts are no more than none in that order.
	faded uint32
	// enqueued is the rank under which the cap knows this partition.
	enqueued  int64
	accounted Bytes
}

// owner is what a partition notes about a slot.
type owner struct {
	planned int32
	// sets names all sets with this slot and, until compaction, others.
	sets []uint32
	live int // sets with this slot
}

func newPartition(s *scope, adapter string) *partition {
	x := s.x
	p := &partition{
		scope: s, adapter: adapter,
		short: newTable(&x.slabs), long: newTable(&x.slabs), intern: newTable(&x.slabs),
		enqueued: noSecond,
	}
	rules := x.rulesOf(s.id.Tenant)
	p.lfu = rules.LFU
	p.newQueues(!rules.Limited)
	return p
}

// newQueues gives the partition empty queues. The cap's is idle while there is
// no global bound, the quota's while the tenant has none.
func (p *partition) newQueues(withoutQuota bool) {
	p.expiry, p.evict, p.fresh = newQueue(wordExpiry), newQueue(wordCap), newQueue(wordQuota)
	p.evict.idle, p.fresh.idle = p.scope.x.evictor.off, withoutQuota
}

// keyRef is a key made ready for its table.
type keyRef struct {
	word uint64
	name []byte // nil for keys of 8 bytes
}

// ref returns key i of a list; ok is false for an impossible length.
func (x *Index) ref(keys Keys, i int) (k keyRef, ok bool) {
	if keys.Long == nil {
		return keyRef{word: x.mixer.word(keys.Short[i])}, true
	}
	b := keys.Long[i]
	switch {
	case len(b) == 8:
		return keyRef{word: x.mixer.word(binary.BigEndian.Uint64(b))}, true
	case len(b) == 0 || len(b) > MaxKeyBytes:
		return keyRef{}, false
	}
	return keyRef{word: x.wordOfName(b), name: b}, true
}

func (k *keyRef) long() bool { return k.name != nil }

// lookup returns the entry of a key, or nil, for readers and the writer.
func (p *partition) lookup(k *keyRef) *entry {
	if k.name == nil {
		return p.short.find(k.word)
	}
	return p.long.findWhere(k.word, func(e *entry) bool {
		return nameEquals(p.names.words(e.extra), k.name)
	})
}

// Layout of a long key in names:
//
//	0  tokens:32 | length:32
//	1  bytes, 8 a word, zero padded
func nameWords(length int) int { return 1 + (length+7)/8 }

func putName(block []uint64, name []byte) {
	block[0] = uint64(len(name))
	for i := 0; i < len(name); i += 8 {
		var w [8]byte
		copy(w[:], name[i:])
		block[1+i/8] = binary.BigEndian.Uint64(w[:])
	}
}

func nameEquals(block []uint64, name []byte) bool {
	if int(uint32(block[0])) != len(name) {
		return false
	}
	for i := 0; i < len(name); i += 8 {
		var w [8]byte
		copy(w[:], name[i:])
		if block[1+i/8] != binary.BigEndian.Uint64(w[:]) {
			return false
		}
	}
	return true
}

// nameBytes returns the bytes of a long key.
func nameBytes(block []uint64) []byte {
	n := int(uint32(block[0]))
	out := make([]byte, 0, (n+7)/8*8)
	for i := range (n + 7) / 8 {
		out = binary.BigEndian.AppendUint64(out, block[1+i])
	}
	return out[:n]
}

func nameTokens(block []uint64) int32        { return int32(block[0] >> 32) }
func setNameTokens(block []uint64, n int32)  { block[0] = block[0]&0xffffffff | uint64(uint32(n))<<32 }
func (p *partition) record(id uint32) record { return record(p.sets.edit(id)) }
func (p *partition) table(long bool) *table {
	if long {
		return &p.long
	}
	return &p.short
}

// tokensOf returns the token count of an entry.
func (p *partition) tokensOf(e *entry, long bool) int32 {
	if long {
		return nameTokens(p.names.words(e.extra))
	}
	return int32(e.extra)
}

// owner returns what the partition notes about a slot.
func (p *partition) owner(slot uint16) *owner {
	if int(slot) >= len(p.owners) {
		p.owners = append(p.owners, make([]owner, int(slot)+1-len(p.owners))...)
	}
	return &p.owners[slot]
}

// setsOf returns the sets that hold a slot.
func (p *partition) setsOf(slot uint16) []uint32 {
	if int(slot) >= len(p.owners) {
		return nil
	}
	o := &p.owners[slot]
	o.sets = slices.DeleteFunc(o.sets, func(id uint32) bool { return p.record(id).find(slot) < 0 })
	slices.Sort(o.sets)
	o.sets = slices.Compact(o.sets)
	return o.sets
}

// bytes returns the memory of the partition by kind.
func (p *partition) bytes() Bytes {
	return Bytes{
		Table: p.short.bytes() + p.long.bytes() + p.intern.bytes(),
		Arena: p.sets.bytes() + p.names.bytes() + p.logs.bytes() +
			p.expiry.bytes() + p.evict.bytes() + p.fresh.bytes() + int64(cap(p.owners))*40,
		Names: 600 + int64(len(p.adapter)),
	}
}
