// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/policy"
	"github.com/inferencecache/inference-cache/internal/server"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// TestHotPrefixes asks again and again: hot is the deepest key that the best
// replica matched, in delivered prefix matches alone.
func TestHotPrefixes(t *testing.T) {
	h := start(t, func(o *server.Options) { o.HotPrefixThreshold = 3 })
	h.report(h.update("a", "abc", 64), h.update("b", "a", 64), h.update("c", "x", 64))
	expect := func(what string, want int64) {
		t.Helper()
		state, err := h.client.GetCacheState(h.ctx(), &pb.GetCacheStateRequest{TenantId: "team", ModelId: "m"})
		if err != nil {
			t.Fatal(err)
		}
		if got := state.GetSummary().GetHotPrefixes(); got != want || h.server.HotPrefixes() != want {
			t.Errorf("%s: %d hot of the model, %d in all, want %d", what, got, h.server.HotPrefixes(), want)
		}
		h.wantMetric("inferencecache_index_hot_prefixes", float64(want))
	}
	for range 3 {
		h.lookup(chain("zz", 64))  // a miss
		h.lookup(chain("abc", 16)) // below the matched floor
	}
	h.lookup(chain("abcd", 64))
	h.lookup(chain("abcde", 64))
	expect("two matches", 0)
	h.lookup(chain("abc", 64))
	expect("three matches end in c", 1)
	for range 3 {
		h.lookup(chain("ab", 64))
	}
	expect("three more end in b", 2)
	h.server.SetPolicies([]policy.Declared{{Namespace: "team", MinimumMatchedTokens: 1000}}, nil)
	for range 3 {
		h.lookup(chain("a", 64))
	}
	expect("matches that policy withholds", 2)
	h.clock.Advance(20 * time.Minute)
	expect("two windows later", 0)
}

func TestReplicaSeries(t *testing.T) {
	h := start(t, func(o *server.Options) { o.Metrics.MaxReplicas = 2 })
	h.report(h.update("a", "abc", 64))
	at := h.clock.Now().Unix()
	h.clock.Advance(time.Second)
	h.report(h.update("b", "a", 64), load("b", .5))
	h.wantMetric(`inferencecache_replica_memberships{model="m",replica_id="a",tenant="team"}`, 3)
	h.wantMetric(`inferencecache_replica_last_event_at{model="m",replica_id="a",tenant="team"}`, float64(at))
	h.wantMetric(`inferencecache_replica_last_event_at{model="m",replica_id="b",tenant="team"}`, float64(at+1))
	h.report(h.update("c", "x", 64), load("0", .5))
	count := func() (n int) {
		for name := range h.series() {
			if len(name) > 34 && name[:34] == "inferencecache_replica_memberships" {
				n++
			}
		}
		return n
	}
	if got := count(); got != 2 {
		t.Errorf("%d replicas have series, want 2", got)
	}
	h.wantMetric(`inferencecache_replica_memberships{model="m",replica_id="a",tenant="team"}`, 3)
	if suppressed := h.series()[`inferencecache_metrics_suppressed_total{family="inferencecache_replica_memberships"}`]; suppressed < 2 {
		t.Errorf("%v series are said to be left out", suppressed)
	}
	h.publish(&pb.CacheEvent{Type: pb.CacheEvent_ALL_CLEARED, TenantId: "team", ModelId: "m", ReplicaId: "a"})
	if _, there := h.series()[`inferencecache_replica_memberships{model="m",replica_id="a",tenant="team"}`]; there {
		t.Error("a replica that is gone has series")
	}
	if got := count(); got != 2 {
		t.Errorf("%d replicas have series after one went, want 2", got)
	}
}

func TestNoReplicaSeries(t *testing.T) {
	h := start(t, func(o *server.Options) { o.Metrics.MaxReplicas = -1 })
	h.report(h.update("a", "abc", 64))
	for name := range h.series() {
		if len(name) > 23 && name[:23] == "inferencecache_replica_" {
			t.Errorf("%s exists", name)
		}
	}
}
