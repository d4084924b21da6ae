// SPDX-License-Identifier: Apache-2.0

package client

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"slices"
)

// AffinityPick returns the replica that the index names for a chain when it
// has no cache evidence: the same for equal prompts as long as the replicas
// stay the same. It lets a gateway keep equal prompts together when the index
// does not answer. Order and duplicates of replicas do not matter; replicas is
// not changed. Without blocks or replicas, ok is false.
func AffinityPick(chain Chain, replicas []string) (replica string, ok bool) {
	if len(chain.Hashes) == 0 {
		return "", false
	}
	sum := sha256.New()
	var length [4]byte
	for _, block := range chain.Hashes {
		binary.BigEndian.PutUint32(length[:], uint32(len(block)))
		sum.Write(length[:])
		sum.Write(block)
	}
	return pick(sum, replicas)
}

// AffinityPickExact is AffinityPick for a request with a PrefixHash and no
// Chain.
func AffinityPickExact(prefixHash []byte, replicas []string) (replica string, ok bool) {
	if len(prefixHash) == 0 {
		return "", false
	}
	sum := sha256.New()
	sum.Write(prefixHash)
	return pick(sum, replicas)
}

// pick takes the seed modulo the number of replicas in byte order.
func pick(seed hash.Hash, replicas []string) (string, bool) {
	if len(replicas) == 0 {
		return "", false
	}
	if !ascending(replicas) {
		replicas = slices.Clone(replicas)
		slices.Sort(replicas)
		replicas = slices.Compact(replicas)
	}
	var digest [sha256.Size]byte
	first := binary.BigEndian.Uint64(seed.Sum(digest[:0]))
	return replicas[first%uint64(len(replicas))], true
}

// ascending reports whether names are sorted and distinct.
func ascending(names []string) bool {
	for i := 1; i < len(names); i++ {
		if names[i-1] >= names[i] {
			return false
		}
	}
	return true
}
