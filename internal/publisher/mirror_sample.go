// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"cmp"
	"slices"
)

// HashSample pairs a content key of the base model with the engine's hash of
// that block.
type HashSample struct {
	Key, EngineHash uint64
}

// HashSamples returns the blocks with the n smallest keys, smallest first. Two
// replicas that hold the same prompts sample the same keys, so that a
// diagnosis can tell whether their engines hash alike. It scans the mirror.
func (s *Session) HashSamples(n int) []HashSample {
	var samples []HashSample
	byKey := func(a, b HashSample) int { return cmp.Compare(a.Key, b.Key) }
	s.mirror.each(func(_ uint32, b *block) {
		sample := HashSample{Key: b.key, EngineHash: b.hash}
		at, listed := slices.BinarySearchFunc(samples, sample, byKey)
		if at == n || listed || !b.credited() || s.mirror.adapters[b.adapter] != "" {
			return
		}
		samples = slices.Insert(samples, at, sample)
		samples = samples[:min(n, len(samples))]
	})
	return samples
}
