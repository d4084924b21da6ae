// SPDX-License-Identifier: Apache-2.0

package server

import (
	"math/rand/v2"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/inferencecache/inference-cache/internal/lookup"
)

const (
	// hotWindowMillis is the length of one of the two windows that count.
	hotWindowMillis = 10 * 60 * 1000
	hotShards       = 16
	// maxHotCandidates bounds the keys that are counted.
	maxHotCandidates = 65_536
	// hotSample is how many candidates compete when one has to go.
	hotSample = 4
)

// hotPrefixes counts how often keys were the deepest match of the best
// replica. It knows keys by a seeded hash only. It is safe for concurrent use.
type hotPrefixes struct {
	threshold uint32
	seed      uint64
	shards    [hotShards]hotShard
}

// hotShard holds the candidates whose hash belongs to it.
type hotShard struct {
	mu    sync.Mutex
	max   int
	keys  []hotKey
	index map[xxh3.Uint128]int32 // positions in keys
	turn  int                    // where the next sample starts
}

// hotKey is one candidate. window numbers the window of current; previous is
// the one before.
type hotKey struct {
	id                xxh3.Uint128
	owner             uint64 // hash of tenant and model
	window            int64
	current, previous uint32
}

func newHotPrefixes(threshold, maxCandidates int) *hotPrefixes {
	h := &hotPrefixes{threshold: uint32(threshold), seed: rand.Uint64()}
	for i := range h.shards {
		h.shards[i].max = max(maxCandidates/hotShards, 1)
		h.shards[i].index = make(map[xxh3.Uint128]int32)
	}
	return h
}

// delivered notes a delivered prefix match.
func (h *hotPrefixes) delivered(request *lookup.Request, deepest []byte, nowMillis int64) {
	var buffer [256]byte
	owner := h.owner(request.Tenant, request.Model)
	text := appendField(buffer[:0], request.Tenant)
	text = appendField(text, request.Model)
	text = appendField(text, request.Scheme)
	text = appendField(text, request.Adapter)
	id := xxh3.Hash128Seed(append(text, deepest...), h.seed)
	shard := &h.shards[id.Lo%hotShards]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	shard.count(id, owner, nowMillis/hotWindowMillis, h.threshold)
}

// owner identifies a tenant and model.
func (h *hotPrefixes) owner(tenant, model string) uint64 {
	var buffer [128]byte
	return xxh3.HashSeed(append(appendField(buffer[:0], tenant), model...), h.seed)
}

// appendField appends a name so that no two lists of names look alike. Names
// hold no zero byte.
func appendField(dst []byte, name string) []byte { return append(append(dst, name...), 0) }

// total returns how many keys are hot.
func (h *hotPrefixes) total(nowMillis int64) int64 {
	return h.countHot(nowMillis, func(*hotKey) bool { return true })
}

// of returns how many keys of a tenant and model are hot.
func (h *hotPrefixes) of(tenant, model string, nowMillis int64) int64 {
	owner := h.owner(tenant, model)
	return h.countHot(nowMillis, func(k *hotKey) bool { return k.owner == owner })
}

func (h *hotPrefixes) countHot(nowMillis int64, wanted func(*hotKey) bool) (n int64) {
	window := nowMillis / hotWindowMillis
	for i := range h.shards {
		shard := &h.shards[i]
		shard.mu.Lock()
		for j := range shard.keys {
			if k := &shard.keys[j]; k.uses(window) >= h.threshold && wanted(k) {
				n++
			}
		}
		shard.mu.Unlock()
	}
	return n
}

// uses returns how often the key was matched in a window and the one before.
func (k *hotKey) uses(window int64) uint32 {
	switch k.window {
	case window:
		return k.current + k.previous
	case window - 1:
		return k.current
	default:
		return 0
	}
}

// use counts one match.
func (k *hotKey) use(window int64) {
	switch {
	case k.window == window-1:
		k.previous, k.current = k.current, 0
	case k.window < window:
		k.previous, k.current = 0, 0
	}
	k.window = max(k.window, window)
	k.current++
}

func (s *hotShard) count(id xxh3.Uint128, owner uint64, window int64, threshold uint32) {
	if at, ok := s.index[id]; ok {
		s.keys[at].use(window)
		return
	}
	fresh := hotKey{id: id, owner: owner, window: window, current: 1}
	if len(s.keys) < s.max {
		s.index[id] = int32(len(s.keys))
		s.keys = append(s.keys, fresh)
		return
	}
	victim := s.coldest(window)
	if s.keys[victim].uses(window) >= threshold {
		return
	}
	delete(s.index, s.keys[victim].id)
	s.keys[victim] = fresh
	s.index[id] = int32(victim)
}

// coldest returns the least used of the next few candidates. They take turns,
// so that keys nobody uses any more leave before long.
func (s *hotShard) coldest(window int64) int {
	coldest := s.turn
	for i := range hotSample {
		if at := (s.turn + i) % len(s.keys); s.keys[at].uses(window) < s.keys[coldest].uses(window) {
			coldest = at
		}
	}
	s.turn = (s.turn + hotSample) % len(s.keys)
	return coldest
}

// HotPrefixes returns how many keys are hot: the deepest match of the best
// replica in enough delivered answers of the current and the previous ten
// minutes.
func (s *Server) HotPrefixes() int64 { return s.hot.total(s.options.Now().UnixMilli()) }

// noteHot counts a delivered prefix match.
func (s *Server) noteHot(request *lookup.Request, decision *lookup.Decision) {
	if decision.Reason == lookup.PrefixMatch {
		s.hot.delivered(request, decision.DeepestKey, s.options.Now().UnixMilli())
	}
}
