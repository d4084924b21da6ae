// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/gateway"
)

// blocking is an engine that answers once release is closed.
func blocking(t *testing.T, id string) (e *engine, release chan struct{}) {
	release = make(chan struct{})
	return newEngine(t, id, func(e *engine) {
		e.generate = func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-release:
				answerJSON(id, 0)(w, r)
			case <-r.Context().Done():
			}
		}
	}), release
}

// inBackground sends requests that may take long, and returns their answers.
func (f *fixture) inBackground(n int, header ...string) <-chan answer {
	answers := make(chan answer, n)
	for range n {
		go func() { answers <- f.post("/v1/completions", prompt(), header...) }()
	}
	return answers
}

// keysFile holds the API key "key" of a tenant with limits.
func keysFile(t *testing.T, limits string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, fmt.Appendf(nil, "%x team %s\n", sha256.Sum256([]byte("key")), limits), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestOverloadAnswers(t *testing.T) {
	cases := map[string]struct {
		options            gateway.Options
		limits             string
		code, reason, says string
	}{
		"more than the gateway may have": {
			options: gateway.Options{MaxInflight: 1, QueueLimit: -1}, code: "overloaded", reason: "queue_full",
		},
		"no place in time": {
			options: gateway.Options{MaxInflight: 1, Timeouts: gateway.Timeouts{Queue: time.Millisecond}}, code: "overloaded", reason: "queue_full",
		},
		"more than the caller may have": {
			options: gateway.Options{QueueLimit: -1}, limits: "inflight=1", code: "rate_limited", reason: "rate_limit", says: "you have too many",
		},
		"more tokens than the caller may use": {
			limits: "tokens-per-minute=30", code: "rate_limited", reason: "rate_limit", says: "tokens per minute",
		},
		"more than every replica may have": {code: "overloaded", reason: "shed", says: "as many requests as it may"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			a, release := blocking(t, "a")
			if tc.limits != "" {
				tc.options.Access.APIKeysFile = keysFile(t, tc.limits)
			}
			if strings.Contains(tc.says, "as it may") {
				tc.options.Replicas = replicas(a)
				tc.options.Replicas[0].MaxInflight = 1
			}
			f := startUnready(t, tc.options)
			if len(tc.options.Replicas) == 0 {
				if err := f.SetReplicas(replicas(a)); err != nil {
					t.Fatal(err)
				}
			}
			if err := f.AwaitReplicas(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			first := f.inBackground(1, "Authorization", "Bearer key")
			eventually(t, "the first request is at the engine", func() bool { return len(a.requests()) == 1 })
			got := f.post("/v1/completions", prompt(), "Authorization", "Bearer key")
			if got.status != 429 || !strings.Contains(got.body, `"code":"`+tc.code+`"`) || !strings.Contains(got.body, tc.says) {
				t.Errorf("%d %s", got.status, got.body)
			}
			if after := got.header.Get("Retry-After"); after == "" || after == "0" {
				t.Errorf("Retry-After %q", after)
			}
			if n := f.value("gateway_rejected_total", "reason", tc.reason); n != 1 {
				t.Errorf("%v rejections counted as %s", n, tc.reason)
			}
			close(release)
			if got := <-first; got.status != 200 {
				t.Errorf("the first request: %d %s", got.status, got.body)
			}
			f.idle()
		})
	}
}

func TestQueuedRequestsAreServed(t *testing.T) {
	a, release := blocking(t, "a")
	f := start(t, gateway.Options{MaxInflight: 2}, a)
	answers := f.inBackground(6)
	eventually(t, "four wait", func() bool { return f.value("gateway_queue", "endpoint", "completions") >= 4 })
	if n := len(a.requests()); n > 2 {
		t.Errorf("%d requests are at the engine", n)
	}
	close(release)
	for range 6 {
		if got := <-answers; got.status != 200 {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	f.idle()
}

func TestSheddingSaysWhenToComeBack(t *testing.T) {
	a, release := blocking(t, "a")
	f := start(t, gateway.Options{ShedTTFT: time.Second, Tokenizer: gateway.TokenizeNone}, a)
	long := completion(strings.Repeat("p", 8000*4*3)) // three seconds of prefill
	first := make(chan answer, 1)
	go func() {
		first <- f.post("/v1/completions", strings.Replace(long, "{", `{"stream":true,`, 1))
	}()
	eventually(t, "the first request is at the engine", func() bool { return len(a.requests()) == 1 })
	got := f.post("/v1/completions", prompt())
	if got.status != 429 || got.header.Get("Retry-After") != "2" || !strings.Contains(got.body, "overloaded") {
		t.Errorf("%d, Retry-After %s, %s", got.status, got.header.Get("Retry-After"), got.body)
	}
	if n := f.value("gateway_rejected_total", "reason", "shed"); n != 1 {
		t.Errorf("%v requests shed", n)
	}
	close(release)
	if got := <-first; got.status != 200 {
		t.Errorf("the first request, which found nothing queued: %d", got.status)
	}
}

func TestStickyRequests(t *testing.T) {
	body := func(user string) string {
		text, _ := json.Marshal(map[string]any{"model": testModel, "prompt": strings.Repeat("p", 64), "user": user})
		return string(text)
	}
	cases := map[string]struct {
		options gateway.Options
		send    func(f *fixture, key string) answer
		sticky  bool
	}{
		"by a member of the body": {
			gateway.Options{StickyField: "user"},
			func(f *fixture, key string) answer { return f.post("/v1/completions", body(key)) }, true,
		},
		"by a header": {
			gateway.Options{StickyHeader: "X-Conversation"},
			func(f *fixture, key string) answer {
				return f.post("/v1/completions", prompt(), "X-Conversation", key)
			}, true,
		},
		"not by a control header of an untrusted client": {
			gateway.Options{StickyHeader: "X-Session-Id"},
			func(f *fixture, key string) answer {
				return f.post("/v1/completions", prompt(), "X-Session-Id", key)
			}, false,
		},
		"not by a key that is too long": {
			gateway.Options{StickyField: "user"},
			func(f *fixture, key string) answer {
				return f.post("/v1/completions", body(key+strings.Repeat("x", 128)))
			}, false,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tc.options.Policy, tc.options.ExposeReplica = "round_robin", true
			f := start(t, tc.options, newEngine(t, "a"), newEngine(t, "b"), newEngine(t, "c"))
			homes := map[string]string{}
			moved := false
			for range 4 {
				for _, key := range []string{"one", "two"} {
					got := tc.send(f, key).header.Get("X-Inference-Cache-Replica")
					moved = moved || homes[key] != "" && homes[key] != got
					homes[key] = got
				}
			}
			if moved == tc.sticky {
				t.Errorf("conversations moved: %v", moved)
			}
			if hits := f.value("routing_decisions_total", "origin", "sticky_hit"); (hits == 6) != tc.sticky {
				t.Errorf("%v sticky hits", hits)
			}
		})
	}
}

// TestGW18RanksReachTheEngine checks that a hint for one rank arrives as a
// header and, where the engine reads only that, in the body.
func TestGW18RanksReachTheEngine(t *testing.T) {
	rank := 1
	for runtime, inBody := range map[string]bool{"vllm": false, "sglang": true} {
		t.Run(runtime, func(t *testing.T) {
			a := newEngine(t, "p#1")
			f := startUnready(t, gateway.Options{Tokenizer: gateway.TokenizeNone, Replicas: []gateway.Replica{
				{ID: a.id, URL: a.URL, Rank: &rank, Runtime: runtime, Models: []string{testModel}},
			}})
			if err := f.AwaitReplicas(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			for _, body := range []string{prompt(), "{ }"} {
				if got := f.post("/v1/completions", body); got.status != 200 {
					t.Fatalf("%d %s", got.status, got.body)
				}
			}
			for _, r := range a.requests() {
				if got := r.header.Get("X-Data-Parallel-Rank"); got != "1" {
					t.Errorf("rank %q in the header", got)
				}
				var members map[string]any
				if err := json.Unmarshal(r.body, &members); err != nil {
					t.Fatalf("body %s: %v", r.body, err)
				}
				if _, ok := members["routed_dp_rank"]; ok != inBody {
					t.Errorf("rank in the body: %v", ok)
				}
			}
		})
	}
}

// TestAsleep checks that an engine which sleeps gets nothing until it wakes.
func TestAsleep(t *testing.T) {
	var asleep atomic.Bool
	a := newEngine(t, "a", func(e *engine) {
		e.sleeping = asleep.Load
	})
	b := newEngine(t, "b")
	f := start(t, gateway.Options{Policy: "round_robin", Timeouts: gateway.Timeouts{HealthInterval: 10 * time.Millisecond}}, a, b)
	asleep.Store(true)
	eventually(t, "the gateway knows", func() bool { return f.State().Replicas[0].Asleep })
	for range 4 {
		if got := f.post("/v1/completions", prompt()); got.status != 200 {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	if n := len(a.requests()); n != 0 {
		t.Errorf("%d requests for an engine that sleeps", n)
	}
	asleep.Store(false)
	eventually(t, "the gateway knows", func() bool { return !f.State().Replicas[0].Asleep })
	f.post("/v1/completions", prompt())
	f.post("/v1/completions", prompt())
	if n := len(a.requests()); n != 1 {
		t.Errorf("%d of two requests for the engine that woke up", n)
	}
}

func TestSGLangLoadReports(t *testing.T) {
	a := newEngine(t, "a", func(e *engine) {
		e.loads = `{"loads":[{"dp_rank":0,"num_waiting_reqs":1,"num_waiting_uncached_tokens":4321,"token_usage":0.5}]}`
	})
	f := startUnready(t, gateway.Options{Tokenizer: gateway.TokenizeNone, Replicas: []gateway.Replica{
		{ID: "a", URL: a.URL, Runtime: "sglang", Models: []string{testModel}},
	}})
	if err := f.AwaitReplicas(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	got := f.State().Replicas[0]
	if got.QueueTokens != 4321 || got.CacheUsage == nil || *got.CacheUsage != 0.5 {
		t.Errorf("%+v", got)
	}
}

// TestHTTP2WithoutTLS checks both sides: clients may speak it on the plain
// listener, and engines are spoken to in it where configured.
func TestHTTP2WithoutTLS(t *testing.T) {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	var seen atomic.Value
	a := newEngine(t, "a")
	handler := a.Server.Config.Handler
	a.Server.Close()
	server := &http.Server{Protocols: &protocols, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/completions" {
			seen.Store(r.Proto)
		}
		handler.ServeHTTP(w, r)
	})}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() { _ = server.Close(); serving.Wait() })
	f := startUnready(t, gateway.Options{Replicas: []gateway.Replica{
		{ID: "a", URL: "http://" + listener.Addr().String(), Protocol: "h2c"},
	}})
	if err := f.AwaitReplicas(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	f.client = &http.Client{Transport: &http.Transport{Protocols: &protocols}}
	t.Cleanup(f.client.CloseIdleConnections)
	for _, tokens := range []int{64, 100_000} {
		response, err := f.client.Post(f.url+"/v1/completions", "application/json", strings.NewReader(completion(strings.Repeat("p", tokens))))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		if response.StatusCode != 200 || response.Proto != "HTTP/2.0" || seen.Load() != "HTTP/2.0" {
			t.Errorf("%d by %s, engine asked by %v", response.StatusCode, response.Proto, seen.Load())
		}
	}
	if err := f.stop(); err != nil {
		t.Errorf("shutdown with an HTTP/2 client: %v", err)
	}
}

// staleEngine serves the first request of a connection. The second finds the
// connection closed, as if it had been idle for too long.
type staleEngine struct {
	net.Listener
	engine *engine
	served atomic.Int64
}

func (s *staleEngine) serve() {
	for {
		conn, err := s.Accept()
		if err != nil {
			return
		}
		go s.one(conn)
	}
}

func (s *staleEngine) one(conn net.Conn) {
	defer conn.Close()
	reader := bufio.NewReader(conn)
	request, err := http.ReadRequest(reader)
	if err != nil {
		return
	}
	if request.URL.Path == "/v1/completions" {
		s.served.Add(1)
	}
	recorder := &plainWriter{header: http.Header{}}
	s.engine.ServeHTTP(recorder, request)
	fmt.Fprintf(conn, "HTTP/1.1 %d OK\r\nContent-Length: %d\r\n\r\n%s", max(recorder.status, 200), len(recorder.body), recorder.body)
	_, _ = reader.Peek(1) // the next request
}

// plainWriter keeps an answer.
type plainWriter struct {
	header http.Header
	status int
	body   []byte
}

func (w *plainWriter) Header() http.Header         { return w.header }
func (w *plainWriter) WriteHeader(status int)      { w.status = status }
func (w *plainWriter) Write(p []byte) (int, error) { w.body = append(w.body, p...); return len(p), nil }

// TestStaleConnectionsAreReplacedSilently checks that a pooled connection which
// the engine closed costs neither a retry nor trust in the replica.
func TestStaleConnectionsAreReplacedSilently(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stale := &staleEngine{Listener: listener, engine: newEngine(t, "a")}
	var serving sync.WaitGroup
	serving.Go(stale.serve)
	t.Cleanup(func() { _ = listener.Close(); serving.Wait() })
	f := startUnready(t, gateway.Options{
		Tokenizer: gateway.TokenizeNone,
		Timeouts:  gateway.Timeouts{HealthInterval: time.Hour},
		Replicas:  []gateway.Replica{{ID: "a", URL: "http://" + listener.Addr().String(), Models: []string{testModel}}},
	})
	if err := f.AwaitReplicas(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if got := f.post("/v1/completions", prompt()); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	time.Sleep(1100 * time.Millisecond) // the connections must have been idle
	if got := f.post("/v1/completions", prompt()); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := stale.served.Load(); got != 2 {
		t.Errorf("the engine served %d requests, want 2", got)
	}
	if n := f.value("gateway_resends_total"); n != 1 {
		t.Errorf("%v resends counted", n)
	}
	for _, result := range []string{"ok", "failed", "exhausted", "not_retryable"} {
		if n := f.value("gateway_retries_total", "result", result); n != 0 {
			t.Errorf("%v retries counted as %s", n, result)
		}
	}
}

func TestHedging(t *testing.T) {
	slow := make(chan struct{})
	var hang atomic.Bool
	a := newEngine(t, "a", func(e *engine) {
		e.generate = func(w http.ResponseWriter, r *http.Request) {
			if hang.Load() {
				select {
				case <-slow:
				case <-r.Context().Done():
					return
				}
			}
			answerJSON("a", 0)(w, r)
		}
	})
	b := newEngine(t, "b")
	f := start(t, gateway.Options{HedgePercentile: 95, Lookuper: says("PREFIX_MATCH", "a"), ExposeReplica: true}, a, b)
	for range 60 {
		f.post("/v1/completions", prompt())
	}
	hang.Store(true)
	got := f.post("/v1/completions", prompt())
	if got.status != 200 || !strings.Contains(got.body, `"b"`) || got.header.Get("X-Inference-Cache-Replica") != "b" {
		t.Errorf("%d %s from %s", got.status, got.body, got.header.Get("X-Inference-Cache-Replica"))
	}
	if n := f.value("gateway_hedges_total", "result", "won"); n < 1 {
		t.Errorf("%v hedges won", n)
	}
	f.idle()
	if got := f.State().Replicas[0].Breaker; got != "closed" {
		t.Errorf("the slow replica's breaker is %s", got)
	}
	close(slow)
}
