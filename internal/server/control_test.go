// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/server"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

type statusAnswer struct {
	ServerEpoch string
	Ready       bool
	Policy      *struct {
		Revision                          string
		Version, Policies, Tenants, Bytes int
	}
}

// TestAPushChangesAnAnswer goes the way of a controller and of a gateway.
func TestAPushChangesAnAnswer(t *testing.T) {
	h := startControlled(t)
	h.populate("team")
	var status statusAnswer
	h.read("/status", &status)
	if status.Policy != nil || !status.Ready {
		t.Errorf("status before a push %+v", status)
	}
	h.wantReason("without a policy", of("team", questions["all"]()), "AFFINITY_HINT")

	revision := h.push(`{"version":7,"policies":[{"namespace":"team","routingFloorScore":0}]}`)
	h.wantReason("with one", of("team", questions["all"]()), "PREFIX_MATCH")
	response, _ := h.internal("GET", "/snapshot", "")
	if got := response.Header.Get("X-Inference-Cache-Policy-Revision"); got != revision || len(revision) != 64 {
		t.Errorf("a poll echoes %q, want %q", got, revision)
	}
	h.read("/status", &status)
	if status.Policy == nil || status.Policy.Revision != revision || status.Policy.Policies != 1 || status.Policy.Version != 7 {
		t.Errorf("status after a push %+v", status.Policy)
	}

	h.push(`{"version":7}`)
	h.wantReason("after it was taken back", of("team", questions["all"]()), "AFFINITY_HINT")
}

func TestExtensionsChangeAnAnswerAndOutliveAPush(t *testing.T) {
	h := startControlled(t)
	h.populate("team")
	body := `{"version":1,"revision":"e1","policies":[{"namespace":"team","equalHolders":"Load"}]}`
	if response, text := h.internal("PUT", "/policy/extensions", body); response.StatusCode != http.StatusNoContent {
		t.Fatalf("push of extensions: %d %s", response.StatusCode, text)
	}
	h.wantReason("equal holders by load", of("team", questions["all"]()), "PREFIX_MATCH")
	h.push(`{"version":7}`)
	h.wantReason("after a push of policies", of("team", questions["all"]()), "PREFIX_MATCH")
}

// TestRefusedPushesChangeNothing sends what a server must not take.
func TestRefusedPushesChangeNothing(t *testing.T) {
	h := startControlled(t)
	h.populate("team")
	revision := h.push(`{"version":7,"policies":[{"namespace":"team","affinityRouting":false}]}`)
	const good = `{"version":7,"policies":[{"namespace":"team"}]}`
	for name, tc := range map[string]struct {
		method, body string
		code         int
		says         string
	}{
		"version 2":           {"POST", `{"version":2}`, 400, "unsupported policy snapshot version"},
		"version 8":           {"POST", `{"version":8}`, 400, "unsupported policy snapshot version"},
		"version 0":           {"POST", `{"version":0}`, 400, "unsupported policy snapshot version"},
		"no version":          {"POST", `{}`, 400, "unsupported policy snapshot version"},
		"an unknown field":    {"POST", `{"version":7,"policies":[{"namespace":"team","affinity":true}]}`, 400, "decode policy snapshot"},
		"a key in wrong case": {"PUT", `{"version":7,"Policies":[]}`, 400, "decode policy snapshot"},
		"a key twice":         {"PUT", `{"version":7,"policies":[],"policies":[]}`, 400, "decode policy snapshot"},
		"something behind":    {"POST", good + "]", 400, "decode policy snapshot"},
		"a second value":      {"POST", good + good, 400, "decode policy snapshot"},
		"too many bytes":      {"POST", good + strings.Repeat(" ", 1<<20), 400, "decode policy snapshot"},
		"half a body":         {"POST", good[:20], 400, "decode policy snapshot"},
		"another method":      {"PATCH", good, 405, "method not allowed"},
		"a read":              {"GET", good, 405, "method not allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			response, text := h.internal(tc.method, "/policy", tc.body)
			if response.StatusCode != tc.code || !strings.HasPrefix(text, tc.says) {
				t.Errorf("%d %q, want %d %q", response.StatusCode, text, tc.code, tc.says)
			}
			if got := response.Header.Get("X-Inference-Cache-Policy-Revision"); got != revision {
				t.Errorf("revision %q in force, want %q", got, revision)
			}
			h.wantReason("the policy before", of("team", questions["novel"]()), "NO_HINT")
		})
	}
}

// TestRacingPushesAreNeverMixed alternates two snapshots whose policies and
// tenants differ, and checks that each answer is all of one.
func TestRacingPushesAreNeverMixed(t *testing.T) {
	h := startControlled(t)
	h.populate("team")
	// In one the request is refused, in the other its hot tenant is. A mix
	// would answer TENANT_HOT or give the wrong number of tenants.
	bodies := []string{
		`{"version":7,"policies":[{"namespace":"team","strategy":{"requireChain":true}}],"tenants":[{"tenantID":"a","maxIndexEntries":9}]}`,
		`{"version":7,"policies":[{"namespace":"team","strategy":{"enableTenantHot":false}},{"namespace":"x"}],` +
			`"tenants":[{"tenantID":"a","maxIndexEntries":9},{"tenantID":"b","maxIndexEntries":9}]}`,
	}
	entries := map[string]int{}
	for i, body := range bodies {
		entries[h.push(body)] = i + 1
	}
	ctx, cancel := context.WithCancel(t.Context())
	var pushers, readers sync.WaitGroup
	for _, body := range bodies {
		pushers.Go(func() {
			for range 50 {
				h.push(body)
			}
		})
	}
	readers.Go(func() {
		for ctx.Err() == nil {
			answer, err := h.server.LookupRoute(t.Context(), of("team", questions["exact"]()))
			if reason := answer.GetReasonCode(); err != nil || reason != "POLICY_REQUIRES_CHAIN" && reason != "NO_HINT" {
				t.Errorf("answer %s of neither policy, %v", reason, err)
				return
			}
		}
	})
	readers.Go(func() {
		for ctx.Err() == nil {
			var status statusAnswer
			h.read("/status", &status)
			want := entries[status.Policy.Revision]
			if status.Policy.Policies != want || status.Policy.Tenants != want {
				t.Errorf("revision of %d entries with %d policies and %d tenants", want, status.Policy.Policies, status.Policy.Tenants)
				return
			}
		}
	})
	pushers.Wait()
	cancel()
	readers.Wait()
}

// TestSnapshotSumsUnderLoad polls while replicas come and go.
func TestSnapshotSumsUnderLoad(t *testing.T) {
	h := startControlled(t)
	ctx, cancel := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	for _, tenant := range []string{"a", "b", "c"} {
		writers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				update := h.update(fmt.Sprintf("w%d", i%3), "abcdefgh"[:1+i%8], 64)
				update.TenantId = tenant
				h.server.Ingest().Update(ctx, update)
				if i%5 == 0 {
					h.server.Ingest().Event(ctx, &pb.CacheEvent{
						Type: pb.CacheEvent_ALL_CLEARED, TenantId: tenant, ModelId: "m", ReplicaId: "w1",
					})
				}
			}
		})
	}
	for range 15 {
		var snapshot struct {
			Tenants []struct {
				TenantID     string
				IndexEntries int64
			}
			TotalPrefixes int64
		}
		h.read("/snapshot", &snapshot)
		var sum int64
		for _, tenant := range snapshot.Tenants {
			sum += tenant.IndexEntries
		}
		if sum != snapshot.TotalPrefixes {
			t.Errorf("tenants hold %d, the total is %d", sum, snapshot.TotalPrefixes)
		}
	}
	cancel()
	writers.Wait()
}

func TestSnapshotOfAnIndex(t *testing.T) {
	h := startControlled(t)
	w := h.update("w", "abcd", 64)
	w.Stats = &pb.ReplicaStats{HitRate: .25, Pressure: .5, CacheMemoryBytes: 7}
	h.report(w, h.update("v", "abx", 64))
	h.clock.Advance(time.Second)
	other := h.update("w", "pq", 64)
	other.ModelId = "n"
	other.Stats = &pb.ReplicaStats{HitRate: .75, T2HitTokens: 3}
	h.report(other)
	_, text := h.internal("GET", "/snapshot", "")
	want := `{"replicas":[` +
		`{"replicaId":"v","tenant":"team","cacheMemoryBytes":0,"hitRate":0,"pressure":0,"lastUpdate":"0001-01-01T00:00:00Z",` +
		`"prefixCount":3,"lastEventAt":"2026-03-01T12:00:00Z"},` +
		`{"replicaId":"w","tenant":"team","cacheMemoryBytes":0,"hitRate":0.75,"pressure":0,"lastUpdate":"2026-03-01T12:00:01Z",` +
		`"prefixCount":6,"lastEventAt":"2026-03-01T12:00:01Z","statsReported":true,"t2HitTokens":3}],` +
		`"tenants":[{"tenantId":"team","indexEntries":7,"hitRate":0.75,"hitRateReported":true,"memoryUsed":0}],` +
		`"totalPrefixes":7,"hotPrefixes":0}`
	if diff := cmp.Diff(want, text); diff != "" {
		t.Errorf("snapshot (-want +got):\n%s", diff)
	}
}

// TestManyProbes probes 100 backends at once.
func TestManyProbes(t *testing.T) {
	h := startControlled(t)
	var callers sync.WaitGroup
	for n := range 100 {
		callers.Go(func() {
			backend := fmt.Sprintf("team/cb-%d", n)
			_, text := h.internal("POST", "/probe", fmt.Sprintf(`{"backend":%q,"model":"m","hashScheme":"vllm"}`, backend))
			if want := fmt.Sprintf(`{"backend":%q,"ingest":"ok","routing":"ok","t2":"skipped"}`, backend); text != want {
				t.Errorf("probe %s, want %s", text, want)
			}
		})
	}
	callers.Wait()
	h.wantReason("the index is as empty as before", chain("abcd", 64), "NO_HINT")
	h.wantMetric(`inferencecache_probe_auth_total{result="ok"}`, 100)
	h.wantMetric(`inferencecache_internal_requests_total{code="200",endpoint="probe"}`, 100)
}

func TestInternalPathsAreOnTheirListenerOnly(t *testing.T) {
	h := startControlled(t)
	for _, path := range []string{"/policy", "/policy/extensions", "/snapshot", "/status", "/probe"} {
		if code, _ := h.get(path); code != http.StatusNotFound {
			t.Errorf("%s on the public listener: %d", path, code)
		}
	}
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		if response, _ := h.internal("GET", path, ""); response.StatusCode != http.StatusNotFound {
			t.Errorf("%s on the internal listener: %d", path, response.StatusCode)
		}
	}
}

func TestOneEpochForPublishersAndControllers(t *testing.T) {
	h := startControlled(t)
	var status statusAnswer
	h.read("/status", &status)
	if len(status.ServerEpoch) != 32 || status.ServerEpoch != h.welcomedEpoch() {
		t.Errorf("epoch %q on HTTP, %q on CacheSync", status.ServerEpoch, h.welcomedEpoch())
	}
	other := startControlled(t)
	response, _ := other.internal("GET", "/status", "")
	if response.Header.Get("X-Inference-Cache-Server-Epoch") == status.ServerEpoch {
		t.Error("two servers share an epoch")
	}
}

func (h *harness) welcomedEpoch() string {
	h.t.Helper()
	session, err := pb.NewCacheSyncClient(h.conn).Sync(h.ctx())
	if err != nil {
		h.t.Fatal(err)
	}
	hello := &pb.SyncHello{
		ProtocolVersion: 1, TenantId: "team", ModelId: "m", HashScheme: "vllm", ReplicaId: "s",
		BlockSize: 32, RankCount: 1, Incarnation: &pb.SyncIncarnation{Epoch: 1, StartedUs: 1},
	}
	if err := session.Send(&pb.PublisherFrame{Frame: &pb.PublisherFrame_Hello{Hello: hello}}); err != nil {
		h.t.Fatal(err)
	}
	frame, err := session.Recv()
	if err != nil {
		h.t.Fatal(err)
	}
	return frame.GetWelcome().GetServerEpoch()
}

func TestInternalListenerNeedsGates(t *testing.T) {
	_, err := server.New(server.Options{Internal: server.InternalOptions{Address: "127.0.0.1:0"}})
	if !errors.Is(err, server.ErrOptions) {
		t.Errorf("a listener without gates: %v", err)
	}
}

// TestShutdownWaitsForAProbe ends a server while a probe is under way.
func TestShutdownWaitsForAProbe(t *testing.T) {
	tier2 := holdingTier2{make(chan struct{}), make(chan struct{})}
	h := startControlled(t, func(o *server.Options) {
		o.ShutdownGrace = time.Hour
		o.Internal.Tier2 = tier2
	})
	probed := make(chan string)
	go func() {
		_, text := h.internal("POST", "/probe", `{"backend":"b","model":"m","hashScheme":"vllm"}`)
		probed <- text
	}()
	<-tier2.entered
	h.stop()
	tier2.leave <- struct{}{}
	if text := <-probed; !strings.HasPrefix(text, `{"backend":"b","ingest":"ok"`) {
		t.Errorf("probe %s", text)
	}
	h.shutDown()
}
