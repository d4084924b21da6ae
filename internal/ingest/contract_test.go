// SPDX-License-Identifier: Apache-2.0

package ingest_test

import (
	"bytes"
	"context"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/ingest"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// start is the time of the contract tests.
var start = time.UnixMilli(1_700_000_000_000)

type contractFixture struct {
	index    *index.Index
	contract *ingest.Contract
	registry *prometheus.Registry
}

func newContract(options ingest.Options) *contractFixture {
	f := &contractFixture{index: index.New(index.Config{}), registry: prometheus.NewRegistry()}
	options.Metrics = ingest.NewMetrics(f.registry)
	options.ReservedTenant = reserved
	options.Now = func() time.Time { return start }
	f.contract = ingest.NewContract(f.index, options)
	return f
}

func (f *contractFixture) wantDropped(t *testing.T, want map[string]float64) {
	t.Helper()
	if want == nil {
		want = map[string]float64{}
	}
	if diff := cmp.Diff(want, counters(t, f.registry, "inferencecache_ingest_dropped_total")); diff != "" {
		t.Errorf("dropped (-want +got):\n%s", diff)
	}
}

func update(prefixes ...*pb.PrefixEntry) *pb.CacheStateUpdate {
	return &pb.CacheStateUpdate{
		ReplicaId: replica, ModelId: model, TenantId: tenant, HashScheme: scheme, Prefixes: prefixes,
	}
}

func prefix(key uint64, tokens int32) *pb.PrefixEntry {
	return &pb.PrefixEntry{PrefixHash: hash(key), TokenCount: tokens}
}

func chain(counts []int32, keys ...uint64) *pb.PrefixEntry {
	entry := &pb.PrefixEntry{BlockTokenCounts: counts}
	for _, key := range keys {
		entry.BlockHashes = append(entry.BlockHashes, hash(key))
	}
	return entry
}

func dropped(reasons ...string) map[string]float64 {
	counts := make(map[string]float64)
	for _, reason := range reasons {
		counts[reason+",contract"]++
	}
	return counts
}

func TestUpdate(t *testing.T) {
	long := strings.Repeat("x", 257)
	with := func(u *pb.CacheStateUpdate, change func(*pb.CacheStateUpdate)) *pb.CacheStateUpdate {
		change(u)
		return u
	}
	tests := map[string]struct {
		update      *pb.CacheStateUpdate
		wantCode    string
		wantHeld    map[uint64]int32
		wantDropped map[string]float64
	}{
		"an entry with a prefix hash": {
			update: update(prefix(1, 64)), wantHeld: map[uint64]int32{1: 64},
		},
		"a chain counts tokens from its start": {
			update: update(chain([]int32{16, 16, 8}, 1, 2, 3)), wantHeld: map[uint64]int32{1: 16, 2: 32, 3: 40},
		},
		"a chain with a prefix hash stores both": {
			update: update(func() *pb.PrefixEntry {
				entry := chain([]int32{16, 16}, 1, 2)
				entry.PrefixHash, entry.TokenCount = hash(9), 33
				return entry
			}()),
			wantHeld: map[uint64]int32{1: 16, 2: 32, 9: 33},
		},
		"an update without anything": {update: update(), wantHeld: map[uint64]int32{}},
		"a bad entry is dropped alone": {
			update:   update(prefix(1, 16), &pb.PrefixEntry{TokenCount: 16}, prefix(2, 32)),
			wantCode: "PARTIAL", wantHeld: map[uint64]int32{1: 16, 2: 32}, wantDropped: dropped("hash_empty"),
		},
		"a hash too long": {
			update:   update(&pb.PrefixEntry{PrefixHash: bytes.Repeat([]byte{1}, 65)}),
			wantCode: "DROPPED", wantHeld: map[uint64]int32{}, wantDropped: dropped("hash_too_long"),
		},
		"chain lengths that differ do not fall back to the prefix hash": {
			update: update(func() *pb.PrefixEntry {
				entry := chain([]int32{16}, 1, 2)
				entry.PrefixHash = hash(9)
				return entry
			}()),
			wantCode: "DROPPED", wantHeld: map[uint64]int32{}, wantDropped: dropped("chain_mismatch"),
		},
		"counts without hashes": {
			update:   update(&pb.PrefixEntry{PrefixHash: hash(1), BlockTokenCounts: []int32{16}}),
			wantCode: "DROPPED", wantHeld: map[uint64]int32{}, wantDropped: dropped("chain_mismatch"),
		},
		"a negative count": {
			update:   update(prefix(1, -1), chain([]int32{16, -16}, 2, 3)),
			wantCode: "DROPPED", wantHeld: map[uint64]int32{}, wantDropped: dropped("count_negative", "count_negative"),
		},
		"a sum that overflows": {
			update:   update(chain([]int32{math.MaxInt32, 1}, 1, 2)),
			wantCode: "DROPPED", wantHeld: map[uint64]int32{}, wantDropped: dropped("count_overflow"),
		},
		"the rest after too many keys": {
			update:   update(prefix(1, 16), chain([]int32{1, 1, 1, 1}, 2, 3, 4, 5), prefix(6, 16)),
			wantCode: "PARTIAL", wantHeld: map[uint64]int32{1: 16}, wantDropped: dropped("update_too_large"),
		},
		"the reserved tenant": {
			update:   with(update(prefix(1, 16)), func(u *pb.CacheStateUpdate) { u.TenantId = reserved }),
			wantCode: "DROPPED", wantHeld: map[uint64]int32{}, wantDropped: dropped("reserved_tenant"),
		},
		"no replica": {
			update:   with(update(prefix(1, 16)), func(u *pb.CacheStateUpdate) { u.ReplicaId = "" }),
			wantCode: "DROPPED", wantHeld: map[uint64]int32{}, wantDropped: dropped("no_replica"),
		},
		"no hash scheme, stats still apply": {
			update: with(update(prefix(1, 16)), func(u *pb.CacheStateUpdate) {
				u.HashScheme, u.Stats = "", &pb.ReplicaStats{}
			}),
			wantCode: "PARTIAL", wantHeld: map[uint64]int32{}, wantDropped: dropped("no_hash_scheme"),
		},
		"no model": {
			update:   with(update(prefix(1, 16)), func(u *pb.CacheStateUpdate) { u.ModelId = "" }),
			wantCode: "DROPPED", wantHeld: map[uint64]int32{}, wantDropped: dropped("no_model"),
		},
		"a tenant too long": {
			update:   with(update(prefix(1, 16)), func(u *pb.CacheStateUpdate) { u.TenantId = long }),
			wantCode: "DROPPED", wantHeld: map[uint64]int32{}, wantDropped: dropped("id_too_long"),
		},
		"a replica with a control character": {
			update:   with(update(prefix(1, 16)), func(u *pb.CacheStateUpdate) { u.ReplicaId = "a\x7f" }),
			wantCode: "DROPPED", wantHeld: map[uint64]int32{}, wantDropped: dropped("id_invalid"),
		},
		"an adapter too long costs its entry": {
			update:   update(&pb.PrefixEntry{PrefixHash: hash(1), AdapterId: long}, prefix(2, 16)),
			wantCode: "PARTIAL", wantHeld: map[uint64]int32{2: 16}, wantDropped: dropped("id_too_long"),
		},
		"a timestamp in the future is clamped": {
			update: with(update(prefix(1, 16)), func(u *pb.CacheStateUpdate) {
				u.TimestampUs = start.Add(time.Hour).UnixMicro()
			}),
			wantHeld: map[uint64]int32{1: 16}, wantDropped: dropped("timestamp_future"),
		},
		"a timestamp slightly ahead is not counted": {
			update: with(update(prefix(1, 16)), func(u *pb.CacheStateUpdate) {
				u.TimestampUs = start.Add(5 * time.Second).UnixMicro()
			}),
			wantHeld: map[uint64]int32{1: 16},
		},
		"a negative timestamp is now": {
			update:   with(update(prefix(1, 16)), func(u *pb.CacheStateUpdate) { u.TimestampUs = -1 }),
			wantHeld: map[uint64]int32{1: 16}, wantDropped: dropped("timestamp_negative"),
		},
		"what is older than the TTL is not stored": {
			update: with(update(prefix(1, 16)), func(u *pb.CacheStateUpdate) {
				u.TimestampUs = start.Add(-time.Hour).UnixMicro()
			}),
			wantCode: "DROPPED", wantHeld: map[uint64]int32{}, wantDropped: dropped("timestamp_expired"),
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := newContract(ingest.Options{MaxKeys: 4})
			result := f.contract.Update(t.Context(), tc.update)
			if got := result.Code(); got != tc.wantCode {
				t.Errorf("code %q, want %q", got, tc.wantCode)
			}
			if diff := cmp.Diff(tc.wantHeld, held(f.index, "", start, 1, 2, 3, 4, 5, 6, 9)); diff != "" {
				t.Errorf("held (-want +got):\n%s", diff)
			}
			f.wantDropped(t, tc.wantDropped)
		})
	}
}

func TestUpdateAdapterAndTier(t *testing.T) {
	f := newContract(ingest.Options{})
	u := update(
		&pb.PrefixEntry{PrefixHash: hash(1), TokenCount: 16, Tier: pb.CacheTier_CACHE_TIER_T2},
		&pb.PrefixEntry{PrefixHash: hash(2), TokenCount: 16, AdapterId: "own"},
		&pb.PrefixEntry{PrefixHash: hash(3), TokenCount: 16, Tier: 17},
		&pb.PrefixEntry{PrefixHash: hash(4), TokenCount: 16, Tier: -3},
	)
	u.AdapterId = "default"
	f.contract.Update(t.Context(), u)
	tiers := func(adapter string) map[uint64]index.Tier {
		view := f.index.Acquire(scope, adapter, start.UnixMilli(), index.DefaultTTLMillis)
		defer view.Release()
		got := make(map[uint64]index.Tier)
		for key := range uint64(5) {
			for _, match := range view.MatchExact(nil, index.Keys{Short: []uint64{key}}) {
				got[key] = match.Tier
			}
		}
		return got
	}
	want := map[uint64]index.Tier{1: index.TierT2, 3: index.TierOther, 4: index.TierOther}
	if diff := cmp.Diff(want, tiers("default")); diff != "" {
		t.Errorf("adapter of the update (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[uint64]index.Tier{2: index.TierT1}, tiers("own")); diff != "" {
		t.Errorf("adapter of the entry (-want +got):\n%s", diff)
	}
}

func TestUpdateStats(t *testing.T) {
	f := newContract(ingest.Options{})
	u := update()
	u.Stats = &pb.ReplicaStats{
		ReplicaId: "forged", HitRate: float32(math.NaN()), Pressure: float32(math.Inf(1)), CacheMemoryBytes: 7, ClientVersion: "v1",
	}
	f.contract.Update(t.Context(), u)
	rows, _ := f.index.CacheState(tenant, model)
	at := start.UnixMilli()
	want := []index.ReplicaStatsRow{{Replica: replica, Stats: index.Stats{
		CacheMemoryBytes: 7, ClientVersion: "v1", LivenessMillis: at, ReportedMillis: at,
	}}}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("stats (-want +got):\n%s", diff)
	}
}

func TestEvent(t *testing.T) {
	tests := map[string]struct {
		event       *pb.CacheEvent
		wantCode    string
		wantBase    map[uint64]int32
		wantAdapter map[uint64]int32
		wantDropped map[string]float64
	}{
		"an eviction without adapter is for all adapters": {
			event:    &pb.CacheEvent{Type: pb.CacheEvent_PREFIX_EVICTED, PrefixHash: hash(1)},
			wantBase: map[uint64]int32{2: 32}, wantAdapter: map[uint64]int32{},
		},
		"an eviction with an adapter leaves the others": {
			event:    &pb.CacheEvent{Type: pb.CacheEvent_PREFIX_EVICTED, PrefixHash: hash(1), AdapterId: "lora"},
			wantBase: map[uint64]int32{1: 16, 2: 32}, wantAdapter: map[uint64]int32{},
		},
		"an eviction is not refused for its age": {
			event:    &pb.CacheEvent{Type: pb.CacheEvent_PREFIX_EVICTED, PrefixHash: hash(1), TimestampUs: 1},
			wantBase: map[uint64]int32{2: 32}, wantAdapter: map[uint64]int32{},
		},
		"an eviction of an absent hash": {
			event:    &pb.CacheEvent{Type: pb.CacheEvent_PREFIX_EVICTED, PrefixHash: hash(7)},
			wantBase: map[uint64]int32{1: 16, 2: 32}, wantAdapter: map[uint64]int32{1: 16},
		},
		"an eviction without hash": {
			event: &pb.CacheEvent{Type: pb.CacheEvent_PREFIX_EVICTED}, wantCode: "DROPPED",
			wantBase: map[uint64]int32{1: 16, 2: 32}, wantAdapter: map[uint64]int32{1: 16},
			wantDropped: dropped("hash_empty"),
		},
		"a clear drops all": {
			event:    &pb.CacheEvent{Type: pb.CacheEvent_ALL_CLEARED, AdapterId: "lora"},
			wantBase: map[uint64]int32{}, wantAdapter: map[uint64]int32{},
		},
		"other types have no effect on blocks": {
			event:    &pb.CacheEvent{Type: pb.CacheEvent_PREFIX_ADDED, PrefixHash: hash(3)},
			wantBase: map[uint64]int32{1: 16, 2: 32}, wantAdapter: map[uint64]int32{1: 16},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := newContract(ingest.Options{})
			f.contract.Update(t.Context(), update(prefix(1, 16), prefix(2, 32),
				&pb.PrefixEntry{PrefixHash: hash(1), TokenCount: 16, AdapterId: "lora"}))
			tc.event.TenantId, tc.event.ModelId, tc.event.ReplicaId = tenant, model, replica
			if got := f.contract.Event(t.Context(), tc.event).Ack(); !got.GetAccepted() || got.GetReasonCode() != tc.wantCode {
				t.Errorf("ack %v, want accepted with code %q", got, tc.wantCode)
			}
			if diff := cmp.Diff(tc.wantBase, held(f.index, "", start, 1, 2, 3)); diff != "" {
				t.Errorf("base (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantAdapter, held(f.index, "lora", start, 1, 2, 3)); diff != "" {
				t.Errorf("lora (-want +got):\n%s", diff)
			}
			f.wantDropped(t, tc.wantDropped)
		})
	}
}

// denyOthers allows one tenant.
type denyOthers struct{}

func (denyOthers) Authorize(_ context.Context, w ingest.Write) error {
	if w.Tenant != tenant {
		return &ingest.DeniedError{Reason: ingest.DenyTenant}
	}
	return nil
}

func TestAuthorizer(t *testing.T) {
	f := newContract(ingest.Options{Authorizer: denyOthers{}})
	forged := update(prefix(1, 16))
	forged.TenantId = "victim"
	if result := f.contract.Update(t.Context(), forged); !result.Unauthorized || result.Code() != "DROPPED" {
		t.Errorf("forged update: %+v, want unauthorized and dropped", result)
	}
	if result := f.contract.Update(t.Context(), update(prefix(1, 16))); result.Code() != "" {
		t.Errorf("own update: %+v, want applied", result)
	}
	f.wantDropped(t, dropped("unauthorized"))
	if diff := cmp.Diff(map[string]float64{"tenant": 1}, counters(t, f.registry, "inferencecache_ingest_denied_total")); diff != "" {
		t.Errorf("denied (-want +got):\n%s", diff)
	}
}

// reportServer serves the contract's ReportCacheState over loopback.
type reportServer struct {
	pb.UnimplementedInferenceCacheServer
	contract *ingest.Contract
}

func (s *reportServer) ReportCacheState(stream pb.InferenceCache_ReportCacheStateServer) error {
	return s.contract.Report(stream)
}

func serveReports(t *testing.T, contract *ingest.Contract) pb.InferenceCacheClient {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pb.RegisterInferenceCacheServer(server, &reportServer{contract: contract})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		server.Stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return pb.NewInferenceCacheClient(conn)
}

func TestReport(t *testing.T) {
	tests := map[string]struct {
		updates  []*pb.CacheStateUpdate
		wantCode string
	}{
		"all applied":       {[]*pb.CacheStateUpdate{update(prefix(1, 16)), update(prefix(2, 32))}, ""},
		"nothing sent":      {nil, ""},
		"one entry dropped": {[]*pb.CacheStateUpdate{update(prefix(1, 16)), update(prefix(2, -1))}, "PARTIAL"},
		"all dropped":       {[]*pb.CacheStateUpdate{update(prefix(2, -1))}, "DROPPED"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := newContract(ingest.Options{})
			stream, err := serveReports(t, f.contract).ReportCacheState(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, u := range tc.updates {
				if err := stream.Send(u); err != nil {
					t.Fatal(err)
				}
			}
			got, err := stream.CloseAndRecv()
			if err != nil || !got.GetAccepted() || got.GetReasonCode() != tc.wantCode {
				t.Errorf("ack %v, %v, want accepted with code %q", got, err, tc.wantCode)
			}
		})
	}
}

func TestReportEndsWithAckOnDrain(t *testing.T) {
	f := newContract(ingest.Options{})
	stream, err := serveReports(t, f.contract).ReportCacheState(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(update(prefix(1, 16))); err != nil {
		t.Fatal(err)
	}
	f.contract.Drain()
	var ack pb.Ack
	if err := stream.RecvMsg(&ack); err != nil || !ack.GetAccepted() {
		t.Errorf("ack %v, %v, want accepted although the producer's side is open", &ack, err)
	}
}

func TestReportEndsAfterTooManyRefusals(t *testing.T) {
	f := newContract(ingest.Options{Authorizer: denyOthers{}})
	stream, err := serveReports(t, f.contract).ReportCacheState(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	forged := update(prefix(1, 16))
	forged.TenantId = "victim"
	for range 200 {
		if stream.Send(forged) != nil {
			break
		}
	}
	if _, err := stream.CloseAndRecv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("stream ended with %v, want PermissionDenied", err)
	}
}

func TestMetricsUnderLoad(t *testing.T) {
	f := newContract(ingest.Options{})
	u := update(prefix(1, 16), prefix(2, 32))
	u.TimestampUs, u.Stats = start.Add(-time.Second).UnixMicro(), &pb.ReplicaStats{}
	f.contract.Update(t.Context(), u)
	f.contract.Update(t.Context(), u)
	f.contract.Event(t.Context(), &pb.CacheEvent{
		Type: pb.CacheEvent_ALL_CLEARED, TenantId: tenant, ModelId: model, ReplicaId: replica,
	})
	wantUpdates := map[string]float64{"both,contract": 2, "event,contract": 1}
	if diff := cmp.Diff(wantUpdates, counters(t, f.registry, "inferencecache_ingest_updates_total")); diff != "" {
		t.Errorf("updates (-want +got):\n%s", diff)
	}
	wantBlocks := map[string]float64{"store,contract": 2, "refresh,contract": 2, "clear,contract": 2}
	if diff := cmp.Diff(wantBlocks, counters(t, f.registry, "inferencecache_ingest_blocks_total")); diff != "" {
		t.Errorf("blocks (-want +got):\n%s", diff)
	}
}
