// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/inferencecache/inference-cache/internal/controller"
)

func TestPushMetrics(t *testing.T) {
	for name, tc := range map[string]struct {
		code int
		want string
	}{
		"taken":          {0, "ok"},
		"without token":  {401, "unauth"},
		"by the wrong":   {403, "forbidden"},
		"not understood": {400, "rejected"},
		"a broken one":   {500, "error"},
	} {
		t.Run(name, func(t *testing.T) {
			server := startServer(t, "1")
			if tc.code != 0 {
				server.serve(status(tc.code))
			}
			registry := prometheus.NewRegistry()
			all := new(servers)
			all.set(server.named(t, "one"))
			pusher := controller.NewPusher(controller.PusherOptions{
				Client: newCluster(t), Discovery: all, Interval: time.Hour, Metrics: controller.NewMetrics(registry),
			})
			run(t, pusher.Start)
			eventually(t, "a push is counted as "+tc.want, func() bool {
				return value(t, registry, "inferencecache_controller_policy_pushes_total", "result", tc.want) == 1
			})
			last := testutil.CollectAndCount(registry, "inferencecache_controller_policy_last_push_timestamp_seconds")
			if (last == 1) != (tc.want == "ok") {
				t.Errorf("%d times of a last push", last)
			}
			all.set()
			pusher.Changed()
			eventually(t, "the series of a server that is gone end", func() bool {
				return testutil.CollectAndCount(registry, "inferencecache_controller_policy_pushes_total") == 0
			})
		})
	}
}

func TestStorageWritesAreCountedFromTheStart(t *testing.T) {
	registry := prometheus.NewRegistry()
	controller.NewMetrics(registry)
	const kinds, operations, results = 3, 2, 2
	if got := testutil.CollectAndCount(registry, "inferencecache_controller_storage_writes_total"); got != kinds*operations*results {
		t.Errorf("%d series", got)
	}
}

// SnapshotPollStale looks at the age, so there must be one before the first
// success.
func TestPollsThatNeverSucceedHaveATime(t *testing.T) {
	const name = "inferencecache_controller_snapshot_last_success_timestamp_seconds"
	server := startServer(t, "1")
	server.serve(status(http.StatusForbidden))
	registry := prometheus.NewRegistry()
	all := new(servers)
	all.set(server.named(t, "one"))
	now := time.Unix(1_800_000_000, 0)
	poller := controller.NewPoller(controller.PollerOptions{
		Client: newCluster(t), Discovery: all, Metrics: controller.NewMetrics(registry), Now: func() time.Time { return now },
	})
	for _, want := range []float64{0, 1_800_000_000, 1_800_000_000} {
		_ = poller.Poll(t.Context()) // what it says is counted
		if n := testutil.CollectAndCount(registry, name); n != 1 {
			t.Fatalf("%d series, want one", n)
		}
		if got := value(t, registry, name, "server", "one"); got != want {
			t.Errorf("the last success was at %v, want %v", got, want)
		}
		if want == 0 {
			server.serve(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, `{"replicas":[],"tenants":[]}`) })
		} else {
			server.serve(status(http.StatusForbidden))
		}
	}
}

func TestPollMetrics(t *testing.T) {
	server := startServer(t, "1")
	tokens := func(hits, asked int) {
		server.serve(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintf(w, `{"replicas":[{"replicaId":"p","tenant":"a","prefixCount":1,"t2HitTokens":%d,"t2QueryTokens":%d}],"tenants":[]}`, hits, asked)
		})
	}
	registry := prometheus.NewRegistry()
	all := new(servers)
	all.set(server.named(t, "one"))
	poller := controller.NewPoller(controller.PollerOptions{
		Client: newCluster(t, someBackend(), injectedPod("p", "")), Discovery: all, Metrics: controller.NewMetrics(registry),
	})
	poll := func() {
		t.Helper()
		if err := poller.Poll(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	tier2 := func() (rate, asked float64) {
		return value(t, registry, "inferencecache_backend_t2_hit_rate", "backend", "a/cb"),
			value(t, registry, "inferencecache_backend_t2_query_tokens_total", "backend", "a/cb")
	}
	for i, tc := range []struct {
		hits, asked         int
		wantRate, wantTotal float64
	}{
		{50, 100, .5, 0}, // the base line
		{75, 300, .25, 200},
		{75, 300, .25, 200}, // idle
		{5, 10, .5, 200},    // an engine restarted
		{5, 20, .25, 210},
	} {
		tokens(tc.hits, tc.asked)
		poll()
		if rate, asked := tier2(); rate != tc.wantRate || asked != tc.wantTotal {
			t.Errorf("poll %d: rate %v, tokens %v, want %v and %v", i, rate, asked, tc.wantRate, tc.wantTotal)
		}
	}
	tokens(0, 0)
	poll()
	if n := testutil.CollectAndCount(registry, "inferencecache_backend_t2_hit_rate"); n != 0 {
		t.Errorf("%d rates without queries", n)
	}
	if got := value(t, registry, "inferencecache_controller_snapshot_polls_total", "result", "ok"); got != 6 {
		t.Errorf("%v polls, want 6", got)
	}
	server.serve(status(500))
	if poller.Poll(t.Context()) == nil {
		t.Error("a poll that nobody answers succeeds")
	}
	if got := value(t, registry, "inferencecache_controller_snapshot_polls_total", "result", "error"); got != 1 {
		t.Errorf("%v failed polls, want 1", got)
	}
}

// A backend may go while a poll is under way, after its series were removed.
func TestPollsRemoveTheTier2SeriesOfBackendsThatAreGone(t *testing.T) {
	server := startServer(t, "1")
	server.serve(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, `{"replicas":[{"replicaId":"p","tenant":"a","prefixCount":1,"t2HitTokens":1,"t2QueryTokens":2}],"tenants":[]}`)
	})
	registry := prometheus.NewRegistry()
	all := new(servers)
	all.set(server.named(t, "one"))
	cluster := newCluster(t, someBackend(), injectedPod("p", ""))
	poller := controller.NewPoller(controller.PollerOptions{Client: cluster, Discovery: all, Metrics: controller.NewMetrics(registry)})
	for _, want := range []int{1, 0} {
		if err := poller.Poll(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"inferencecache_backend_t2_hit_rate", "inferencecache_backend_t2_query_tokens_total"} {
			if n := testutil.CollectAndCount(registry, name); n != want {
				t.Errorf("%d series of %s, want %d", n, name, want)
			}
		}
		if want == 1 {
			if err := cluster.Delete(t.Context(), someBackend()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Every family of the controller stands in docs/metrics.md with its meaning.
func TestControllerMetricsAreInTheReference(t *testing.T) {
	reference, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	controller.NewMetrics(registry)
	descs := make(chan *prometheus.Desc)
	go func() { defer close(descs); registry.Describe(descs) }()
	text := regexp.MustCompile(`fqName: "(\w+)", help: "([^"]*)"`)
	for desc := range descs {
		parts := text.FindStringSubmatch(desc.String())
		found := false
		for line := range strings.Lines(string(reference)) {
			found = found || strings.HasPrefix(line, "| `"+parts[1]+"` |") && strings.HasSuffix(strings.TrimSpace(line), "| "+parts[2]+" |")
		}
		if !found {
			t.Errorf("docs/metrics.md lacks %s: %s", parts[1], parts[2])
		}
	}
}
