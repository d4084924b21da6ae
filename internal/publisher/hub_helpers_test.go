// SPDX-License-Identifier: Apache-2.0

package publisher_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/ingest"
	"github.com/inferencecache/inference-cache/internal/publisher"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

const (
	testTenant  = "team"
	testModel   = "llama"
	testScheme  = "vllm"
	testReplica = "pod-0"
	testBlock   = 16
)

var testScope = index.Scope{Tenant: testTenant, Model: testModel, Scheme: testScheme}

type heldKey struct {
	Adapter string
	Key     uint64
}

type heldAs struct {
	Tier   index.Tier
	Tokens int32
}

// fakeMirror is a mirror without an engine. The hub's lock guards it.
type fakeMirror struct {
	held map[heldKey]heldAs
}

func newFakeMirror() *fakeMirror { return &fakeMirror{held: make(map[heldKey]heldAs)} }

func (m *fakeMirror) Snapshot(yield func(*pb.StoredRun) bool) {
	keys := slices.SortedFunc(maps.Keys(m.held), func(a, b heldKey) int {
		if a.Key < b.Key {
			return -1
		}
		return 1
	})
	for _, key := range keys {
		as := m.held[key]
		if !yield(&pb.StoredRun{
			AdapterId:       key.Adapter,
			Tier:            pb.CacheTier(as.Tier),
			Keys:            []uint64{key.Key},
			FirstTokenCount: as.Tokens,
			BlockTokenCount: testBlock,
		}) {
			return
		}
	}
}

func (m *fakeMirror) BlockSize() int      { return testBlock }
func (m *fakeMirror) ViewComplete() bool  { return true }
func (m *fakeMirror) ResidentBlocks() int { return len(m.held) }

// store, remove and clear change the mirror and return the delta that says so.
func (m *fakeMirror) store(adapter string, tier index.Tier, first uint64, n int) []*pb.SyncDelta {
	run := &pb.StoredRun{
		AdapterId: adapter, Tier: pb.CacheTier(tier), FirstTokenCount: testBlock, BlockTokenCount: testBlock,
	}
	for i := range n {
		key := first + uint64(i)
		run.Keys = append(run.Keys, key)
		m.held[heldKey{adapter, key}] = heldAs{tier, int32(testBlock * (i + 1))}
	}
	return oneOp(&pb.SyncOp{Op: &pb.SyncOp_Stored{Stored: run}})
}

func (m *fakeMirror) remove(adapter string, first uint64, n int) []*pb.SyncDelta {
	run := &pb.RemovedRun{AdapterId: adapter}
	for i := range n {
		key := first + uint64(i)
		run.Keys = append(run.Keys, key)
		delete(m.held, heldKey{adapter, key})
	}
	return oneOp(&pb.SyncOp{Op: &pb.SyncOp_Removed{Removed: run}})
}

func (m *fakeMirror) clear() []*pb.SyncDelta {
	clear(m.held)
	return oneOp(&pb.SyncOp{Op: &pb.SyncOp_Cleared{Cleared: &pb.ClearedAll{}}})
}

func oneOp(op *pb.SyncOp) []*pb.SyncDelta {
	return []*pb.SyncDelta{{TimestampUs: time.Now().UnixMicro(), Ops: []*pb.SyncOp{op}}}
}

// server is one server process: an index behind a sync handler.
type server struct {
	index *index.Index
	sync  *ingest.SyncServer
}

func newServer(options ingest.SyncOptions) *server {
	x := index.New(index.Config{})
	return &server{index: x, sync: ingest.NewSyncServer(x, options)}
}

// holdings reads back what the index says the test replica holds of keys.
func (s *server) holdings(keys []heldKey) map[heldKey]heldAs {
	byAdapter := make(map[string][]uint64)
	for _, key := range keys {
		byAdapter[key.Adapter] = append(byAdapter[key.Adapter], key.Key)
	}
	held := make(map[heldKey]heldAs)
	now := time.Now().UnixMilli()
	for adapter, keys := range byAdapter {
		view := s.index.Acquire(testScope, adapter, now, index.DefaultTTLMillis)
		for _, key := range keys {
			for _, match := range view.MatchExact(nil, index.Keys{Short: []uint64{key}}) {
				if match.Replica == testReplica {
					held[heldKey{adapter, key}] = heldAs{match.Tier, match.Tokens}
				}
			}
		}
		view.Release()
	}
	return held
}

func (s *server) memberships() int64 {
	return s.index.Counters(time.Now().UnixMilli()).Memberships
}

// diffMirror compares everything the index holds with the mirror.
func (s *server) diffMirror(m *fakeMirror) string {
	keys := slices.Collect(maps.Keys(m.held))
	if diff := cmp.Diff(m.held, s.holdings(keys)); diff != "" {
		return diff
	}
	return cmp.Diff(int64(len(m.held)), s.memberships())
}

// switchTarget is a target whose server can be replaced and taken down.
type switchTarget struct {
	name string

	mu     sync.Mutex
	server pb.CacheSyncServer
	cut    context.CancelFunc
	opens  int
}

var errServerDown = errors.New("server is down")

func newSwitchTarget(name string, s pb.CacheSyncServer) *switchTarget {
	return &switchTarget{name: name, server: s}
}

func (t *switchTarget) Name() string { return t.name }

func (t *switchTarget) Open(ctx context.Context) (publisher.Stream, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.opens++
	if t.server == nil {
		return nil, errServerDown
	}
	ctx, t.cut = context.WithCancel(ctx)
	return publisher.NewInProcTarget(t.name, t.server).Open(ctx)
}

// use replaces the server (nil = down) without touching open streams.
func (t *switchTarget) use(s pb.CacheSyncServer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.server = s
}

// disconnect breaks the open stream.
func (t *switchTarget) disconnect() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cut != nil {
		t.cut()
	}
}

func testIdentity() publisher.Identity {
	return publisher.Identity{
		Tenant: testTenant, Model: testModel, Scheme: testScheme, Replica: testReplica,
		RankCount: 1, PodUID: "uid-0", Epoch: 7, StartedAt: time.UnixMilli(1_000_000),
		ClientVersion: "test",
	}
}

// startHub runs a hub until the test ends or the returned function is called.
func startHub(t *testing.T, hub *publisher.Hub) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- hub.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("hub ended with %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// eventually waits for something that happens on a real network.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s did not happen in time", what)
		}
	}
}
