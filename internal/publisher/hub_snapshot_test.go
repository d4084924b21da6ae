// SPDX-License-Identifier: Apache-2.0

package publisher_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/ingest"
	"github.com/inferencecache/inference-cache/internal/publisher"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

const snapshotKeys = 10_000

func chainOf(first uint64) index.Keys {
	keys := index.Keys{Short: make([]uint64, snapshotKeys)}
	for i := range keys.Short {
		keys.Short[i] = first + uint64(i)
	}
	return keys
}

// While a snapshot replaces what a replica holds, a lookup sees all of the old
// state or all of the new one.
func TestSnapshotIsAtomicForLookups(t *testing.T) {
	const oldFirst, newFirst = 1, 1_000_000
	s := newServer(ingest.SyncOptions{})
	mirror := newFakeMirror()
	mirror.store("", index.TierT1, oldFirst, snapshotKeys)
	target := newSwitchTarget("s", s.sync)
	hub := publisher.NewHub(testIdentity(), mirror, []publisher.Target{target}, publisher.HubOptions{QueueFrames: 1})
	stop := startHub(t, hub)
	eventually(t, "first snapshot", func() bool { return s.memberships() == snapshotKeys })

	oldChain, newChain := chainOf(oldFirst), chainOf(newFirst)
	var stopped atomic.Bool
	var sawNew atomic.Int64
	var lookups sync.WaitGroup
	for range 2 {
		lookups.Go(func() {
			for !stopped.Load() {
				view := s.index.Acquire(testScope, "", time.Now().UnixMilli(), index.DefaultTTLMillis)
				before := runLength(&view, oldChain)
				after := runLength(&view, newChain)
				view.Release()
				switch {
				case before == snapshotKeys && after == 0:
				case before == 0 && after == snapshotKeys:
					sawNew.Add(1)
				default:
					t.Errorf("a lookup saw %d old and %d new blocks, want all of one", before, after)
					return
				}
			}
		})
	}

	// With a queue of one frame, two deltas while the server is away overflow
	// and leave a snapshot as the only way.
	target.use(nil)
	target.disconnect()
	eventually(t, "disconnection", func() bool { return s.sync.Report().Lost == 1 })
	hub.Publish(func() []*pb.SyncDelta {
		return append(mirror.clear(), mirror.store("", index.TierT1, newFirst, snapshotKeys)...)
	})
	target.use(s.sync)
	eventually(t, "lookups of the new state", func() bool { return sawNew.Load() > 0 || t.Failed() })
	stopped.Store(true)
	lookups.Wait()
	stop()
	if diff := s.diffMirror(mirror); diff != "" {
		t.Errorf("index differs from the mirror (-mirror +index):\n%s", diff)
	}
}

func runLength(view *index.View, chain index.Keys) int {
	for _, match := range view.MatchChain(nil, chain, index.Tokens{Step: testBlock}) {
		if match.Replica == testReplica {
			return int(match.Blocks)
		}
	}
	return 0
}
