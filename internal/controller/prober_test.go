// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/controller"
)

// outcomes is what a server answers to self-tests: "ingest routing t2".
func outcomes(stages string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var request struct{ Backend string }
		_ = json.NewDecoder(r.Body).Decode(&request)
		s := strings.Split(stages, " ")
		_, _ = fmt.Fprintf(w, `{"backend":%q,"ingest":%q,"routing":%q,"t2":%q,"errors":[{"stage":"t2","message":"put failed: full"}]}`,
			request.Backend, s[0], s[1], s[2])
	}
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "broken", code) }
}

// faceOf is a gRPC face with a fixed outcome for each server.
type faceOf map[string]error

func (f faceOf) Check(_ context.Context, server controller.Server, _, _ string) error {
	return f[server.Name]
}

// probing gives the bench a prober of servers; the gate on events is open.
func (b *bench) probing(face controller.Face, metrics *controller.Metrics, all ...controller.Server) *bench {
	discovery := new(servers)
	discovery.set(all...)
	b.prober = controller.NewProber(controller.ProberOptions{Discovery: discovery, Face: face, Metrics: metrics, Now: b.clock})
	run(b.t, b.prober.Start)
	b.hear()
	return b.with(func(o *controller.BackendOptions) { o.Prober, o.Metrics = b.prober, metrics })
}

// await reconciles until a condition begins as given.
func (b *bench) await(want string) {
	b.t.Helper()
	kind, value, _ := strings.Cut(want, "=")
	eventually(b.t, want, func() bool {
		b.pass()
		return strings.HasPrefix(conditionOf(b.status().Conditions, kind), value)
	})
}

func TestProbeVerdicts(t *testing.T) {
	for name, tc := range map[string]struct {
		one, two http.HandlerFunc
		face     controller.Face
		want     string
		ready    string
	}{
		"both pass":                              {one: outcomes("ok ok skipped"), two: outcomes("ok ok ok"), want: "True/ProbeOK: passed on 2 of 2 servers", ready: "True/KVEventsObserved"},
		"ingest fails on the second":             {one: outcomes("ok ok ok"), two: outcomes("failed skipped skipped"), want: "False/ProbeIngestFailed: two: ingest", ready: "False/ProbeIngestFailed"},
		"routing fails":                          {one: outcomes("ok failed skipped"), two: outcomes("ok ok ok"), want: "False/ProbeRoutingFailed: one: routing", ready: "False/ProbeRoutingFailed"},
		"the storage tier fails":                 {one: outcomes("ok ok failed"), two: outcomes("ok ok ok"), want: "False/ProbeT2Failed: one: t2: put failed: full", ready: "False/ProbeT2Failed"},
		"the worst stage wins":                   {one: outcomes("ok ok failed"), two: outcomes("failed skipped skipped"), want: "False/ProbeIngestFailed: two", ready: "False/ProbeIngestFailed"},
		"an outcome nobody knows":                {one: outcomes("ok ok ok"), two: outcomes("ok great ok"), want: `False/ProbeError: two: routing: unexpected outcome "great"`, ready: "False/ProbeError"},
		"an empty outcome":                       {one: outcomes("ok ok "), two: outcomes("ok ok ok"), want: "False/ProbeError: one: t2", ready: "False/ProbeError"},
		"a stage skipped without cause":          {one: outcomes("skipped ok ok"), two: outcomes("ok ok ok"), want: "False/ProbeError: one: ingest", ready: "False/ProbeError"},
		"a call fails":                           {one: status(500), two: outcomes("ok ok ok"), want: "Unknown/ProbeError: one: the server answered 500", ready: "True/KVEventsObserved"},
		"a call fails and a stage elsewhere":     {one: status(500), two: outcomes("ok failed skipped"), want: "False/ProbeRoutingFailed: two", ready: "False/ProbeRoutingFailed"},
		"clients cannot be served":               {one: outcomes("ok ok ok"), two: outcomes("ok ok ok"), face: faceOf{"two": errors.New("health is NOT_SERVING")}, want: "False/ProbeGRPCFailed: two: grpc: health is NOT_SERVING", ready: "False/ProbeGRPCFailed"},
		"a failed stage weighs more than a face": {one: outcomes("ok ok failed"), two: outcomes("ok ok ok"), face: faceOf{"two": errors.New("no")}, want: "False/ProbeT2Failed", ready: "False/ProbeT2Failed"},
	} {
		t.Run(name, func(t *testing.T) {
			one, two := startServer(t, "1"), startServer(t, "2")
			one.serve(tc.one)
			two.serve(tc.two)
			b := newBench(t, someBackend(), injectedPod("p", "")).probing(tc.face, nil, one.named(t, "one"), two.named(t, "two"))
			b.await("FunctionalProbeOK=" + tc.want)
			b.want("Ready="+tc.ready, "Degraded=False/NotDegraded")
			failed := strings.HasPrefix(tc.want, "False")
			if got := strings.Contains(b.events.take(), "Warning ProbeFailed"); got != failed {
				t.Errorf("event ProbeFailed: %v", got)
			}
			if failed {
				b.want("Progressing=" + tc.ready)
			}
		})
	}
}

func TestProbeWithoutServers(t *testing.T) {
	b := newBench(t, someBackend()).probing(nil, nil)
	b.await("FunctionalProbeOK=Unknown/ProbeError: no server was found")
	b.want("Ready=True/KVEventsObserved")
}

// A failure stays until a test passes: neither the wait nor a failing call
// lifts it.
func TestProbeFailureIsSticky(t *testing.T) {
	server := startServer(t, "1")
	server.serve(outcomes("failed skipped skipped"))
	registry := prometheus.NewRegistry()
	b := newBench(t, someBackend(), injectedPod("p", "")).probing(nil, controller.NewMetrics(registry), server.named(t, "one"))
	b.await("FunctionalProbeOK=False/ProbeIngestFailed")
	b.advance(29 * time.Second)
	server.serve(outcomes("ok ok ok"))
	b.pass()
	b.want("Ready=False/ProbeIngestFailed") // within the window nothing is asked
	server.serve(status(503))
	b.advance(time.Second)
	eventually(t, "the failing call", func() bool {
		b.pass()
		return value(t, registry, "inferencecache_controller_probe_requests_total", "result", "http_error") == 1
	})
	b.pass()
	b.want("FunctionalProbeOK=False/ProbeIngestFailed", "Ready=False/ProbeIngestFailed")
	b.events.take()
	server.serve(outcomes("ok ok ok"))
	eventually(t, "the test passes", func() bool {
		b.advance(30 * time.Second)
		b.pass()
		return strings.HasPrefix(conditionOf(b.status().Conditions, "FunctionalProbeOK"), "True/ProbeOK")
	})
	b.want("Ready=True/KVEventsObserved")
	b.wantEvents("Normal ProbeRecovered")
}

// value sums the series of a metric that carry a label.
func value(t *testing.T, registry *prometheus.Registry, name, label, want string) (sum float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, series := range family.GetMetric() {
			for _, l := range series.GetLabel() {
				if l.GetName() == label && l.GetValue() == want {
					sum += series.GetCounter().GetValue() + series.GetGauge().GetValue()
				}
			}
		}
	}
	return sum
}

func TestProbeRateLimit(t *testing.T) {
	var mu sync.Mutex
	asked := 0
	server := startServer(t, "1")
	server.serve(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked++
		mu.Unlock()
		outcomes("ok ok ok")(w, r)
	})
	calls := func() int { mu.Lock(); defer mu.Unlock(); return asked }
	b := newBench(t, someBackend()).probing(nil, nil, server.named(t, "one"))
	b.await("FunctionalProbeOK=True/ProbeOK")
	for range 29 {
		b.advance(time.Second)
		b.pass()
	}
	if got := calls(); got != 1 {
		t.Errorf("asked %d times within 30s, want once", got)
	}
	b.advance(time.Second)
	eventually(t, "the next test", func() bool { b.pass(); return calls() == 2 })
}

// A result that could not be written is written by the next pass; it is not
// asked for again.
func TestProbeSlotIsUsedUpByTheWrite(t *testing.T) {
	server := startServer(t, "1")
	server.serve(outcomes("failed skipped skipped"))
	registry := prometheus.NewRegistry()
	b := newBench(t, someBackend()).probing(nil, controller.NewMetrics(registry), server.named(t, "one"))
	b.pass()
	var mu sync.Mutex
	broken := true
	b.with(func(o *controller.BackendOptions) {
		o.Client = interceptor.NewClient(b.cluster.(client.WithWatch), interceptor.Funcs{
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				mu.Lock()
				defer mu.Unlock()
				if broken {
					return errors.New("the API server is down")
				}
				return c.SubResource(sub).Patch(ctx, o, p, opts...)
			},
		})
	})
	eventually(t, "a write fails", func() bool {
		_, err := b.reconciler.Reconcile(t.Context(), reconcile.Request{NamespacedName: key("a", "cb")})
		return err != nil
	})
	mu.Lock()
	broken = false
	mu.Unlock()
	b.await("FunctionalProbeOK=False/ProbeIngestFailed")
	if got := value(t, registry, "inferencecache_controller_probe_requests_total", "result", "ok"); got != 1 {
		t.Errorf("%v calls, want 1", got)
	}
}

func TestProbeBypassed(t *testing.T) {
	server := startServer(t, "1")
	server.serve(outcomes("failed skipped skipped"))
	registry := prometheus.NewRegistry()
	b := newBench(t, someBackend(annotated(v1alpha1.AnnotationSkipFunctionalProbe, "true"))).
		probing(nil, controller.NewMetrics(registry), server.named(t, "one"))
	b.pass()
	b.want("FunctionalProbeOK=True/ProbeBypassed", "Ready=True/KVEventsObserved")
	if got := value(t, registry, "inferencecache_controller_probe_requests_total", "result", "ok"); got != 0 {
		t.Errorf("%v calls while bypassed", got)
	}
	b.change(annotated(v1alpha1.AnnotationSkipFunctionalProbe, "True"))
	b.await("FunctionalProbeOK=False/ProbeIngestFailed")
	if got := testutil.CollectAndCount(registry, "inferencecache_controller_probe_last_timestamp_seconds"); got != 1 {
		t.Errorf("%d ages of probes, want 1", got)
	}
	b.change(annotated(v1alpha1.AnnotationSkipFunctionalProbe, "true"))
	b.pass()
	b.want("FunctionalProbeOK=True/ProbeBypassed", "Ready=True/KVEventsObserved")
	if got := testutil.CollectAndCount(registry, "inferencecache_controller_probe_last_timestamp_seconds"); got != 0 {
		t.Errorf("%d ages of probes of a bypassed backend", got)
	}
}

func TestProbeOff(t *testing.T) {
	server := startServer(t, "1")
	server.serve(outcomes("failed skipped skipped"))
	b := newBench(t, someBackend()).probing(nil, nil, server.named(t, "one"))
	b.await("FunctionalProbeOK=False")
	b.with(func(o *controller.BackendOptions) { o.Prober = nil }).pass()
	b.want("FunctionalProbeOK=", "Ready=True/KVEventsObserved")
}

// Without events nothing is asked, and what was found stays.
func TestProbeWaitsForTheGate(t *testing.T) {
	server := startServer(t, "1")
	registry := prometheus.NewRegistry()
	b := newBench(t, someBackend())
	discovery := new(servers)
	discovery.set(server.named(t, "one"))
	b.prober = controller.NewProber(controller.ProberOptions{Discovery: discovery, Metrics: controller.NewMetrics(registry), Now: b.clock})
	run(t, b.prober.Start)
	b.with(func(o *controller.BackendOptions) { o.Prober = b.prober })
	b.pass()
	b.want("FunctionalProbeOK=", "Ready=False/AwaitingFirstKVEvent")
	if got := value(t, registry, "inferencecache_controller_probe_requests_total", "result", "ok"); got != 0 {
		t.Errorf("%v calls before the first event", got)
	}
	b.hear()
	b.await("FunctionalProbeOK=True/ProbeOK")
}

// A server that hangs holds up no reconcile, and only its own callers wait.
func TestProbeHungServerDelaysNobody(t *testing.T) {
	release := make(chan struct{})
	server := startServer(t, "1")
	var mu sync.Mutex
	waiting := 0
	server.serve(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		waiting++
		mu.Unlock()
		<-release
		outcomes("ok ok ok")(w, r)
	})
	b := newBench(t, someBackend()).probing(nil, nil, server.named(t, "one"))
	b.pass()
	eventually(t, "the server is asked", func() bool { mu.Lock(); defer mu.Unlock(); return waiting == 1 })
	b.pass() // returns
	b.want("Ready=True/KVEventsObserved", "FunctionalProbeOK=")
	close(release)
	b.await("FunctionalProbeOK=True/ProbeOK")
}

func TestProbeMetrics(t *testing.T) {
	server := startServer(t, "1")
	server.serve(outcomes("ok great skipped"))
	registry := prometheus.NewRegistry()
	b := newBench(t, someBackend()).probing(nil, controller.NewMetrics(registry), server.named(t, "one"))
	b.await("FunctionalProbeOK=False/ProbeError")
	want := `
# HELP inferencecache_backend_probe_result_total Stages of answered self-tests of a backend.
# TYPE inferencecache_backend_probe_result_total counter
inferencecache_backend_probe_result_total{backend="a/cb",result="failed",stage="routing"} 1
inferencecache_backend_probe_result_total{backend="a/cb",result="ok",stage="ingest"} 1
inferencecache_backend_probe_result_total{backend="a/cb",result="skipped",stage="t2"} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "inferencecache_backend_probe_result_total"); err != nil {
		t.Error(err)
	}
	server.serve(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, `{"backend":"x/y","ingest":"ok","routing":"ok","t2":"ok"}`)
	})
	b.advance(30 * time.Second)
	eventually(t, "an answer for another backend", func() bool {
		b.pass()
		return value(t, registry, "inferencecache_controller_probe_requests_total", "result", "mismatch") == 1
	})
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "inferencecache_backend_probe_result_total"); err != nil {
		t.Error(err)
	}
	if err := b.cluster.Delete(t.Context(), someBackend()); err != nil {
		t.Fatal(err)
	}
	b.pass()
	for _, family := range []string{"inferencecache_backend_probe_result_total", "inferencecache_controller_probe_last_timestamp_seconds"} {
		if got := testutil.CollectAndCount(registry, family); got != 0 {
			t.Errorf("%d series of %s after the backend is gone", got, family)
		}
	}
}
