// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/gateway"
)

func TestEndpointsThatNotEveryEngineHas(t *testing.T) {
	bodies := map[string]string{
		"/v1/responses": `{ "model":"base/model", "input":"` + strings.Repeat("p", 64) + `", "background":false }`,
		"/v1/messages":  `{"model":"base/model","max_tokens":5,"messages":[{"role":"user","content":"` + strings.Repeat("p", 64) + `"}]}`,
	}
	for path, body := range bodies {
		t.Run(path, func(t *testing.T) {
			with := func(e *engine) { e.offers = []string{path} }
			plain, b, c := newEngine(t, "a"), newEngine(t, "b", with), newEngine(t, "c", with)
			lookups := says("PREFIX_MATCH", "c")
			f := start(t, gateway.Options{Lookuper: lookups}, plain, b, c)
			for range 3 {
				if got := f.post(path, body); got.status != 200 {
					t.Fatal(got.status, got.body)
				}
			}
			seen := c.requests()
			if len(plain.requests())+len(b.requests()) != 0 || len(seen) != 3 {
				t.Fatalf("%d of 3 went to the holder that has the endpoint", len(seen))
			}
			if seen[0].path != path || string(seen[0].body) != body {
				t.Errorf("the engine got %s %s", seen[0].path, seen[0].body)
			}
			if len(lookups.requests()) != 3 {
				t.Errorf("%d lookups", len(lookups.requests()))
			}
			for other := range bodies {
				if got := f.post(other, bodies[other]); other != path && (got.status != 404 || !strings.Contains(got.body, `"code":"not_found"`)) {
					t.Errorf("%s, which no engine has: %d %s", other, got.status, got.body)
				}
			}
			f.idle()
		})
	}
}

// The replica that has the endpoint fails: nobody else is tried, since nobody
// else has it.
func TestRetriesStayWhereTheEndpointIs(t *testing.T) {
	a := newEngine(t, "a")
	b := newEngine(t, "b", func(e *engine) {
		e.offers = []string{"/v1/messages"}
		e.generate = answerStatus(http.StatusServiceUnavailable)
	})
	f := start(t, gateway.Options{}, a, b)
	got := f.post("/v1/messages", `{"model":"base/model","max_tokens":5,"messages":[]}`)
	if got.status != 503 || len(b.requests()) < 2 || len(a.requests()) != 0 {
		t.Errorf("%d after %d attempts at b and %d at a", got.status, len(b.requests()), len(a.requests()))
	}
}

// These APIs name their events, so the last one of a broken stream has a name.
func TestBrokenStreamsOfOtherChatAPIs(t *testing.T) {
	a := newEngine(t, "a", func(e *engine) {
		e.offers = []string{"/v1/messages"}
		e.generate = events(event("event: message_start\ndata: {}\n\n"), crash)
	})
	f := start(t, gateway.Options{}, a)
	got := f.post("/v1/messages", `{"model":"base/model","max_tokens":5,"stream":true,"messages":[]}`)
	begin, last, _ := strings.Cut(got.body, "\n\n")
	if begin != "event: message_start\ndata: {}" || !strings.HasPrefix(last, `event: error`+"\n"+`data: {"error":{"message":"`) || strings.Contains(got.body, "[DONE]") {
		t.Errorf("stream %q", got.body)
	}
}

// What is no endpoint of ours is 404, on both listeners, whatever the method:
// there is no way to the administration of engines.
func TestNothingElseIsServed(t *testing.T) {
	a := newEngine(t, "a")
	f := start(t, gateway.Options{Access: gateway.Access{TrustedListen: "127.0.0.1:0", Salt: gateway.SaltOff}}, a)
	for _, path := range []string{"/", "/reset_prefix_cache", "/sleep", "/wake_up", "/flush_cache", "/server_info", "/get_server_info",
		"/metrics", "/health", "/version", "/load", "/v1/loads", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/pause", "/generate",
		"/invocations", "/inference/v1/generate", "/v1/audio/speech", "/v1/audio/transcriptions", "/v1/realtime", "/kv_event_sources",
		"/v1/chat/completions/render", "/v1/completions/", "/V1/completions", "/v1//completions", "/v1/completions/..%2f..%2fsleep",
		"/debug/state", "/debug/explain", "/healthz", "/readyz", "/v1/responses/r1", "/v1/messages/count_tokens"} {
		for _, url := range []string{f.url, f.trusted} {
			for _, method := range []string{"GET", "POST", "DELETE"} {
				got := f.do(method, url+path, "")
				if got.status != 404 || !strings.Contains(got.body, `"code":"not_found"`) || got.header.Get("X-Request-Id") == "" {
					t.Errorf("%s %s: %d %s", method, path, got.status, got.body)
				}
			}
		}
	}
	if n := len(a.requests()); n != 0 {
		t.Errorf("the engine got %d requests", n)
	}
}

func TestLoadOnlyEndpointsAskNobody(t *testing.T) {
	a, b := newEngine(t, "a"), newEngine(t, "b")
	lookups := says("PREFIX_MATCH", "a")
	f := start(t, gateway.Options{Lookuper: lookups}, a, b)
	sent := 0
	for _, e := range clientEndpoints {
		if e.method != "POST" || strings.HasSuffix(e.path, "completions") {
			continue
		}
		for range 4 {
			if got := f.post(e.path, e.body); got.status != 200 {
				t.Errorf("%s: %d %s", e.path, got.status, got.body)
			}
			sent++
		}
	}
	if len(lookups.requests()) != 0 {
		t.Errorf("%d lookups", len(lookups.requests()))
	}
	if got := f.value("gateway_tokenize_total", "source", "engine", "result", "ok"); got != 0 {
		t.Errorf("%v tokenizations", got)
	}
	if sent < 28 {
		t.Errorf("%d requests sent", sent)
	}
}

func TestModelsAreTheUnionOfReadyReplicas(t *testing.T) {
	a := newEngine(t, "a")
	b := newEngine(t, "b", func(e *engine) {
		e.models = append(e.models[:1:1], `{"id":"lora-b","object":"model","parent":"`+testModel+`"}`, `{"id":"other","object":"model"}`)
	})
	f := start(t, gateway.Options{}, a, b)
	var list struct {
		Object string
		Data   []struct {
			ID     string
			Parent string
		}
	}
	got := f.do("GET", f.url+"/v1/models", "")
	if err := json.Unmarshal([]byte(got.body), &list); err != nil || got.status != 200 {
		t.Fatal(got.status, got.body, err)
	}
	parents := map[string]string{}
	for _, m := range list.Data {
		if _, twice := parents[m.ID]; twice {
			t.Errorf("%s is listed twice", m.ID)
		}
		parents[m.ID] = m.Parent
	}
	want := map[string]string{testModel: "", testAdapter: testModel, "lora-b": testModel, "other": ""}
	if diff := cmp.Diff(want, parents); diff != "" || list.Object != "list" {
		t.Errorf("models (-want +got):\n%s", diff)
	}
	if got := f.do("GET", f.url+"/v1/models/lora-b", ""); got.status != 200 || !strings.Contains(got.body, `"parent":"`+testModel+`"`) {
		t.Errorf("one model: %d %s", got.status, got.body)
	}
	if got := f.do("GET", f.url+"/v1/models/none", ""); got.status != 404 || !strings.Contains(got.body, `"code":"model_not_found"`) {
		t.Errorf("an unknown model: %d %s", got.status, got.body)
	}
	for range 4 {
		if got := f.post("/v1/completions", `{"model":"lora-b","prompt":"x"}`); got.status != 200 {
			t.Fatal(got.status, got.body)
		}
	}
	if len(a.requests()) != 0 {
		t.Error("a replica without the adapter got its requests")
	}
}
