// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/inferencecache/inference-cache/internal/server"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// reportTo reports what one replica holds in a tenant.
func (h *harness) reportTo(tenant, replica, letters string, block int32) {
	h.t.Helper()
	update := h.update(replica, letters, block)
	update.TenantId = tenant
	h.report(update)
}

// TestMismatchedKeysAreNamed replays the two mistakes that used to look like
// novel prefixes: another scheme, and the tenant a client library makes up.
func TestMismatchedKeysAreNamed(t *testing.T) {
	h := startControlled(t)
	h.reportTo("ic-smoke", "w", "abcd", 64)
	ask := func(change func(*pb.LookupRouteRequest)) *pb.LookupRouteRequest {
		request := of("ic-smoke", chain("abcd", 64))
		change(request)
		return request
	}
	single := func(request *pb.LookupRouteRequest) *pb.LookupRouteRequest {
		request.BlockHashes, request.BlockTokenCounts = nil, nil
		request.PrefixHash, request.PrefixTokenCount = hash('a'), 64
		return request
	}
	for name, tc := range map[string]struct {
		change func(*pb.LookupRouteRequest)
		want   string
	}{
		"the right keys":            {func(*pb.LookupRouteRequest) {}, "PREFIX_MATCH"},
		"another scheme":            {func(r *pb.LookupRouteRequest) { r.HashScheme = "vllm-v1" }, "UNKNOWN_HASH_SCHEME"},
		"another tenant":            {func(r *pb.LookupRouteRequest) { r.TenantId = "default" }, "UNKNOWN_TENANT"},
		"another model":             {func(r *pb.LookupRouteRequest) { r.ModelId = "other" }, "UNKNOWN_MODEL"},
		"the outermost counts":      {func(r *pb.LookupRouteRequest) { r.TenantId, r.ModelId, r.HashScheme = "x", "x", "x" }, "UNKNOWN_TENANT"},
		"the model before a scheme": {func(r *pb.LookupRouteRequest) { r.ModelId, r.HashScheme = "x", "x" }, "UNKNOWN_MODEL"},
		"no tenant":                 {func(r *pb.LookupRouteRequest) { r.TenantId = "" }, "NO_HINT"},
		"no model":                  {func(r *pb.LookupRouteRequest) { r.ModelId = "" }, "NO_HINT"},
		"no scheme":                 {func(r *pb.LookupRouteRequest) { r.HashScheme = "" }, "NO_HINT"},
	} {
		t.Run(name, func(t *testing.T) {
			h.wantReason("chain", ask(tc.change), tc.want)
			h.wantReason("exact", single(ask(tc.change)), tc.want)
		})
	}
	if p := h.lookup(ask(func(*pb.LookupRouteRequest) {})).GetReplicaScores()[0].GetEstimatedCacheHitProb(); p < .99 {
		t.Errorf("hit probability %v", p)
	}
	novel := of("ic-smoke", chain("yz", 64))
	h.wantReason("a novel prefix", novel, "AFFINITY_HINT")
	h.push(`{"version":7,"policies":[{"namespace":"ic-smoke","affinityRouting":false}]}`)
	h.wantReason("a novel prefix without affinity", novel, "NO_HINT")
}

func TestAnEmptyIndexNamesNothing(t *testing.T) {
	h := startControlled(t)
	h.wantReason("before the first report", chain("abcd", 64), "NO_HINT")
	h.reportTo("other", "w", "a", 64)
	h.wantReason("once anybody reports", chain("abcd", 64), "UNKNOWN_TENANT")
	h.publish(&pb.CacheEvent{Type: pb.CacheEvent_ALL_CLEARED, ReplicaId: "w", ModelId: "m", TenantId: "other"})
	h.wantReason("drained", chain("abcd", 64), "NO_HINT")
}

// TestSmallPrompts asks with less than the prefix gate wants, under both
// settings of affinity.
func TestSmallPrompts(t *testing.T) {
	for name, tc := range map[string]struct {
		affinity                                 bool
		known, tenant, model, scheme, hot, novel string
	}{
		"affinity on":  {true, "AFFINITY_HINT", "UNKNOWN_TENANT", "UNKNOWN_MODEL", "UNKNOWN_HASH_SCHEME", "AFFINITY_HINT", "AFFINITY_HINT"},
		"affinity off": {false, "NO_HINT", "NO_HINT", "NO_HINT", "NO_HINT", "NO_HINT", "NO_HINT"},
	} {
		t.Run(name, func(t *testing.T) {
			h := startControlled(t)
			h.populate("team")
			fields := fmt.Sprintf(`"minimumPrefixTokens":1000,"affinityRouting":%v`, tc.affinity)
			h.push(`{"version":7,"policies":[` + declare("team", fields) + "," + declare("default", fields) + `]}`)
			h.wantReason("a held prefix", chain("abcd", 64), tc.known)
			h.wantReason("another tenant", of("default", chain("abcd", 64)), tc.tenant)
			request := chain("abcd", 64)
			request.ModelId = "other"
			h.wantReason("another model", request, tc.model)
			request = chain("abcd", 64)
			request.HashScheme = "vllm-v1"
			h.wantReason("another scheme", request, tc.scheme)
			h.wantReason("a hot tenant", exact('q'), tc.hot)
			h.wantReason("a novel prefix", chain("yz", 64), tc.novel)
		})
	}
}

// TestDecidedCases holds the answers where texts about the contract differ.
func TestDecidedCases(t *testing.T) {
	h := startControlled(t)
	h.populate("hot")
	h.populate("hot-small")
	h.reportTo("cold", "w", "a", 64)
	h.populate("short")
	h.populate("demanding")
	h.push(`{"version":7,"policies":[` +
		declare("hot", `"strategy":{"enableTenantHot":false}`) + "," +
		declare("hot-small", `"strategy":{"enableTenantHot":false},"minimumPrefixTokens":1000`) + "," +
		declare("cold", `"strategy":{"enableTenantHot":false}`) + "," +
		declare("short", `"minimumPrefixTokens":1000,"affinityRouting":false`) + "," +
		declare("demanding", `"minimumPrefixTokens":1000,"affinityRouting":false,"strategy":{"requireChain":true}`) + `]}`)

	h.wantReason("tenant-hot switched off is final", of("hot", exact('q')), "NO_HINT")
	h.wantReason("also for a small prompt", of("hot-small", exact('q')), "NO_HINT")
	h.wantReason("without a hot replica affinity applies", of("cold", exact('q')), "AFFINITY_HINT")

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for tenant, want := range map[string]string{"short": "NO_HINT", "demanding": "TIMEOUT"} {
		got, err := h.server.LookupRoute(ended, of(tenant, exact('q')))
		if err != nil || got.GetReasonCode() != want {
			t.Errorf("%s after its deadline: %v, %v; want %s", tenant, got, err, want)
		}
	}
	h.wantReason("a demanding tenant in time", of("demanding", exact('q')), "POLICY_REQUIRES_CHAIN")

	for path, body := range map[string]string{
		"/policy": `{"Version":7}`, "/probe": `{"Backend":"b","model":"m","hashScheme":"vllm"}`,
	} {
		if response, text := h.internal("POST", path, body); response.StatusCode != http.StatusBadRequest {
			t.Errorf("%s with a key in another case: %d %s", path, response.StatusCode, text)
		}
	}
}

// TestAffinityStaysWithinAnAdapter asks for something novel of an adapter.
func TestAffinityStaysWithinAnAdapter(t *testing.T) {
	h := startControlled(t)
	h.reportTo("team", "base", "x", 64)
	update := h.update("lora", "x", 64)
	update.AdapterId = "red"
	h.report(update)
	request := chain("yz", 64)
	request.AdapterId = "red"
	h.wantAnswer(request, "AFFINITY_HINT lora 0/0")
	request.AdapterId = "blue"
	h.wantAnswer(request, "NO_HINT")
}

// holdingTier2 keeps a probe inside until it is told to go on.
type holdingTier2 struct{ entered, leave chan struct{} }

func (s holdingTier2) Put(ctx context.Context, _ string, _, _ []byte) error {
	s.entered <- struct{}{}
	select {
	case <-s.leave:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (holdingTier2) Get(context.Context, string, []byte) ([]byte, error) { return nil, nil }

// TestAProbeInFlightIsSeenNowhere looks everywhere while a probe has its block
// in the index.
func TestAProbeInFlightIsSeenNowhere(t *testing.T) {
	tier2 := holdingTier2{make(chan struct{}), make(chan struct{})}
	h := startControlled(t, func(o *server.Options) {
		o.Internal.Tier2 = tier2
		o.Index.MaxMemberships = 4
	})
	events := h.watch(&pb.StreamEventsRequest{})
	probed := make(chan string)
	go func() {
		_, text := h.internal("POST", "/probe", `{"backend":"team/cb","model":"m","hashScheme":"vllm"}`)
		probed <- text
	}()
	<-tier2.entered

	h.wantReason("an index with nothing but a probe", chain("abcd", 64), "NO_HINT")
	if _, text := h.internal("GET", "/snapshot", ""); text != `{"replicas":[],"tenants":[],"totalPrefixes":0,"hotPrefixes":0}` {
		t.Errorf("snapshot %s", text)
	}
	const reserved = "inferencecache.io/probe"
	h.wantReason("the reserved tenant", of(reserved, chain("abcd", 64)), "NO_HINT")
	state, err := h.client.GetCacheState(h.ctx(), &pb.GetCacheStateRequest{TenantId: reserved, ModelId: "m"})
	if err != nil || len(state.GetReplicas()) != 0 || state.GetSummary().GetTotalPrefixes() != 0 {
		t.Errorf("cache state %v, %v", state, err)
	}
	h.wantMetric("inferencecache_index_keys", 0)
	h.wantMetric("inferencecache_index_memberships", 0)
	h.reportTo("team", "w", "abcd", 64)
	h.wantMetric("inferencecache_index_memberships", 4)
	h.wantReason("a full index that evicted nothing for the probe", chain("abcd", 64), "PREFIX_MATCH")

	tier2.leave <- struct{}{}
	const want = `{"backend":"team/cb","ingest":"ok","routing":"ok","t2":"failed",` +
		`"errors":[{"stage":"t2","message":"get failed: another payload came back"}]}`
	if got := <-probed; got != want {
		t.Errorf("probe %s, want %s", got, want)
	}
	if first, err := events.Recv(); err != nil || first.GetReplicaId() != "w" {
		t.Errorf("first event %v, %v; want one of the real replica", first, err)
	}
	for series := range h.series() {
		if strings.Contains(series, "probe-") || strings.Contains(series, "team/cb") {
			t.Errorf("a probe has the series %s", series)
		}
	}
}
