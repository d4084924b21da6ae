// SPDX-License-Identifier: Apache-2.0

package ingest_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/ingest"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// bounded is a fixture with limits, and a contract over the same index.
type bounded struct {
	*fixture
	t        *testing.T
	limits   *ingest.Limits
	contract *ingest.Contract
}

func newBounded(t *testing.T, options ingest.LimitOptions) *bounded {
	x, registry := index.New(index.Config{}), prometheus.NewRegistry()
	b := &bounded{t: t, limits: ingest.NewLimits(x, options)}
	shared := ingest.Options{Metrics: ingest.NewMetrics(registry), Limits: b.limits}
	b.fixture = &fixture{index: x, registry: registry, sync: ingest.NewSyncServer(x, ingest.SyncOptions{Options: shared, Epoch: "epoch-1"})}
	b.contract = ingest.NewContract(x, shared)
	return b
}

// holds makes a replica hold keys without asking the limits.
func (b *bounded) holds(replica string, keys int) {
	b.t.Helper()
	run, now := make([]uint64, keys), time.Now().UnixMilli()
	for i := range run {
		run[i] = uint64(i)
	}
	b.index.ClearReplica(tenant, model, replica)
	b.index.Apply(&index.Batch{Scope: scope, Replica: replica, AtMillis: now, NowMillis: now, Ops: []index.Op{{
		Kind: index.OpStore, Tier: index.TierT1, Keys: index.Keys{Short: run}, Tokens: index.Tokens{First: 16, Step: 16},
	}}})
}

// report sends keys over the contract and returns the acknowledgement's code.
func (b *bounded) report(replica string, keys ...uint64) string {
	b.t.Helper()
	update := &pb.CacheStateUpdate{TenantId: tenant, ModelId: model, HashScheme: scheme, ReplicaId: replica, Stats: &pb.ReplicaStats{HitRate: 1}}
	for _, key := range keys {
		update.Prefixes = append(update.Prefixes, &pb.PrefixEntry{PrefixHash: hash(key), TokenCount: 16})
	}
	return b.contract.Update(b.t.Context(), update).Code()
}

func TestEntriesOfAReplicaAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBounded(t, ingest.LimitOptions{MaxEntries: 3})
		for _, step := range []struct {
			what string
			do   func() string
			want string
		}{
			{"up to the bound", func() string { return b.report(replica, 1, 2, 3) }, ""},
			{"beyond it", func() string { return b.report(replica, 4) }, "PARTIAL"}, // the stats apply
			{"another replica", func() string { return b.report("pod-1", 4) }, ""},
			{"a removal makes room", func() string {
				b.contract.Event(t.Context(), &pb.CacheEvent{
					Type: pb.CacheEvent_PREFIX_EVICTED, TenantId: tenant, ModelId: model, ReplicaId: replica, PrefixHash: hash(1),
				})
				return b.report(replica, 5)
			}, ""},
		} {
			if got := step.do(); got != step.want {
				t.Errorf("%s: %q, want %q", step.what, got, step.want)
			}
		}
		b.wantHeld(t, "", map[uint64]int32{2: 16, 3: 16, 5: 16})
		b.wantCounters(t, "inferencecache_ingest_dropped_total", map[string]float64{"replica_limit,contract": 1})
	})
}

func TestEntriesOfASessionAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBounded(t, ingest.LimitOptions{MaxEntries: 3})
		c := b.live(t, helloOf(1, 1))
		c.send(delta(4, store(storedRun(4)), remove(1), store(storedRun(5))))
		c.wantAck(4)
		b.wantHeld(t, "", map[uint64]int32{2: 32, 3: 48})
		c.send(delta(5, store(storedRun(4))))
		c.wantAck(5)
		b.wantHeld(t, "", map[uint64]int32{2: 32, 3: 48, 4: 16})
		c.send(begin(6))
		c.send(chunk(7, storedRun(7, 8)))
		c.send(chunk(8, storedRun(9, 10)))
		c.send(end(9, 4))
		c.wantAck(9)
		b.wantHeld(t, "", map[uint64]int32{7: 16, 8: 32})
		b.wantCounters(t, "inferencecache_ingest_dropped_total", map[string]float64{"replica_limit,sync": 3})
	})
}

// The bound is twice the median, and falls slowly.
func TestEntriesAreBoundedByThePeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBounded(t, ingest.LimitOptions{BlocksPerSecond: -1})
		fresh := uint64(1 << 40)
		accepts := func(what, replica string, want bool) {
			t.Helper()
			fresh++
			if got := b.report(replica, fresh) == ""; got != want {
				t.Errorf("%s: accepted %v, want %v", what, got, want)
			}
			time.Sleep(time.Second)
		}
		b.holds("rogue", 150_000)
		b.holds("a", 60_000)
		b.holds("b", 60_000)
		accepts("a replica of more than twice the median", "rogue", false)
		accepts("its peers", "a", true)
		b.holds("rogue", 119_000)
		accepts("a replica of less than that", "rogue", true)
		b.holds("a", 1)
		b.holds("b", 1)
		accepts("a warm replica after the others began anew", "rogue", true)
		for range 31 {
			time.Sleep(time.Minute)
			b.limits.Refresh()
		}
		b.holds("rogue", 119_000)
		accepts("half an hour later", "rogue", false)
		b.holds("rogue", 99_000)
		accepts("a replica below the least bound", "rogue", true)
	})
}

// What sessions announce counts: after a restart of the server no replica
// has anything yet.
func TestAnnouncedEntriesCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBounded(t, ingest.LimitOptions{BlocksPerSecond: -1})
		for i := range 3 {
			hello := helloOf(1, 1)
			hello.ReplicaId = fmt.Sprint("peer-", i)
			peer := b.dial(t)
			peer.hello(hello)
			start := begin(1)
			start.GetSnapshotBegin().ExpectedBlocks = 130_000
			peer.send(start)
			peer.wantAck(1)
		}
		b.holds(replica, 150_000)
		if got := b.report(replica, 1<<40); got != "" {
			t.Errorf("a replica like its peers: %s", got)
		}
		b.holds(replica, 270_000)
		time.Sleep(time.Second)
		if got := b.report(replica, 1<<40); got != "PARTIAL" {
			t.Errorf("a replica of twice as much: %q", got)
		}
	})
}

func TestBlocksOfAReplicaAreBoundedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBounded(t, ingest.LimitOptions{BlocksPerSecond: 10, BurstBlocks: 20})
		keys := func(n int) (keys []uint64) {
			for i := range n {
				keys = append(keys, uint64(i))
			}
			return keys
		}
		for _, step := range []struct {
			what    string
			after   time.Duration
			replica string
			blocks  int
			want    string
		}{
			{"a burst", 0, replica, 20, ""},
			{"what is left of it", 0, replica, 10, ""},
			{"beyond the burst", 0, replica, 1, "PARTIAL"},
			{"another rank of the pod", 0, replica + "#1", 1, "PARTIAL"},
			{"another pod", 0, "pod-1", 20, ""},
			{"before the debt is paid", time.Second - time.Millisecond, replica, 1, "PARTIAL"},
			{"once it is", time.Millisecond, replica, 10, ""},
		} {
			time.Sleep(step.after)
			if got := b.report(step.replica, keys(step.blocks)...); got != step.want {
				t.Errorf("%s: %q, want %q", step.what, got, step.want)
			}
		}
		b.wantCounters(t, "inferencecache_ingest_dropped_total", map[string]float64{"rate_limit,contract": 3})
	})
}

// A session that sends too fast waits and loses nothing.
func TestSessionsWaitForTheirRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBounded(t, ingest.LimitOptions{BlocksPerSecond: 1, BurstBlocks: 3})
		c := b.live(t, helloOf(1, 1))
		began := time.Now()
		const frames = 20
		for i := range uint64(frames) {
			if err := c.stream.Send(delta(4+i, store(storedRun(10+2*i, 11+2*i)))); err != nil {
				t.Fatal(err)
			}
		}
		c.wantAck(3 + frames)
		// All but the last frame's blocks have to be paid for.
		if took := time.Since(began); took != 2*(frames-1)*time.Second {
			t.Errorf("%d frames took %s", frames, took)
		}
		want := map[uint64]int32{1: 16, 2: 32, 3: 48}
		for i := range uint64(frames) {
			want[10+2*i], want[11+2*i] = 16, 32
		}
		b.wantHeld(t, "", want)
		b.wantCounters(t, "inferencecache_sync_throttled_total", map[string]float64{"": frames})
		b.wantCounters(t, "inferencecache_ingest_dropped_total", map[string]float64{})
	})
}

func TestLimitsThatDoNotApply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, options := range map[string]ingest.LimitOptions{
			"a call that is not bounded": {
				MaxEntries: 1, BlocksPerSecond: 1, BurstBlocks: 1, Bounds: func(context.Context) bool { return false },
			},
			"no bounds": {MaxEntries: -1, BlocksPerSecond: -1},
		} {
			b := newBounded(t, options)
			for key := range uint64(5) {
				if got := b.report(replica, 2*key, 2*key+1); got != "" {
					t.Errorf("%s: update %d: %s", name, key, got)
				}
			}
			if diff := cmp.Diff(10, len(held(b.index, "", time.Now(), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9))); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
	})
}
