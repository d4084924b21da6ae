// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"github.com/inferencecache/inference-cache/internal/policy"
	"github.com/inferencecache/inference-cache/internal/server"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// series returns all series of the server as name{label="value",...}, with
// counts for histograms.
func (h *harness) series() map[string]float64 {
	h.t.Helper()
	families, err := h.registry.Gather()
	if err != nil {
		h.t.Fatal(err)
	}
	values := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			values[f.GetName()+labelText(m.GetLabel())] = value(m)
		}
	}
	return values
}

func labelText(labels []*dto.LabelPair) string {
	if len(labels) == 0 {
		return ""
	}
	parts := make([]string, len(labels))
	for i, l := range labels {
		parts[i] = fmt.Sprintf("%s=%q", l.GetName(), l.GetValue())
	}
	sort.Strings(parts)
	return "{" + strings.Join(parts, ",") + "}"
}

func value(m *dto.Metric) float64 {
	switch {
	case m.GetCounter() != nil:
		return m.GetCounter().GetValue()
	case m.GetGauge() != nil:
		return m.GetGauge().GetValue()
	default:
		return float64(m.GetHistogram().GetSampleCount())
	}
}

func (h *harness) wantMetric(series string, want float64) {
	h.t.Helper()
	got, ok := h.series()[series]
	if !ok || got != want {
		h.t.Errorf("%s = %v (exists: %v), want %v", series, got, ok, want)
	}
}

// TestLookupIsCountedOnce asks for one answer of each reason.
func TestLookupIsCountedOnce(t *testing.T) {
	h := start(t)
	h.report(h.update("w", "abcd", 64), h.update("v", "x", 64), &pb.CacheStateUpdate{
		ReplicaId: "w", ModelId: "m", TenantId: "team", Stats: &pb.ReplicaStats{HitRate: .9},
	})
	h.report(func() *pb.CacheStateUpdate {
		update := h.update("d", "a", 64)
		update.TenantId = "demanding"
		return update
	}())
	h.server.SetPolicies([]policy.Declared{{Namespace: "demanding", RequireChain: ptr(true)}}, nil)
	exact := func(change func(*pb.LookupRouteRequest)) *pb.LookupRouteRequest {
		request := &pb.LookupRouteRequest{ModelId: "m", TenantId: "team", HashScheme: "vllm", PrefixHash: hash('q')}
		change(request)
		return request
	}
	for _, request := range []*pb.LookupRouteRequest{
		chain("abcd", 64),
		exact(func(*pb.LookupRouteRequest) {}),
		chain("qr", 64),
		{ModelId: "m", TenantId: policy.ReservedTenant},
		exact(func(r *pb.LookupRouteRequest) { r.TenantId = "demanding" }),
		exact(func(r *pb.LookupRouteRequest) { r.TenantId = "nobody" }),
		exact(func(r *pb.LookupRouteRequest) { r.ModelId = "other" }),
		exact(func(r *pb.LookupRouteRequest) { r.HashScheme = "other" }),
	} {
		h.lookup(request)
	}
	for series, want := range map[string]float64{
		`{hint_used="true",model="m",reason_code="PREFIX_MATCH"}`:           1,
		`{hint_used="true",model="m",reason_code="TENANT_HOT"}`:             1,
		`{hint_used="true",model="m",reason_code="AFFINITY_HINT"}`:          1,
		`{hint_used="false",model="m",reason_code="NO_HINT"}`:               1,
		`{hint_used="false",model="m",reason_code="POLICY_REQUIRES_CHAIN"}`: 1,
		`{hint_used="false",model="m",reason_code="UNKNOWN_TENANT"}`:        1,
		`{hint_used="false",model="other",reason_code="UNKNOWN_MODEL"}`:     1,
		`{hint_used="false",model="m",reason_code="UNKNOWN_HASH_SCHEME"}`:   1,
	} {
		h.wantMetric("inferencecache_lookup_route_calls_total"+series, want)
	}
	h.wantMetric(`inferencecache_lookup_route_latency_seconds{model="m"}`, 7)
	h.wantMetric(`inferencecache_lookup_route_latency_seconds{model="other"}`, 1)
	h.wantMetric(`inferencecache_grpc_requests_total{code="OK",method="LookupRoute"}`, 8)
	h.wantMetric(`inferencecache_lookup_requested_tokens_total{tenant="team"}`, 256+128)
	h.wantMetric(`inferencecache_lookup_matched_tokens_total{tenant="team"}`, 256)
	h.wantMetric(`inferencecache_lookup_tier_total{tier="t1"}`, 1)
	h.wantMetric(`inferencecache_index_entries{model="m"}`, 6)
}

func ptr[T any](v T) *T { return &v }

// TestHostileLabels sends names nobody should get a series for.
func TestHostileLabels(t *testing.T) {
	h := start(t, func(o *server.Options) {
		o.Metrics = server.MetricsOptions{MaxModels: 8, MaxUnknownModels: 4, MaxTenants: 4}
	})
	h.report(h.update("w", "abcd", 64))
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		request := chain("abcd", 64)
		request.ModelId = fmt.Sprintf("model-%d", random.Uint64())
		if random.IntN(2) == 0 {
			request.ModelId = strings.Repeat("x", 1+random.IntN(300))
		}
		request.TenantId = fmt.Sprintf("tenant-%d", random.Uint64())
		if _, err := h.server.LookupRoute(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	h.lookup(chain("abcd", 64))
	h.server.SetExtensions(&policy.ExtensionSet{Topologies: []policy.PDTopology{{Namespace: "team", Name: "pd", Model: "planned"}}})
	planned := chain("abcd", 64)
	planned.ModelId = "planned"
	h.lookup(planned)
	models, tenants := make(map[string]bool), make(map[string]bool)
	families, err := h.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if len(l.GetValue()) > 128 {
					t.Errorf("%s has a label of %d bytes", f.GetName(), len(l.GetValue()))
				}
				switch l.GetName() {
				case "model":
					models[l.GetValue()] = true
				case "tenant":
					tenants[l.GetValue()] = true
				}
			}
		}
	}
	if len(models) != 7 || !models["m"] || !models["planned"] || !models["__other__"] {
		t.Errorf("%d model labels, want 4 unknown ones, m, planned and __other__", len(models))
	}
	if len(tenants) != 2 || !tenants["team"] || !tenants["__other__"] {
		t.Errorf("tenant labels %v, want team and __other__", tenants)
	}
}

// A model that is gone keeps its lookups on the page for ten minutes.
func TestSeriesOfModelsThatAreGone(t *testing.T) {
	h := start(t)
	const gone = `{hint_used="true",model="m",reason_code="PREFIX_MATCH"}`
	clear := &pb.CacheEvent{Type: pb.CacheEvent_ALL_CLEARED, TenantId: "team", ModelId: "m", ReplicaId: "w"}
	other := h.update("w", "a", 64)
	other.ModelId = "other"
	h.report(h.update("w", "abcd", 64), other)
	h.lookup(chain("abcd", 64))
	h.wantMetric(`inferencecache_index_entries{model="m"}`, 4)
	h.publish(clear)

	// shown scrapes twice, since a page is gathered while series are deleted.
	shown := func(when string, lookups ...string) {
		t.Helper()
		_ = h.series()
		var got []string
		for name := range h.series() {
			if strings.HasPrefix(name, "inferencecache_lookup_route_") && strings.Contains(name, `model="m"`) {
				got = append(got, strings.TrimPrefix(name, "inferencecache_lookup_route_"))
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, lookups) {
			t.Errorf("%s: %q, want %q", when, got, lookups)
		}
		h.wantMetric(`inferencecache_index_entries{model="m"}`, 0)
	}
	latency := `latency_seconds{model="m"}`
	unknown := `calls_total{hint_used="false",model="m",reason_code="UNKNOWN_MODEL"}`
	shown("at once", "calls_total"+gone, latency)
	h.clock.Advance(9 * time.Minute)
	shown("nine minutes later", "calls_total"+gone, latency)
	h.lookup(chain("abcd", 64))
	shown("asked for again", unknown, "calls_total"+gone, latency)
	h.clock.Advance(9 * time.Minute)
	shown("nine minutes after that", unknown, "calls_total"+gone, latency)
	h.clock.Advance(time.Minute)
	shown("ten minutes after that")
	h.lookup(chain("abcd", 64))
	shown("asked for once more", unknown, latency)

	h.report(h.update("w", "abcd", 64))
	h.lookup(chain("abcd", 64))
	h.clock.Advance(20 * time.Minute)
	_ = h.series()
	h.wantMetric("inferencecache_lookup_route_calls_total"+gone, 1)
}

// TestClosedSetsExistFromTheStart lists the series of a server that has seen
// nothing.
func TestClosedSetsExistFromTheStart(t *testing.T) {
	h := start(t)
	have := h.series()
	for _, want := range []string{
		"inferencecache_server_up",
		"inferencecache_server_grpc_tls_enabled",
		`inferencecache_panics_total{component="grpc"}`,
		`inferencecache_panics_total{component="lookup"}`,
		`inferencecache_lookup_invalid_total{reason="chain_mismatch"}`,
		`inferencecache_lookup_downgrades_total{gate="score_floor"}`,
		"inferencecache_lookup_floor_all_hold_total",
		`inferencecache_lookup_tier_total{tier="unspecified"}`,
		`inferencecache_tokenize_total{result="saturated"}`,
		`inferencecache_index_replicas{state="silent"}`,
		`inferencecache_index_bytes{kind="arena"}`,
		"inferencecache_index_memberships",
		"inferencecache_index_max_memberships",
		"inferencecache_index_max_bytes",
		"inferencecache_server_memory_limit_bytes",
		`inferencecache_index_maintenance_seconds{task="quota"}`,
		`inferencecache_ingest_dropped_total{reason="reserved_tenant",source="contract"}`,
		`inferencecache_sync_sessions{state="live"}`,
	} {
		if _, ok := have[want]; !ok {
			t.Errorf("no series %s", want)
		}
	}
	for series := range have {
		for _, later := range []string{"inferencecache_index_evictions_total", "inferencecache_tenant_evictions_total", "inferencecache_lookup_route_calls_total"} {
			if strings.HasPrefix(series, later) {
				t.Errorf("%s exists before its first event", series)
			}
		}
	}
}

func TestMetricsFollowConventions(t *testing.T) {
	h := start(t)
	h.report(h.update("w", "abcd", 64))
	h.lookup(chain("abcd", 64))
	problems, err := testutil.GatherAndLint(h.registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		t.Errorf("%s: %s", problem.Metric, problem.Text)
	}
}

func TestQuotaEvictionsAreCounted(t *testing.T) {
	h := start(t)
	h.server.SetPolicies(nil, []policy.Quota{{Tenant: "team", MaxKeys: 2}})
	h.report(h.update("w", "abcd", 64))
	h.wantMetric(`inferencecache_tenant_evictions_total{reason="over_entries",tenant_id="team"}`, 2)
	h.wantMetric(`inferencecache_index_tenant_keys{tenant_id="team"}`, 2)
	h.wantMetric(`inferencecache_index_tenant_quota_keys{tenant_id="team"}`, 2)
	names := make([]string, 0)
	for series := range h.series() {
		if strings.Contains(series, "tenant_id") {
			names = append(names, series)
		}
	}
	slices.Sort(names)
	if len(names) != 3 {
		t.Errorf("series by tenant_id: %v", names)
	}
}

func TestInvalidLookupsAreCounted(t *testing.T) {
	h := start(t)
	long := strings.Repeat("x", 257)
	for reason, change := range map[string]func(*pb.LookupRouteRequest){
		"chain_mismatch":  func(r *pb.LookupRouteRequest) { r.BlockTokenCounts = nil },
		"count_negative":  func(r *pb.LookupRouteRequest) { r.BlockTokenCounts[0] = -1 },
		"count_overflow":  func(r *pb.LookupRouteRequest) { r.BlockTokenCounts = []int32{1 << 30, 1 << 30} },
		"hash_empty":      func(r *pb.LookupRouteRequest) { r.BlockHashes[0] = nil },
		"hash_too_long":   func(r *pb.LookupRouteRequest) { r.BlockHashes[0] = []byte(long) },
		"too_many_tokens": func(r *pb.LookupRouteRequest) { r.Reset(); r.TokenIds = make([]uint32, 1<<20+1) },
		"prompt_too_long": func(r *pb.LookupRouteRequest) { r.Reset(); r.PromptText = strings.Repeat("x", 1<<20+1) },
		"id_too_long":     func(r *pb.LookupRouteRequest) { r.ModelId = long },
	} {
		request := chain("ab", 64)
		change(request)
		h.wantAnswer(request, "NO_HINT")
		h.wantMetric(fmt.Sprintf("inferencecache_lookup_invalid_total{reason=%q}", reason), 1)
	}
}

// With tenant labels off, no series names a tenant.
func TestMetricsWithoutTenants(t *testing.T) {
	for _, without := range []bool{false, true} {
		h := start(t, func(o *server.Options) { o.Metrics.WithoutTenants = without })
		h.server.SetPolicies(nil, []policy.Quota{{Tenant: "team", MaxKeys: 100}})
		h.report(h.update("pod-a", "abcdefgh", 16), h.update("pod-b", "x", 16))
		h.lookup(chain("abcdefgh", 16))
		if _, page := h.get("/metrics"); strings.Contains(page, `="team"`) == without {
			t.Errorf("without tenants %v: the page says the opposite", without)
		}
	}
}
