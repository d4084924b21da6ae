// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/gateway"
)

const streamBody = `{"model":"base/model","prompt":"x","stream":true}`

// events answers with server-sent events; each step may block.
func events(steps ...func(w io.Writer, r *http.Request)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		w.WriteHeader(http.StatusOK)
		for _, step := range steps {
			_ = http.NewResponseController(w).Flush()
			step(w, r)
		}
	}
}

func event(text string) func(io.Writer, *http.Request) {
	return func(w io.Writer, _ *http.Request) { _, _ = io.WriteString(w, text) }
}

func crash(io.Writer, *http.Request) { panic(http.ErrAbortHandler) }

func TestErrors(t *testing.T) {
	a, b := newEngine(t, "a"), newEngine(t, "b")
	f := start(t, gateway.Options{MaxBodyBytes: 1000}, a, b)
	tests := map[string]struct {
		method, path, body string
		header             []string
		wantStatus         int
		wantCode, wantIn   string
	}{
		"malformed JSON says where": {
			path: "/v1/completions", body: `{"model":}`, wantStatus: 400, wantCode: "invalid_request",
			wantIn: "byte 9",
		},
		"an array is no request":  {path: "/v1/completions", body: `[]`, wantStatus: 400, wantCode: "invalid_request"},
		"an empty body":           {path: "/v1/completions", wantStatus: 400, wantCode: "invalid_request"},
		"a model that is no name": {path: "/v1/completions", body: `{"model":1}`, wantStatus: 400, wantCode: "invalid_request", wantIn: `"param":"model"`},
		"a stream flag that is none": {
			path: "/v1/completions", body: `{"model":"base/model","stream":"yes"}`, wantStatus: 400, wantCode: "invalid_request",
		},
		"an unknown model":      {path: "/v1/chat/completions", body: `{"model":"gpt"}`, wantStatus: 404, wantCode: "model_not_found"},
		"a body over the limit": {path: "/v1/completions", body: `{"a":"` + strings.Repeat("x", 1000) + `"}`, wantStatus: 413, wantCode: "request_too_large"},
		"a compressed body": {
			path: "/v1/completions", body: prompt(), header: []string{"Content-Encoding", "gzip"},
			wantStatus: 400, wantCode: "invalid_request",
		},
		"a field that makes engines connect": {
			path: "/v1/completions", body: `{"model":"base/model","kv_transfer_params":{}}`,
			wantStatus: 400, wantCode: "forbidden_field", wantIn: `"param":"kv_transfer_params"`,
		},
		"the same field in disguise": {
			path: "/v1/completions", body: `{"model":"base/model","b\u006fotstrap_host":"x"}`,
			wantStatus: 400, wantCode: "forbidden_field", wantIn: `"param":"bootstrap_host"`,
		},
		"a GET of a POST":           {method: "GET", path: "/v1/completions", wantStatus: 405, wantCode: "invalid_request"},
		"an unknown path":           {path: "/v2/completions", wantStatus: 404, wantCode: "not_found"},
		"administration of engines": {path: "/reset_prefix_cache", wantStatus: 404, wantCode: "not_found"},
		"metrics of engines":        {method: "GET", path: "/metrics", wantStatus: 404, wantCode: "not_found"},
		"a path that climbs":        {path: "/v1/completions/../../sleep", wantStatus: 404, wantCode: "not_found"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if tc.method == "" {
				tc.method = http.MethodPost
			}
			got := f.do(tc.method, f.url+tc.path, tc.body, tc.header...)
			if got.status != tc.wantStatus || !strings.Contains(got.body, `"code":"`+tc.wantCode+`"`) {
				t.Errorf("%d %s, want %d %s", got.status, got.body, tc.wantStatus, tc.wantCode)
			}
			if !strings.HasPrefix(got.body, `{"error":{"message":"`) || !strings.Contains(got.body, tc.wantIn) {
				t.Errorf("body %s, want an error with %s", got.body, tc.wantIn)
			}
		})
	}
	if n := len(a.requests()) + len(b.requests()); n != 0 {
		t.Errorf("engines got %d of the requests", n)
	}
	f.idle()
}

func TestNoReplicas(t *testing.T) {
	for name, options := range map[string]gateway.Options{
		"none configured": {},
		"none reachable":  {Replicas: []gateway.Replica{{ID: "a", URL: "http://127.0.0.1:1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			f := startUnready(t, options)
			for _, path := range []string{"/v1/completions", "/v1/embeddings"} {
				got := f.post(path, prompt())
				if got.status != 503 || !strings.Contains(got.body, `"code":"no_ready_replica"`) || got.header.Get("Retry-After") != "1" {
					t.Errorf("%s: %d %v %s", path, got.status, got.header, got.body)
				}
			}
			if got := f.do("GET", f.url+"/v1/models", ""); got.status != 503 {
				t.Errorf("models: %d", got.status)
			}
			eventually(t, "readiness", func() bool { return f.do("GET", f.admin+"/readyz", "").status == 200 })
		})
	}
}

func TestReplicaThatAppears(t *testing.T) {
	e := newEngine(t, "a")
	down := make(chan struct{})
	gate := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-down:
			e.ServeHTTP(w, r)
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	e.Config.Handler = gate
	f := startUnready(t, gateway.Options{Replicas: replicas(e)})
	if got := f.post("/v1/completions", prompt()); got.status != 503 {
		t.Fatalf("status %d before the engine is up", got.status)
	}
	close(down)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := f.AwaitReplicas(ctx, 1); err != nil {
		t.Fatal(err)
	}
	if got := f.post("/v1/completions", prompt()); got.status != 200 {
		t.Errorf("status %d after the engine came up: %s", got.status, got.body)
	}
}

// TestReplicaThatComesBackDifferent checks that what is known of an engine is
// asked again after it failed.
func TestReplicaThatComesBackDifferent(t *testing.T) {
	before, after := newEngine(t, "a"), newEngine(t, "a", func(e *engine) { e.blockSize = 32 })
	var restarted, failed atomic.Bool
	var checks atomic.Int64
	before.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !restarted.Load():
			before.ServeHTTP(w, r)
		case !failed.Swap(true):
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			if r.URL.Path == "/health" {
				checks.Add(1)
			}
			after.ServeHTTP(w, r)
		}
	})
	f := start(t, gateway.Options{Timeouts: gateway.Timeouts{HealthInterval: 50 * time.Millisecond}}, before)
	if got := f.State().Replicas[0].BlockSize; got != 16 {
		t.Fatalf("block size %d before the restart", got)
	}
	restarted.Store(true)
	eventually(t, "the new block size is known", func() bool { return f.State().Replicas[0].BlockSize == 32 })
	if n := checks.Load(); n > 5 {
		t.Errorf("known only after %d checks", n)
	}
}

func TestRetries(t *testing.T) {
	type result struct{ status, requestsA, requestsB int }
	tests := map[string]struct {
		a, b   http.HandlerFunc
		want   result
		wantIn string
	}{
		"an unavailable replica":       {answerStatus(503), answerJSON("b", 0), result{200, 1, 1}, `"b"`},
		"a bad gateway":                {answerStatus(502), answerJSON("b", 0), result{200, 1, 1}, `"b"`},
		"a busy replica":               {answerStatus(429), answerJSON("b", 0), result{200, 1, 1}, `"b"`},
		"a connection that breaks":     {crashHandler, answerJSON("b", 0), result{200, 1, 1}, `"b"`},
		"a stream that breaks at once": {events(crash), answerJSON("b", 0), result{200, 1, 1}, `"b"`},
		"an error of the engine is passed on": {
			answerStatus(500), answerJSON("b", 0), result{500, 1, 0}, "status 500 of the engine"},
		"a refusal is passed on": {
			answerStatus(400), answerJSON("b", 0), result{400, 1, 0}, "status 400 of the engine"},
		"the last answer is passed on when all fail": {
			answerStatus(503), answerStatus(503), result{503, 2, 1}, "status 503 of the engine"},
		"all connections break": {crashHandler, crashHandler, result{502, 2, 1}, `"code":"upstream_failed"`},
		"redirects are not followed": {
			func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusTemporaryRedirect)
			},
			answerJSON("b", 0), result{502, 1, 0}, `"code":"upstream_failed"`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			a := newEngine(t, "a", func(e *engine) { e.generate = tc.a })
			b := newEngine(t, "b", func(e *engine) { e.generate = tc.b })
			f := start(t, gateway.Options{Lookuper: says("PREFIX_MATCH", "a")}, a, b)
			got := f.post("/v1/completions", prompt())
			have := result{got.status, len(a.requests()), len(b.requests())}
			if have != tc.want || !strings.Contains(got.body, tc.wantIn) {
				t.Errorf("%+v %s, want %+v with %s", have, got.body, tc.want, tc.wantIn)
			}
			f.idle()
		})
	}
}

func crashHandler(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// TestDeadReplica checks that a replica that vanishes costs no request.
func TestDeadReplica(t *testing.T) {
	a, b := newEngine(t, "a"), newEngine(t, "b")
	f := start(t, gateway.Options{Lookuper: says("PREFIX_MATCH", "a")}, a, b)
	a.CloseClientConnections()
	a.Close()
	for range 20 {
		if got := f.post("/v1/completions", prompt()); got.status != 200 {
			t.Fatalf("status %d: %s", got.status, got.body)
		}
	}
	f.idle()
}

func TestGW27RetriesStayWithinTheirBudget(t *testing.T) {
	fail := func(e *engine) { e.generate = answerStatus(429) }
	f := start(t, gateway.Options{}, newEngine(t, "a", fail), newEngine(t, "b", fail))
	const requests = 30
	for range requests {
		if got := f.post("/v1/completions", prompt()); got.status != 429 {
			t.Fatal(got.status)
		}
	}
	if got := f.value("gateway_retries_total", "result", "exhausted"); got == 0 {
		t.Error("no request ran out of retries")
	}
	if got := f.value("gateway_upstream_errors_total", "kind", "status_429"); got > requests+15 {
		t.Errorf("%v attempts for %d requests", got, requests)
	}
	for _, r := range f.State().Replicas {
		if r.Breaker != "closed" {
			t.Errorf("busy answers opened the breaker of %s", r.ID)
		}
	}
}

func TestStreamIsFlushed(t *testing.T) {
	next := make(chan struct{})
	wait := func(_ io.Writer, _ *http.Request) { <-next }
	a := newEngine(t, "a", func(e *engine) {
		e.generate = events(event("data: {\"n\":1}\n\n"), wait, event("data: {\"n\":2}\n\ndata: {\"usage\":{\"prompt_tokens\":7,"+
			"\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":5}}}\n\n"), wait, event("data: [DONE]\n\n"))
	})
	f := start(t, gateway.Options{}, a)
	response, err := f.client.Post(f.url+"/v1/completions", "application/json", strings.NewReader(streamBody))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	read := func(want string) {
		t.Helper()
		for lines.Scan() {
			if lines.Text() != "" {
				if !strings.HasPrefix(lines.Text(), want) {
					t.Fatalf("got %s, want %s", lines.Text(), want)
				}
				return
			}
		}
		t.Fatalf("stream ended before %s: %v", want, lines.Err())
	}
	read(`data: {"n":1}`) // arrives while the engine waits
	next <- struct{}{}
	read(`data: {"n":2}`)
	read(`data: {"usage"`)
	next <- struct{}{}
	read(`data: [DONE]`)
	f.idle()
	if got := f.value("routing_tokens_total", "kind", "engine_cached"); got != 5 {
		t.Errorf("%v cached tokens counted, want 5", got)
	}
}

func TestBrokenStreams(t *testing.T) {
	const whole = "data: {\"n\":1}\n\n"
	tests := map[string]struct {
		steps []func(io.Writer, *http.Request)
		want  string
	}{
		"between events": {
			[]func(io.Writer, *http.Request){event(whole), crash}, whole},
		"within an event": {
			[]func(io.Writer, *http.Request){event(whole + "data: {\"n\":"), crash}, whole},
		"before the end of an event": {
			[]func(io.Writer, *http.Request){event("data: {\"n\":2}\n"), crash}, "data: {\"n\":2}\n\n"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			a := newEngine(t, "a", func(e *engine) { e.generate = events(tc.steps...) })
			b := newEngine(t, "b", func(e *engine) { e.generate = events(tc.steps...) })
			f := start(t, gateway.Options{}, a, b)
			got := f.post("/v1/completions", streamBody)
			want := tc.want + `data: {"error":{"message":"the replica failed in the middle of its answer","type":"server_error",` +
				`"param":null,"code":"upstream_failed"}}` + "\n\n"
			if diff := cmp.Diff(want, got.body); diff != "" {
				t.Errorf("stream (-want +got):\n%s", diff)
			}
			if n := len(a.requests()) + len(b.requests()); n != 1 {
				t.Errorf("%d attempts, want 1: nothing is retried after the first byte", n)
			}
			f.idle()
		})
	}
}

// What follows the end of a stream is no fault of the answer.
func TestStreamsThatBreakAfterTheirEnd(t *testing.T) {
	const last = "data: {\"n\":1}\n\ndata: [DONE]\n\n"
	hang := func(_ io.Writer, r *http.Request) { <-r.Context().Done() }
	tests := map[string][]func(io.Writer, *http.Request){
		"the connection breaks":        {event(last), crash},
		"the connection stays open":    {event(last), hang},
		"it breaks before the newline": {event(last[:len(last)-1]), event("\n"), crash},
	}
	for name, steps := range tests {
		t.Run(name, func(t *testing.T) {
			a := newEngine(t, "a", func(e *engine) { e.generate = events(steps...) })
			f := start(t, gateway.Options{Timeouts: gateway.Timeouts{Idle: 100 * time.Millisecond}}, a)
			if got := f.post("/v1/completions", streamBody); got.body != last {
				t.Errorf("stream %q, want %q", got.body, last)
			}
			f.idle()
			if got := f.value("gateway_upstream_errors_total", "kind", "mid_stream"); got != 0 {
				t.Errorf("%v failures counted, want 0", got)
			}
		})
	}
}

// An engine that leaves HTTP must not take the client with it.
func TestAnswerInAnotherProtocol(t *testing.T) {
	a := newEngine(t, "a", func(e *engine) {
		e.generate = func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: other\r\n\r\n")
			_ = conn.Close()
		}
	})
	f := start(t, gateway.Options{}, a)
	got := f.post("/v1/completions", prompt())
	if got.status != http.StatusBadGateway || !strings.Contains(got.body, `"code":"upstream_failed"`) {
		t.Errorf("%d %s, want 502 upstream_failed", got.status, got.body)
	}
	f.idle()
}

func TestBrokenAnswer(t *testing.T) {
	a := newEngine(t, "a", func(e *engine) {
		e.generate = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, `{"half":`)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	})
	f := start(t, gateway.Options{}, a)
	response, err := f.client.Post(f.url+"/v1/completions", "application/json", strings.NewReader(prompt()))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err == nil {
		t.Errorf("the client took %q for a whole answer", body)
	}
	f.idle()
}

func TestClientThatLeaves(t *testing.T) {
	cancelled := make(chan struct{})
	a := newEngine(t, "a", func(e *engine) {
		e.generate = events(event("data: 1\n\n"), func(_ io.Writer, r *http.Request) {
			<-r.Context().Done()
			close(cancelled)
		})
	})
	f := start(t, gateway.Options{}, a)
	ctx, cancel := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+"/v1/completions", strings.NewReader(streamBody))
	if err != nil {
		t.Fatal(err)
	}
	response, err := f.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := response.Body.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	cancel()
	_ = response.Body.Close()
	select {
	case <-cancelled:
	case <-time.After(patience):
		t.Fatal("the engine was not told")
	}
	f.idle()
	if got := f.State().Replicas[0].Breaker; got != "closed" {
		t.Errorf("breaker %s", got)
	}
	if got := f.value("gateway_upstream_errors_total", "kind", "mid_stream"); got != 0 {
		t.Errorf("%v failures counted", got)
	}
}

func TestClientThatLeavesBeforeTheAnswer(t *testing.T) {
	arrived := make(chan struct{})
	a := newEngine(t, "a", func(e *engine) {
		e.generate = func(_ http.ResponseWriter, r *http.Request) {
			close(arrived)
			<-r.Context().Done()
		}
	})
	f := start(t, gateway.Options{}, a)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-arrived
		cancel()
	}()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+"/v1/completions", strings.NewReader(streamBody))
	if err != nil {
		t.Fatal(err)
	}
	if response, err := f.client.Do(request); err == nil {
		_ = response.Body.Close()
		t.Fatalf("status %d for a client that left", response.StatusCode)
	}
	f.idle()
	if got := f.value("gateway_requests_total", "code", "499"); got != 1 {
		t.Errorf("%v requests with code 499, want 1", got)
	}
}

func TestTimeouts(t *testing.T) {
	hang := func(_ io.Writer, r *http.Request) { <-r.Context().Done() }
	t.Run("no first byte", func(t *testing.T) {
		a := newEngine(t, "a", func(e *engine) { e.generate = events(hang) })
		f := start(t, gateway.Options{Timeouts: gateway.Timeouts{FirstByte: 20 * time.Millisecond}}, a)
		got := f.post("/v1/completions", streamBody)
		if got.status != 504 || !strings.Contains(got.body, `"code":"upstream_timeout"`) {
			t.Errorf("%d %s", got.status, got.body)
		}
		f.idle()
	})
	t.Run("no further byte", func(t *testing.T) {
		a := newEngine(t, "a", func(e *engine) { e.generate = events(event("data: 1\n\n"), hang) })
		f := start(t, gateway.Options{Timeouts: gateway.Timeouts{Idle: 20 * time.Millisecond}}, a)
		got := f.post("/v1/completions", streamBody)
		if !strings.HasPrefix(got.body, "data: 1\n\ndata: {\"error\":") || !strings.Contains(got.body, "upstream_timeout") {
			t.Errorf("%d %s", got.status, got.body)
		}
		f.idle()
	})
}

func TestHeaders(t *testing.T) {
	a := newEngine(t, "a", func(e *engine) {
		e.generate = func(w http.ResponseWriter, _ *http.Request) {
			header := w.Header()
			header.Set("Content-Type", "application/json")
			header.Set("X-Custom", "kept")
			header.Set("X-Request-Id", "of-the-engine")
			header.Set("X-Inference-Cache-Trace", "upstream")
			header.Set("X-Smg-Cache-Trace", "upstream")
			header.Set("X-Gateway-Destination-Endpoint", "10.0.0.1")
			header.Set("Connection", "x-private")
			header.Set("X-Private", "hop")
			header.Set("Server", "uvicorn")
			_, _ = io.WriteString(w, "{}")
		}
	})
	f := start(t, gateway.Options{}, a)
	got := f.post("/v1/completions", prompt(),
		"Content-Type", "application/json", "Accept", "text/plain", "Traceparent", "00-a-b-01", "Authorization", "Bearer secret",
		"Cookie", "c=1", "X-Request-Id", "root", "X-Inference-Cache-Target", "b", "X-Smg-Routed-Worker-Id", "w",
		"X-Gateway-Destination-Endpoint", "169.254.169.254", "X-Prefiller-Host-Port", "evil:1", "X-Data-Parallel-Rank", "3",
		"X-Dynamo-Worker", "1", "X-Session-Id", "s", "Connection", "x-hop", "X-Hop", "1")

	seen := a.requests()[0].header
	id := seen.Get("X-Request-Id")
	seen.Del("X-Request-Id")
	wantSeen := http.Header{
		"Content-Type": {"application/json"}, "Accept": {"text/plain"}, "Traceparent": {"00-a-b-01"},
		"Content-Length": {fmt.Sprint(len(prompt()))},
	}
	if diff := cmp.Diff(wantSeen, seen); diff != "" {
		t.Errorf("headers at the engine (-want +got):\n%s", diff)
	}
	if !strings.HasPrefix(id, "root-") || len(id) != len("root-")+36 {
		t.Errorf("engine id %q, want the root id and a UUID", id)
	}
	got.header.Del("Date")
	wantGot := http.Header{"Content-Type": {"application/json"}, "X-Custom": {"kept"}, "X-Request-Id": {"root"}, "Content-Length": {"2"}}
	if diff := cmp.Diff(wantGot, got.header); diff != "" {
		t.Errorf("headers at the client (-want +got):\n%s", diff)
	}
	for _, family := range []string{"x-inference-cache-*", "x-smg-*", "x-gateway-destination-endpoint*", "x-prefiller-*",
		"x-data-parallel-rank", "x-dynamo-*", "x-session-id"} {
		if got := f.value("gateway_headers_stripped_total", "header", family); got != 1 {
			t.Errorf("%s: %v stripped, want 1", family, got)
		}
	}
}

func TestForwardAuthorization(t *testing.T) {
	a := newEngine(t, "a")
	f := start(t, gateway.Options{ForwardAuthorization: true}, a)
	f.post("/v1/completions", prompt(), "Authorization", "Bearer x")
	if got := a.requests()[0].header.Get("Authorization"); got != "Bearer x" {
		t.Errorf("authorization %q", got)
	}
}

func TestOwnKeysAreNotForwarded(t *testing.T) {
	a := newEngine(t, "a")
	f := start(t, gateway.Options{
		ForwardAuthorization: true, Access: gateway.Access{APIKeysFile: newFile(t, keyLine("key-of-a", "team-a"))},
	}, a)
	if got := f.post("/v1/completions", prompt(), "Authorization", "Bearer key-of-a"); got.status != 200 {
		t.Fatal(got.status, got.body)
	}
	if got := a.requests()[0].header.Get("Authorization"); got != "" {
		t.Errorf("the engine got %q", got)
	}
}

func TestRequestIDs(t *testing.T) {
	f := start(t, gateway.Options{}, newEngine(t, "a"))
	long := strings.Repeat("ü", 70)
	tests := map[string]struct {
		header       []string
		want, prefix string
	}{
		"its own":            {[]string{"X-Request-Id", "mine", "X-Trace-Id", "other"}, "mine", ""},
		"a correlation id":   {[]string{"X-Correlation-Id", "c"}, "c", ""},
		"none":               {nil, "", "cmpl-"},
		"cut to 128 bytes":   {[]string{"X-Request-Id", long}, long[:128], ""},
		"not valid text":     {[]string{"X-Request-Id", "a\xff"}, "", "cmpl-"},
		"a tab is no letter": {[]string{"X-Request-Id", "a\tb"}, "", "cmpl-"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := f.post("/v1/completions", prompt(), tc.header...).header.Get("X-Request-Id")
			if tc.want != "" && got != tc.want || !strings.HasPrefix(got, tc.prefix) {
				t.Errorf("id %q, want %q or prefix %q", got, tc.want, tc.prefix)
			}
		})
	}
}

func TestOverload(t *testing.T) {
	release := make(chan struct{})
	a := newEngine(t, "a", func(e *engine) {
		e.generate = func(w http.ResponseWriter, r *http.Request) { <-release; answerJSON("a", 0)(w, r) }
	})
	f := start(t, gateway.Options{MaxInflight: 1, QueueLimit: -1}, a)
	first := make(chan int)
	go func() { first <- f.post("/v1/completions", prompt()).status }()
	eventually(t, "the first request is at the engine", func() bool { return len(a.requests()) == 1 })
	got := f.post("/v1/completions", prompt())
	if got.status != 429 || !strings.Contains(got.body, `"code":"overloaded"`) || got.header.Get("Retry-After") == "" {
		t.Errorf("%d %s", got.status, got.body)
	}
	close(release)
	if status := <-first; status != 200 {
		t.Errorf("first request: %d", status)
	}
}

func TestShutdown(t *testing.T) {
	hang := func(_ io.Writer, r *http.Request) { <-r.Context().Done() }
	a := newEngine(t, "a", func(e *engine) { e.generate = events(event("data: 1\n\n"), hang) })
	f := start(t, gateway.Options{Timeouts: gateway.Timeouts{ShutdownGrace: 50 * time.Millisecond}}, a)
	response, err := f.client.Post(f.url+"/v1/completions", "application/json", strings.NewReader(streamBody))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	first := make([]byte, len("data: 1\n\n"))
	if _, err := io.ReadFull(response.Body, first); err != nil {
		t.Fatal(err)
	}
	if err := f.stop(); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(response.Body)
	if err != nil || !strings.Contains(string(rest), `"code":"draining"`) {
		t.Errorf("the stream ended with %q, %v", rest, err)
	}
	if waiting := f.Waiting(); waiting == "" {
		t.Error("still ready")
	}
}

func TestAdmin(t *testing.T) {
	f := start(t, gateway.Options{}, newEngine(t, "a"))
	f.post("/v1/completions", completion("the secret prompt"))
	for path, want := range map[string]string{
		"/healthz": "ok", "/readyz": "ok", "/metrics": "inferencecache_build_info", "/debug/state": `"block_size":16`,
	} {
		got := f.do("GET", f.admin+path, "")
		if got.status != 200 || !strings.Contains(got.body, want) || strings.Contains(got.body, "secret") {
			t.Errorf("%s: %d %.200s", path, got.status, got.body)
		}
	}
	if got := f.do("GET", f.url+"/debug/state", ""); got.status != 404 {
		t.Errorf("state on the data listener: %d", got.status)
	}
}

func TestExplain(t *testing.T) {
	a, b := newEngine(t, "a"), newEngine(t, "b")
	f := start(t, gateway.Options{Lookuper: says("PREFIX_MATCH", "b", "gone")}, a, b)
	got := f.do(http.MethodPost, f.admin+"/debug/explain", prompt())
	var explanation gateway.Explanation
	if err := json.Unmarshal([]byte(got.body), &explanation); err != nil || got.status != 200 {
		t.Fatalf("%d %s: %v", got.status, got.body, err)
	}
	for i := range explanation.Candidates {
		explanation.Candidates[i].WaitSeconds = 0
		explanation.Candidates[i].CacheUsage = nil
	}
	want := gateway.Explanation{
		Model: testModel, Policy: "hint", Origin: "index_hint", Branch: "hit", Source: "index_lookup", Replica: "b",
		ReasonCode: "PREFIX_MATCH", HintOutcome: "followed", TieBreak: "none",
		PromptTokens: 64, BlockSize: 16, RequestBlocks: 4, OverlapTokens: 48, BestOverlapTokens: 48, CandidatesTotal: 2,
		Candidates: []gateway.ExplainedOne{
			{Replica: "b", MatchedTokens: 48, HintScore: 0.9, PrefillRate: 8000},
			{Replica: "a", PrefillRate: 8000},
		},
	}
	if diff := cmp.Diff(want, explanation); diff != "" {
		t.Errorf("explanation (-want +got):\n%s", diff)
	}
	if n := len(a.requests()) + len(b.requests()); n != 0 {
		t.Errorf("engines got %d requests", n)
	}
	f.idle()
	if got := f.post("/v1/completions", prompt()); got.status != 200 || len(b.requests()) != 1 {
		t.Error("the request went elsewhere than explained")
	}
	for body, status := range map[string]int{`{"messages":[]}`: 200, `{"model":"none"}`: 404, `[`: 400} {
		if got := f.do(http.MethodPost, f.admin+"/debug/explain", body); got.status != status {
			t.Errorf("%s: %d, want %d", body, got.status, status)
		}
	}
}
