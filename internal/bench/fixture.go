// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math/rand/v2"

	"github.com/inferencecache/inference-cache/internal/index"
)

// Times of the fixtures. Nothing expires while it is measured.
const (
	startMillis = int64(1_800_000_000_000)
	ttlMillis   = int64(1) << 40
	blockTokens = int32(128)
)

func newIndex(change ...func(*index.Config)) *index.Index {
	c := index.Config{DefaultRules: index.TenantRules{TTLMillis: ttlMillis}, Seed: 1}
	for _, f := range change {
		f(&c)
	}
	return index.New(c)
}

// chainKeys returns the keys of chain number c.
func chainKeys(c, blocks int) []uint64 {
	keys := make([]uint64, blocks)
	for i := range keys {
		keys[i] = Key(uint32(c*blocks + i))
	}
	return keys
}

// storeRun stores blocks of a chain from a place on.
func storeRun(x *index.Index, replica string, at int64, keys []uint64, from int) {
	x.Apply(&index.Batch{
		Scope: scope, Replica: replica, AtMillis: at, NowMillis: at,
		Ops: []index.Op{{
			Kind: index.OpStore, Tier: index.TierT1, Keys: index.Keys{Short: keys},
			Tokens: index.Tokens{First: int32(from+1) * blockTokens, Step: blockTokens},
		}},
	})
}

// fan is a chain with many holders.
type fan struct {
	blocks, holders int
	// updates is in how many equal updates each holder stored it.
	updates int
	// stairs makes each holder one block deeper than the last.
	stairs bool
	// ragged cuts each holder's updates at places of its own.
	ragged bool
}

// put stores the fan as chain number c.
func (f fan) put(x *index.Index, c int, random *rand.Rand) []uint64 {
	keys := chainKeys(c, f.blocks)
	for h, name := range ReplicaNames(f.holders) {
		depth := f.blocks
		if f.stairs {
			depth = f.blocks - f.holders + 1 + h
		}
		size := (f.blocks + f.updates - 1) / f.updates
		at := startMillis + int64(random.IntN(1_000_000))
		for from := 0; from < depth; {
			n := size
			if f.ragged {
				n = 1 + random.IntN(2*size)
			}
			to := min(from+n, depth)
			storeRun(x, name, at, keys[from:to], from)
			from, at = to, at+1+int64(random.IntN(50))
		}
	}
	return keys
}

// fill stores chains until there are about so many memberships. Chain c is
// held by one of 64 replicas, every fourth by a second one.
func fill(x *index.Index, memberships, blocks int) (chains int) {
	names := ReplicaNames(64)
	for n := 0; n < memberships; chains++ {
		keys := chainKeys(fillBase+chains, blocks)
		at := startMillis + int64(chains)
		storeRun(x, names[chains%64], at, keys, 0)
		n += blocks
		if chains%4 == 0 {
			storeRun(x, names[(chains/64+chains+1)%64], at+1, keys[:blocks/2], 0)
			n += blocks / 2
		}
	}
	return chains
}

// fillBase keeps the chains of fill apart from others.
const fillBase = 1 << 14
