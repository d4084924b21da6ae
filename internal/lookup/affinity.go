// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"

	"github.com/zeebo/xxh3"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/policy"
	"github.com/inferencecache/inference-cache/pkg/fingerprint"
)

// fallBack names one replica without cache evidence: the same for every
// request with the same prompt, as long as the candidates stay the same.
func (e *evaluation) fallBack() Reason {
	if !e.rules.Affinity || !e.request.named() || !e.request.evenChain() || e.input.keys.Len() == 0 {
		return NoHint
	}
	inPartition := e.request.Adapter != ""
	e.listCandidates(inPartition, true)
	if len(e.candidates) == 0 {
		if inPartition && e.out.Serving > 0 {
			e.out.Gates.add(GateAdapterUnseen)
		}
		return NoHint
	}
	seed := e.buffers.seed.sum(e.input, e.rules.Extensions.SeedBlocks)
	pick := e.pick(seed)
	if pick < 0 {
		e.out.Gates.add(GateAllOverPressure)
		return NoHint
	}
	e.out.kept = append(e.out.kept[:0], Score{Replica: e.candidates[pick].Replica})
	e.out.Scores = e.out.kept
	return AffinityHint
}

// pick returns the position of the first candidate, in the order of the
// policy's hash, that is not overloaded, or -1.
func (e *evaluation) pick(seed [8]byte) int {
	if e.rules.Extensions.Hash == policy.HashRendezvous {
		return e.pickHeaviest(seed)
	}
	n := len(e.candidates)
	first := int(binary.BigEndian.Uint64(seed[:]) % uint64(n))
	for i := range n {
		at := (first + i) % n
		if !e.overloaded(e.candidates[at]) {
			return at
		}
	}
	return -1
}

func (e *evaluation) pickHeaviest(seed [8]byte) int {
	best, heaviest := -1, uint64(0)
	for i, candidate := range e.candidates {
		weight := e.buffers.seed.weight(seed, candidate.Replica)
		if (best < 0 || weight > heaviest) && !e.overloaded(candidate) {
			best, heaviest = i, weight
		}
	}
	return best
}

func (e *evaluation) overloaded(candidate index.Candidate) bool {
	limit := e.rules.Extensions.MaxPressure
	return limit > 0 && e.freshPressure(candidate.Slot) >= limit
}

// seedBuffer hashes affinity seeds without allocating for each.
type seedBuffer struct {
	sha    hash.Hash
	block  []byte
	digest [sha256.Size]byte
	weigh  []byte
}

// sum returns the first 8 bytes of the SHA-256 of the seed: each hash of the
// chain after its 4-byte big-endian length, or the bare exact hash.
// firstBlocks above 0 bounds the chain.
func (b *seedBuffer) sum(in input, firstBlocks int) (first [8]byte) {
	if b.sha == nil {
		b.sha = sha256.New()
	}
	b.sha.Reset()
	blocks := in.keys.Len()
	if in.chain && firstBlocks > 0 {
		blocks = min(blocks, firstBlocks)
	}
	const flush = 4096
	block := b.block[:0]
	for i := range blocks {
		if in.keys.Long == nil {
			if in.chain {
				block = binary.BigEndian.AppendUint32(block, fingerprint.KeyBytes)
			}
			block = fingerprint.AppendWire(block, in.keys.Short[i])
		} else {
			if in.chain {
				block = binary.BigEndian.AppendUint32(block, uint32(len(in.keys.Long[i])))
			}
			block = append(block, in.keys.Long[i]...)
		}
		if len(block) >= flush {
			b.sha.Write(block)
			block = block[:0]
		}
	}
	b.sha.Write(block)
	b.block = block
	copy(first[:], b.sha.Sum(b.digest[:0]))
	return first
}

// weight of a replica for a seed in rendezvous hashing.
func (b *seedBuffer) weight(seed [8]byte, replica string) uint64 {
	b.weigh = append(append(b.weigh[:0], seed[:]...), replica...)
	return xxh3.HashSeed(b.weigh, fingerprint.Seed)
}
