// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"container/list"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/auth"
	"github.com/inferencecache/inference-cache/internal/index"
)

// LimitOptions bound what one replica may write. The zero value works.
type LimitOptions struct {
	// MaxEntries bounds what a replica holds of a model. Default twice the
	// median of the model's replicas in the tenant, at least 100,000;
	// negative = no bound.
	MaxEntries int64
	// BlocksPerSecond bounds what a replica and its ranks send, with a burst
	// of BurstBlocks. Defaults 50,000 and 500,000; negative = no bound.
	BlocksPerSecond, BurstBlocks int
	// Bounds says for a call whether it is bounded at all. Default all are.
	Bounds func(context.Context) bool
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

const (
	minMaxEntries = 100_000
	// peakWindow is how long a median counts after it has fallen: at most two
	// windows. Fresh replicas must not take from those that are warm.
	peakWindow = 15 * time.Minute
	// medianLife is how long a median is good for.
	medianLife = time.Second
	maxBuckets = 65_536
)

// Limits holds replicas to their bounds. It serves a Contract and a SyncServer
// of one index and is safe for concurrent use.
type Limits struct {
	options LimitOptions
	index   *index.Index
	// announced tells what sessions hold or are about to send.
	announced func(f func(key sessionKey, blocks int64))

	mu      sync.Mutex
	buckets map[bucketKey]*list.Element // of *bucket, guarded by mu
	order   *list.List                  // by use, guarded by mu
	peaks   map[modelKey]peak           // guarded by mu
	median  time.Time                   // when medians were taken, guarded by mu
	rotated time.Time                   // guarded by mu
}

type bucketKey struct{ tenant, pod string }

// bucket may go into debt, so that a message is taken whole or not at all.
type bucket struct {
	key    bucketKey
	tokens float64
	filled time.Time
}

type modelKey struct{ tenant, model string }

// peak is the largest median of this window and of the one before.
type peak struct{ current, previous int64 }

// NewLimits returns Limits over an index.
func NewLimits(x *index.Index, options LimitOptions) *Limits {
	if options.BlocksPerSecond == 0 {
		options.BlocksPerSecond = 50_000
	}
	if options.BurstBlocks == 0 {
		options.BurstBlocks = 500_000
	}
	if options.Bounds == nil {
		options.Bounds = func(context.Context) bool { return true }
	}
	if options.Now == nil {
		options.Now = time.Now
	}
	return &Limits{
		options: options, index: x,
		announced: func(func(sessionKey, int64)) {},
		buckets:   make(map[bucketKey]*list.Element),
		order:     list.New(),
		peaks:     make(map[modelKey]peak),
	}
}

// bounds says whether a call is bounded. A nil Limits bounds none.
func (l *Limits) bounds(ctx context.Context) bool { return l != nil && l.options.Bounds(ctx) }

// debt returns how long a replica has to wait before it may send more.
func (l *Limits) debt(tenant, replica string) time.Duration {
	if l.options.BlocksPerSecond < 0 || l.options.BurstBlocks < 0 {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.bucketLocked(tenant, replica)
	if b.tokens >= 0 {
		return 0
	}
	return time.Duration(-b.tokens / float64(l.options.BlocksPerSecond) * float64(time.Second))
}

// charge takes note of what a replica sent.
func (l *Limits) charge(tenant, replica string, blocks int) {
	if blocks == 0 || l.options.BlocksPerSecond < 0 || l.options.BurstBlocks < 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bucketLocked(tenant, replica).tokens -= float64(blocks)
}

func (l *Limits) bucketLocked(tenant, replica string) *bucket {
	key, now := bucketKey{tenant, auth.PodOf(replica)}, l.options.Now()
	element := l.buckets[key]
	if element == nil {
		if len(l.buckets) >= maxBuckets {
			delete(l.buckets, l.order.Remove(l.order.Front()).(*bucket).key)
		}
		element = l.order.PushBack(&bucket{key: key, tokens: float64(l.options.BurstBlocks), filled: now})
		l.buckets[key] = element
	}
	l.order.MoveToBack(element)
	b := element.Value.(*bucket)
	if passed := now.Sub(b.filled).Seconds(); passed > 0 {
		b.tokens = min(b.tokens+passed*float64(l.options.BlocksPerSecond), float64(l.options.BurstBlocks))
		b.filled = now
	}
	return b
}

// full reports whether a replica holds as much of a model as it may, or would
// with this many blocks.
func (l *Limits) full(scope index.Scope, blocks int64) bool {
	switch limit := l.options.MaxEntries; {
	case limit < 0:
		return false
	case limit > 0:
		return blocks > limit
	case blocks <= minMaxEntries:
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refreshLocked()
	p := l.peaks[modelKey{scope.Tenant, scope.Model}]
	return blocks > 2*max(p.current, p.previous)
}

// held returns what a replica holds of a model.
func (l *Limits) held(scope index.Scope, replica string) int64 {
	return l.index.Replica(scope.Tenant, scope.Model, replica, l.options.Now().UnixMilli()).Memberships
}

// Refresh takes note of what replicas hold now. It is to be called every few
// seconds, so that a median is remembered when it falls.
func (l *Limits) Refresh() {
	if l.options.MaxEntries != 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refreshLocked()
}

func (l *Limits) refreshLocked() {
	now := l.options.Now()
	if now.Sub(l.median) < medianLife {
		return
	}
	l.median = now
	if now.Sub(l.rotated) >= peakWindow {
		l.rotated = now
		for key, p := range l.peaks {
			if p.current == 0 {
				delete(l.peaks, key)
				continue
			}
			l.peaks[key] = peak{previous: p.current}
		}
	}
	for key, sizes := range l.sizes() {
		slices.Sort(sizes)
		p := l.peaks[key]
		p.current = max(p.current, sizes[(len(sizes)-1)/2])
		l.peaks[key] = p
	}
}

// sizes are those of each model's replicas, by what they hold or announce.
func (l *Limits) sizes() map[modelKey][]int64 {
	type replicaKey struct {
		model   modelKey
		replica string
	}
	largest := make(map[replicaKey]int64)
	l.index.EachServing(func(row index.ServingRow) {
		largest[replicaKey{modelKey{row.Tenant, row.Model}, row.Replica}] = row.Memberships
	})
	l.announced(func(key sessionKey, blocks int64) {
		at := replicaKey{modelKey{key.scope.Tenant, key.scope.Model}, key.replica}
		largest[at] = max(largest[at], blocks)
	})
	sizes := make(map[modelKey][]int64)
	for key, size := range largest {
		if size > 0 {
			sizes[key.model] = append(sizes[key.model], size)
		}
	}
	return sizes
}

// eachAnnounced calls f with what each session's publisher says it holds.
func (r *registry) eachAnnounced(f func(key sessionKey, blocks int64)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, s := range r.sessions {
		if s.owner != nil {
			f(key, max(s.expected.Load(), s.resident.Load()))
		}
	}
}
