// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/inferencecache/inference-cache/internal/policy"
	"github.com/inferencecache/inference-cache/internal/server"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// watch opens an event stream and returns once it listens.
func (h *harness) watch(in *pb.StreamEventsRequest) pb.InferenceCache_StreamCacheEventsClient {
	h.t.Helper()
	ctx, cancel := context.WithCancel(h.ctx())
	h.t.Cleanup(cancel)
	stream, err := h.client.StreamCacheEvents(ctx, in)
	if err != nil {
		h.t.Fatal(err)
	}
	if _, err := stream.Header(); err != nil {
		h.t.Fatal(err)
	}
	return stream
}

// until receives events, rendered in short, up to one that is wanted.
func until(t *testing.T, stream pb.InferenceCache_StreamCacheEventsClient, last string) (events []string) {
	t.Helper()
	for len(events) == 0 || events[len(events)-1] != last {
		event, err := stream.Recv()
		if err != nil {
			t.Fatalf("after %q: %v", events, err)
		}
		events = append(events, short(event))
	}
	return events
}

func short(e *pb.CacheEvent) string {
	fields := []string{e.GetType().String(), e.GetTenantId(), e.GetModelId(), e.GetReplicaId()}
	if len(e.GetPrefixHash()) == 8 {
		fields = append(fields, string(rune(binary.BigEndian.Uint64(e.GetPrefixHash())>>32)))
	} else if len(e.GetPrefixHash()) > 0 {
		fields = append(fields, string(e.GetPrefixHash()))
	}
	if e.GetAdapterId() != "" {
		fields = append(fields, "adapter="+e.GetAdapterId())
	}
	return strings.Join(fields, " ")
}

// TestStreamCacheEvents lets five streams with different filters follow the
// same writes. A last touch of replica "end" marks the end.
func TestStreamCacheEvents(t *testing.T) {
	h := start(t, func(o *server.Options) { o.Index.TTL = time.Minute })
	h.report(h.update("before", "z", 16)) // no replay
	type filter = pb.StreamEventsRequest
	streams := map[string]pb.InferenceCache_StreamCacheEventsClient{}
	for name, in := range map[string]*filter{
		"everything":    {},
		"one tenant":    {TenantId: "team", Types: []pb.CacheEvent_Type{pb.CacheEvent_PREFIX_ADDED, pb.CacheEvent_REPLICA_UPDATED}},
		"other tenant":  {TenantId: "other"},
		"other model":   {ModelId: "n"},
		"some types":    {Types: []pb.CacheEvent_Type{pb.CacheEvent_ALL_CLEARED, pb.CacheEvent_REPLICA_UPDATED}},
		"no such types": {Types: []pb.CacheEvent_Type{99}},
	} {
		streams[name] = h.watch(in)
	}

	h.report(h.update("a", "xy", 16), h.update("a", "xy", 16))
	long := h.update("a", "", 0)
	long.Prefixes = []*pb.PrefixEntry{{PrefixHash: []byte("a longer hash"), TokenCount: 16, AdapterId: "lora"}}
	h.report(long)
	other := h.update("b", "x", 16)
	other.TenantId, other.ModelId = "other", "n"
	h.report(other)
	reserved := h.update("b", "x", 16)
	reserved.TenantId = policy.ReservedTenant
	h.report(reserved)
	h.publish(&pb.CacheEvent{
		Type: pb.CacheEvent_PREFIX_EVICTED, TenantId: "team", ModelId: "m", ReplicaId: "a", PrefixHash: hash('x'),
	})
	h.publish(&pb.CacheEvent{Type: pb.CacheEvent_PREFIX_EVICTED, TenantId: "team", ModelId: "m", ReplicaId: "a", PrefixHash: hash('x')})
	h.publish(&pb.CacheEvent{Type: pb.CacheEvent_ALL_CLEARED, TenantId: "team", ModelId: "m", ReplicaId: "a"})
	h.clock.Advance(2 * time.Minute)
	h.server.Sweep() // what "before" and "b" hold expires
	for _, tenant := range []string{"team", "other"} {
		for _, model := range []string{"m", "n"} {
			h.report(&pb.CacheStateUpdate{TenantId: tenant, ModelId: model, ReplicaId: "end", Stats: &pb.ReplicaStats{}})
		}
	}

	const end = "REPLICA_UPDATED other n end"
	want := map[string][]string{
		"everything": {
			"PREFIX_ADDED team m a x", "PREFIX_ADDED team m a y", "PREFIX_ADDED team m a a longer hash adapter=lora",
			"PREFIX_ADDED other n b x", "PREFIX_EVICTED team m a x", "ALL_CLEARED team m a",
			"PREFIX_EVICTED other n b x", "PREFIX_EVICTED team m before z",
			"REPLICA_UPDATED team m end", "REPLICA_UPDATED team n end", "REPLICA_UPDATED other m end", end,
		},
		"one tenant": {
			"PREFIX_ADDED team m a x", "PREFIX_ADDED team m a y", "PREFIX_ADDED team m a a longer hash adapter=lora",
			"REPLICA_UPDATED team m end", "REPLICA_UPDATED team n end",
		},
		"other tenant": {"PREFIX_ADDED other n b x", "PREFIX_EVICTED other n b x", "REPLICA_UPDATED other m end", end},
		"other model":  {"PREFIX_ADDED other n b x", "PREFIX_EVICTED other n b x", "REPLICA_UPDATED team n end", end},
		"some types": {
			"ALL_CLEARED team m a", "REPLICA_UPDATED team m end", "REPLICA_UPDATED team n end", "REPLICA_UPDATED other m end", end,
		},
	}
	for name, events := range want {
		got := until(t, streams[name], events[len(events)-1])
		if name == "everything" { // scopes expire in no order
			i := len(got) - 5
			if i > 0 && got[i] < got[i-1] {
				got[i], got[i-1] = got[i-1], got[i]
			}
		}
		if diff := cmp.Diff(events, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestEventsCarryTheServersTime(t *testing.T) {
	h := start(t)
	stream := h.watch(&pb.StreamEventsRequest{})
	h.report(h.update("a", "x", 16))
	got, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	want := &pb.CacheEvent{
		Type: pb.CacheEvent_PREFIX_ADDED, ReplicaId: "a", ModelId: "m", TenantId: "team",
		PrefixHash: hash('x'), TimestampUs: h.clock.Now().UnixMicro(),
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("event (-want +got):\n%s", diff)
	}
}

// TestSlowEventStreamEnds writes far more than a stream that nobody reads can
// hold: the writes go on, the stream ends and accounts for every event.
func TestSlowEventStreamEnds(t *testing.T) {
	h := start(t)
	stream := h.watch(&pb.StreamEventsRequest{})
	const updates, keys = 24, 4096
	for n := range updates {
		entry := &pb.PrefixEntry{}
		for key := range keys {
			entry.BlockHashes = append(entry.BlockHashes, binary.BigEndian.AppendUint64(nil, uint64(n*keys+key+1)))
			entry.BlockTokenCounts = append(entry.BlockTokenCounts, 16)
		}
		h.report(&pb.CacheStateUpdate{
			ReplicaId: "a", ModelId: "m", TenantId: "team", HashScheme: "vllm", Prefixes: []*pb.PrefixEntry{entry},
		})
	}
	const open = `inferencecache_ingest_streams{rpc="StreamCacheEvents"}`
	eventually(t, "the unread stream ends", func() bool { return h.series()[open] == 0 })
	received := 0
	var err error
	for err == nil {
		if _, err = stream.Recv(); err == nil {
			received++
		}
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Fatalf("the stream ended with %v", err)
	}
	var missed int
	text := status.Convert(err).Message()
	if _, scanErr := fmt.Sscanf(text[strings.LastIndex(text, "missed"):], "missed %d events", &missed); scanErr != nil {
		t.Fatalf("%q does not say what was missed", text)
	}
	if missed <= server.EventBuffer || received == 0 || received+missed > updates*keys {
		t.Errorf("received %d and missed %d of %d events", received, missed, updates*keys)
	}
	h.wantMetric(`inferencecache_observer_overflows_total{rpc="StreamCacheEvents"}`, 1)
}

func TestEventStreamsAreBounded(t *testing.T) {
	h := start(t)
	var streams []pb.InferenceCache_StreamCacheEventsClient
	ctx, cancel := context.WithCancel(h.ctx())
	defer cancel()
	for range server.MaxEventStreams {
		streams = append(streams, h.watch(&pb.StreamEventsRequest{}))
	}
	over, err := h.client.StreamCacheEvents(ctx, &pb.StreamEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := over.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one stream too many: %v", err)
	}
	h.wantMetric(`inferencecache_ingest_streams{rpc="StreamCacheEvents"}`, server.MaxEventStreams)
	h.report(h.update("a", "x", 16))
	for _, stream := range streams {
		until(t, stream, "PREFIX_ADDED team m a x")
	}
}

func TestObserversEndWithTheServer(t *testing.T) {
	h := start(t)
	events := h.watch(&pb.StreamEventsRequest{})
	metrics, err := h.client.StreamMetrics(h.ctx(), &pb.StreamMetricsRequest{Names: []string{"inferencecache_server_up"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := metrics.Recv(); err != nil {
		t.Fatal(err)
	}
	h.stop()
	if _, err := events.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("StreamCacheEvents ended with %v", err)
	}
	if _, err := metrics.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("StreamMetrics ended with %v", err)
	}
}

// receive returns the next n series.
func receive(t *testing.T, stream pb.InferenceCache_StreamMetricsClient, n int) (series []*pb.Metric) {
	t.Helper()
	for range n {
		metric, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		series = append(series, metric)
	}
	return series
}

func TestStreamMetrics(t *testing.T) {
	h := start(t, func(o *server.Options) { o.StreamMetricsInterval = time.Millisecond })
	h.report(h.update("a", "xy", 64))
	h.lookup(chain("xy", 64))
	stream, err := h.client.StreamMetrics(h.ctx(), &pb.StreamMetricsRequest{
		Names: []string{"inferencecache_lookup_route_calls_total", "inferencecache_index_entries", "inferencecache_lookup_match_ratio"},
	})
	if err != nil {
		t.Fatal(err)
	}
	at := h.clock.Now().UnixMicro()
	metric := func(kind, name string, value float64, labels ...string) *pb.Metric {
		m := &pb.Metric{Name: "inferencecache_" + name, Type: kind, Value: value, TimestampUs: at, Labels: map[string]string{}}
		for i := 0; i < len(labels); i += 2 {
			m.Labels[labels[i]] = labels[i+1]
		}
		return m
	}
	want := []*pb.Metric{metric("gauge", "index_entries", 2, "model", "m")}
	for _, bound := range []string{"0", "0.1", "0.25", "0.5", "0.75", "0.9", "0.95", "0.99", "1", "+Inf"} {
		count := 0.
		if bound == "1" || bound == "+Inf" {
			count = 1
		}
		want = append(want, metric("histogram", "lookup_match_ratio_bucket", count, "le", bound))
	}
	want = append(want, metric("histogram", "lookup_match_ratio_sum", 1), metric("histogram", "lookup_match_ratio_count", 1),
		metric("counter", "lookup_route_calls_total", 1, "model", "m", "reason_code", "PREFIX_MATCH", "hint_used", "true"))
	for _, round := range []string{"first", "second"} {
		if diff := cmp.Diff(want, receive(t, stream, len(want)), protocmp.Transform()); diff != "" {
			t.Errorf("%s round (-want +got):\n%s", round, diff)
		}
	}
}
