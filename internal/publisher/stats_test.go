// SPDX-License-Identifier: Apache-2.0

package publisher_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/engines"
	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/ingest"
	"github.com/inferencecache/inference-cache/internal/publisher"
)

// engineAPI is the HTTP side of an engine, whose pages tests change.
type engineAPI struct {
	*httptest.Server
	client *http.Client

	mu    sync.Mutex
	pages map[string]string // absent is a 404
}

func startAPI(t *testing.T, pages map[string]string) *engineAPI {
	t.Helper()
	a := &engineAPI{pages: pages}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		page, ok := a.pages[r.URL.Path]
		a.mu.Unlock()
		if !ok {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, page)
	}))
	a.client = a.Server.Client()
	t.Cleanup(func() {
		a.client.CloseIdleConnections()
		a.Server.Close()
	})
	return a
}

func (a *engineAPI) set(path, page string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pages[path] = page
}

func (a *engineAPI) remove(path string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.pages, path)
}

// logLines collects log output.
type logLines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logLines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

func (l *logLines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// stats returns what the index knows of a replica's load.
func (w *world) stats(replica string) (index.Stats, bool) {
	view := w.server.index.Acquire(testScope, "", time.Now().UnixMilli(), index.DefaultTTLMillis)
	defer view.Release()
	for _, c := range view.Candidates(nil, false, false) {
		if c.Replica == replica {
			return view.Stats(c.Slot)
		}
	}
	return index.Stats{}, false
}

func vllmPage(running, waiting int) string {
	return fmt.Sprintf("vllm:num_requests_running{engine=\"0\"} %d\nvllm:num_requests_waiting{engine=\"0\"} %d\n", running, waiting)
}

func TestStatsReachTheServers(t *testing.T) {
	api := startAPI(t, map[string]string{"/metrics": vllmPage(3, 1) + "vllm:kv_cache_usage_perc 0.5\n"})
	e := startEngine(t, engineOptions{})
	w := startPublisher(t, publisher.Config{
		Events: e.events, MetricsURL: api.URL + "/metrics", StatsInterval: 5 * time.Millisecond,
		Load: engines.LoadOptions{Ceiling: 8, CacheBytes: 1 << 20},
	}, publisher.Deps{HTTPClient: api.client})
	e.await(1)
	e.publish(storeBatch(0, 0, 1, 0, 1))
	w.awaitMatch(testReplica, 1, 1)
	eventually(t, "stats", func() bool {
		s, ok := w.stats(testReplica)
		return ok && s.Pressure == 0.5 && s.CacheMemoryBytes == 1<<19
	})
	load := w.publisher.Status().Load
	if load.Running != 3 || load.Waiting != 1 || load.Stale || load.At.IsZero() {
		t.Errorf("got %+v", load)
	}
}

func TestStatsOfEachRank(t *testing.T) {
	api := startAPI(t, map[string]string{"/metrics": `
vllm:num_requests_running{engine="0"} 2
vllm:num_requests_running{engine="1"} 4
vllm:num_requests_waiting{engine="0"} 0
vllm:num_requests_waiting{engine="1"} 0
`})
	base := freePorts(t, 2)
	engine0 := startEngine(t, engineOptions{events: fmt.Sprintf("tcp://127.0.0.1:%d", base)})
	engine1 := startEngine(t, engineOptions{events: fmt.Sprintf("tcp://127.0.0.1:%d", base+1)})
	w := startPublisher(t, publisher.Config{
		Events: engine0.events, Ranks: 2, MetricsURL: api.URL + "/metrics", StatsInterval: 5 * time.Millisecond,
		Load: engines.LoadOptions{Ceiling: 8},
	}, publisher.Deps{HTTPClient: api.client})
	for rank, e := range []*fakeEngine{engine0, engine1} {
		e.await(1)
		e.publish(storeBatch(rank, 0, 1, 0, 1))
	}
	for rank, want := range []float32{0.25, 0.5} {
		eventually(t, "stats", func() bool {
			s, ok := w.stats(rankName(rank))
			return ok && s.Pressure == want
		})
	}
	if got := w.publisher.Status().Load.Running; got != 6 {
		t.Errorf("%v requests run, want 6", got)
	}
}

func TestLoadSignalStale(t *testing.T) {
	tests := map[string]string{
		"the page is gone":         "",
		"another engine's page":    "sglang:num_running_reqs 1\n",
		"a gauge is missing":       "vllm:num_requests_running 1\n",
		"the page is no metrics":   "<html>",
		"the gauges are no number": "vllm:num_requests_running NaN\nvllm:num_requests_waiting NaN\n",
	}
	for name, page := range tests {
		t.Run(name, func(t *testing.T) {
			api := startAPI(t, map[string]string{"/metrics": vllmPage(1, 0)})
			e := startEngine(t, engineOptions{})
			var log logLines
			w := startPublisher(t, publisher.Config{
				Events: e.events, MetricsURL: api.URL + "/metrics", StatsInterval: 2 * time.Millisecond,
			}, publisher.Deps{HTTPClient: api.client, Logger: log.logger()})
			eventually(t, "a reading", func() bool { return !w.publisher.Status().Load.At.IsZero() })
			if page == "" {
				api.remove("/metrics")
			} else {
				api.set("/metrics", page)
			}
			eventually(t, "a stale signal", func() bool { return w.publisher.Status().Load.Misses > 4 })
			if load := w.publisher.Status().Load; !load.Stale || load.Running != 1 || load.LastError == "" {
				t.Errorf("got %+v, want stale with the last known load", load)
			}
			if got := log.count("load_signal_stale"); got != 1 {
				t.Errorf("said %d times that the signal is stale, want once", got)
			}
			api.set("/metrics", vllmPage(2, 0))
			eventually(t, "recovery", func() bool { return log.count("load_signal_recovered") == 1 })
			if load := w.publisher.Status().Load; load.Stale || load.Misses != 0 || load.Running != 2 {
				t.Errorf("got %+v after recovery", load)
			}
		})
	}
}

const modelPage = `{"data":[{"id":"llama","parent":null}]}`

func TestModelIsAskedFor(t *testing.T) {
	api := startAPI(t, map[string]string{})
	e := startEngine(t, engineOptions{})
	var log logLines
	w := startPublisher(t, publisher.Config{BaseURL: api.URL, Events: e.events, StatsInterval: -1},
		publisher.Deps{HTTPClient: api.client, Logger: log.logger()})
	eventually(t, "a first attempt", func() bool { return log.count("waiting for the engine to tell its models") == 1 })
	if s := w.publisher.Status(); s.Model != "" || s.StreamsExpected != 0 || s.Ready() {
		t.Errorf("got %+v before the engine is there", s)
	}
	api.set("/v1/models", `{"data":[{"id":"sql","parent":"llama"}]}`)
	api.set("/v1/models", modelPage)
	e.await(1)
	e.publish(storeBatch(0, 0, 1, 0, 2))
	w.awaitMatch(testReplica, 1, 2)
	if got := w.publisher.Status().Model; got != testModel {
		t.Errorf("got model %q, want %q", got, testModel)
	}
	if got := log.count("waiting for the engine to tell its models"); got != 1 {
		t.Errorf("said %d times that it waits, want once a minute", got)
	}
}

func TestEngineComesBackWithAnotherModel(t *testing.T) {
	const other = "qwen"
	otherScope := testScope
	otherScope.Model = other
	for name, ranks := range map[string]int{"one rank": 1, "a shared stream of ranks": 2} {
		t.Run(name, func(t *testing.T) {
			api := startAPI(t, map[string]string{"/v1/models": `{"data":[{"id":"` + other + `","parent":null}]}`})
			e := startEngine(t, engineOptions{})
			w := startPublisher(t, publisher.Config{BaseURL: api.URL, Events: e.events, Replay: e.replay, StatsInterval: -1},
				publisher.Deps{HTTPClient: api.client})
			replica := func(rank int) string {
				if ranks == 1 {
					return testReplica
				}
				return rankName(rank)
			}
			e.await(1)
			for rank := range ranks {
				e.publish(storeBatch(rank, 0, 1, 0, 2))
			}
			held := func(scope index.Scope, chain, blocks int) func() bool {
				return func() bool {
					for rank := range ranks {
						if w.matchedIn(scope, replica(rank), chain) != blocks {
							return false
						}
					}
					return true
				}
			}
			eventually(t, "the blocks of the first model", held(otherScope, 1, 2))
			api.set("/v1/models", modelPage)
			e = e.restart()
			e.await(1)
			eventually(t, "the second model", func() bool { return w.publisher.Status().Model == testModel })
			for rank := range ranks {
				e.publish(storeBatch(rank, 1, 1, 0, 3))
			}
			eventually(t, "the blocks of the second model", held(testScope, 1, 3))
			eventually(t, "nothing left of the first", held(otherScope, 1, 0))
		})
	}
}

func TestSocketsAreAskedFor(t *testing.T) {
	var list []*fakeEngine
	var sources []string
	for rank := range 2 {
		e := startEngine(t, engineOptions{})
		e.keep(storeBatch(rank, 0, 1, 0, 1+rank))
		list = append(list, e)
		sources = append(sources, fmt.Sprintf(`{"data_parallel_rank":%d,"endpoint":%q,"replay_endpoint":%q}`, rank, e.events, e.replay))
	}
	api := startAPI(t, map[string]string{
		"/v1/models":        modelPage,
		"/kv_event_sources": "[" + strings.Join(sources, ",") + "]",
	})
	w := startPublisher(t, publisher.Config{BaseURL: api.URL, StatsInterval: -1}, publisher.Deps{HTTPClient: api.client})
	for rank := range list {
		w.awaitMatch(rankName(rank), 1, 1+rank)
	}
	if s := w.publisher.Status(); s.StreamsExpected != 2 || !s.HasReplay {
		t.Errorf("got %+v", s)
	}
}

func TestStatedBlockSizeWins(t *testing.T) {
	api := startAPI(t, map[string]string{
		"/v1/models": modelPage,
		"/metrics":   `vllm:cache_config_info{block_size="32"} 1` + "\n",
	})
	e := startEngine(t, engineOptions{})
	var log logLines
	w := startPublisher(t, publisher.Config{BaseURL: api.URL, Model: testModel, Events: e.events, StatsInterval: -1},
		publisher.Deps{HTTPClient: api.client, Logger: log.logger()})
	eventually(t, "the block size", func() bool { return len(w.publisher.Status().Ranks) == 1 && w.session().BlockSize == 32 })
	e.await(1)
	for range 2 {
		e.publish(storeBatch(0, 0, 1, 0, 2))
	}
	eventually(t, "both batches", func() bool { return w.session().Skipped["block_size_mismatch"] == 2 })
	eventually(t, "a warning", func() bool { return log.count("skipping events that cannot be used") > 0 })
	if n := log.count("skipping events that cannot be used"); n != 1 {
		t.Errorf("%d warnings for one reason", n)
	}
}

func TestSGLangWithAdaptersIsNotIndexed(t *testing.T) {
	api := startAPI(t, map[string]string{
		"/v1/models":   modelPage,
		"/server_info": `{"page_size":4,"enable_lora":true}`,
	})
	e := startEngine(t, engineOptions{})
	w := startPublisher(t, publisher.Config{
		BaseURL: api.URL, Model: testModel, Scheme: engines.SGLang, Events: e.events, StatsInterval: -1,
	}, publisher.Deps{HTTPClient: api.client})
	e.await(1)
	e.publish(storeBatch(0, 0, 1, 0, 2))
	eventually(t, "the batch", func() bool { return w.session().Skipped["lora_unattributable"] == 1 })
}

func TestConfigIsChecked(t *testing.T) {
	tests := map[string]struct {
		config publisher.Config
		want   string // "" is no error
	}{
		"the least with a URL":      {publisher.Config{Replica: "r", BaseURL: "http://h:1"}, ""},
		"the least without":         {publisher.Config{Replica: "r", Model: "m", Events: "tcp://h:1"}, ""},
		"no name":                   {publisher.Config{BaseURL: "http://h:1"}, "replica: a name is needed"},
		"a name with a rank":        {publisher.Config{Replica: "r#1", BaseURL: "http://h:1"}, "# is kept for ranks"},
		"nothing to connect to":     {publisher.Config{Replica: "r", Model: "m"}, "events: an endpoint is needed"},
		"nobody to ask":             {publisher.Config{Replica: "r", Events: "tcp://h:1"}, "model: a name is needed"},
		"nothing to bind":           {publisher.Config{Replica: "r", BaseURL: "http://h:1", Bind: true}, "needed to bind"},
		"a bad endpoint":            {publisher.Config{Replica: "r", Model: "m", Events: "h:1"}, "tcp://host:port or ipc://path expected"},
		"a bad replay endpoint":     {publisher.Config{Replica: "r", Model: "m", Events: "tcp://h:1", Replay: "h:2"}, "replay: endpoint"},
		"ranks on a Unix socket":    {publisher.Config{Replica: "r", Model: "m", Events: "ipc:///s", Ranks: 2}, "ipc has no rank 1"},
		"ranks that meet replays":   {publisher.Config{Replica: "r", Model: "m", Events: "tcp://h:5557", Replay: "tcp://h:5558", Ranks: 2}, "too near"},
		"ranks beside replays":      {publisher.Config{Replica: "r", Model: "m", Events: "tcp://h:5557", Replay: "tcp://h:5559", Ranks: 2}, ""},
		"replays on another host":   {publisher.Config{Replica: "r", Model: "m", Events: "tcp://h:5557", Replay: "tcp://g:5558", Ranks: 2}, ""},
		"a rank beyond all":         {publisher.Config{Replica: "r", Model: "m", Events: "tcp://h:1", Ranks: 2, FirstRank: 1023}, "0 to 1024 expected"},
		"a URL of another protocol": {publisher.Config{Replica: "r", BaseURL: "ftp://h"}, "engine URL: http://host:port expected"},
		"a URL with a password":     {publisher.Config{Replica: "r", BaseURL: "http://u:secret@h"}, "engine URL: http://host:port expected"},
		"a bad metrics URL":         {publisher.Config{Replica: "r", Model: "m", Events: "tcp://h:1", MetricsURL: "h/metrics"}, "metrics URL: http://host:port expected"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := publisher.New(tc.config, nil, publisher.Deps{})
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("got %v", err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "secret")):
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestTargetsChange(t *testing.T) {
	e := startEngine(t, engineOptions{})
	w := follow(t, e, publisher.Config{})
	e.publish(storeBatch(0, 0, 1, 0, 3))
	w.awaitMatch(testReplica, 1, 3)
	second := &world{t: t, server: newServer(ingest.SyncOptions{}), publisher: w.publisher}
	w.publisher.SetTargets([]publisher.Target{publisher.NewInProcTarget("second", second.server.sync)})
	second.awaitMatch(testReplica, 1, 3)
	eventually(t, "end of the first link", func() bool {
		links := w.publisher.Status().Ranks[0].Servers
		return len(links) == 1 && links[0].Target == "second"
	})
	e.publish(storeBatch(0, 0, 1, 3, 4))
	second.awaitMatch(testReplica, 1, 4)
	if diff := cmp.Diff(3, w.matched(testReplica, 1)); diff != "" {
		t.Errorf("the first server is still told: %s", diff)
	}
}
