// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"maps"
	"sync/atomic"

	"github.com/inferencecache/inference-cache/internal/index"
)

// blockSizes knows the block size that the sessions of a scope agree on.
// Reads take no lock; the caller of replace synchronises.
type blockSizes struct {
	// announced counts sessions by scope and block size.
	announced map[index.Scope]map[int32]int
	// common holds the scopes with exactly one size.
	common atomic.Pointer[map[index.Scope]int32]
}

// replace notes that a session's size changed; 0 stands for unknown.
func (b *blockSizes) replace(scope index.Scope, before, after int32) {
	if b.announced == nil {
		b.announced = make(map[index.Scope]map[int32]int)
	}
	counts := b.announced[scope]
	if counts == nil {
		counts = make(map[int32]int)
		b.announced[scope] = counts
	}
	if before > 0 {
		if counts[before]--; counts[before] == 0 {
			delete(counts, before)
		}
	}
	if after > 0 {
		counts[after]++
	}
	b.publish(scope, counts)
	if len(counts) == 0 {
		delete(b.announced, scope)
	}
}

func (b *blockSizes) publish(scope index.Scope, counts map[int32]int) {
	size := int32(0)
	if len(counts) == 1 {
		for only := range counts {
			size = only
		}
	}
	if size == b.of(scope) {
		return
	}
	next := make(map[index.Scope]int32)
	if current := b.common.Load(); current != nil {
		next = maps.Clone(*current)
	}
	if size == 0 {
		delete(next, scope)
	} else {
		next[scope] = size
	}
	b.common.Store(&next)
}

func (b *blockSizes) of(scope index.Scope) int32 {
	if current := b.common.Load(); current != nil {
		return (*current)[scope]
	}
	return 0
}

// BlockSize returns the one block size, in tokens, that the sessions of scope
// announced; false when they announced none or several.
func (s *SyncServer) BlockSize(scope index.Scope) (int, bool) {
	size := s.registry.blockSizes.of(scope)
	return int(size), size > 0
}
