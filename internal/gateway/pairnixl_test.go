// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/gateway"
	sim "github.com/inferencecache/inference-cache/internal/sim/engine"
	"github.com/inferencecache/inference-cache/internal/sim/httpapi"
)

// someTransfer has what no gateway may touch: an unknown member, numbers that
// lose digits as floats, spaces and escapes.
const someTransfer = `{"do_remote_prefill": true,"remote_block_ids":[1, 2,18446744073709551615],"x":"\u00e9<&>","remote_blocks_expiry_time":1e300}`

// answerTransfer is the answer of a prefill engine.
func answerTransfer(transfer string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":"x","choices":[{"text":"a"}],"usage":{"prompt_tokens":1600,"completion_tokens":1,`+
			`"prompt_tokens_details":{"cached_tokens":32}},"kv_transfer_params":%s}`, transfer)
	}
}

// transferring is a prefill engine that passes someTransfer on.
func transferring(t *testing.T, id string) *engine {
	return newEngine(t, id, func(e *engine) { e.generate = answerTransfer(someTransfer) })
}

// inTurn answers each request with the next handler, then with the last one.
func inTurn(handlers ...http.HandlerFunc) http.HandlerFunc {
	var next atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) {
		handlers[min(int(next.Add(1)), len(handlers))-1](w, r)
	}
}

// nixl starts a gateway with decode and prefill engines of vLLM.
func nixl(t *testing.T, options gateway.Options, prefill, decode []*engine) *fixture {
	t.Helper()
	var replicas []gateway.Replica
	for _, e := range prefill {
		replicas = append(replicas, as(prefillRole, "vllm", e))
	}
	for _, e := range decode {
		replicas = append(replicas, as(decodeRole, "vllm", e))
	}
	return paired(t, options, replicas...)
}

func TestNIXLRequestsAreRewrittenExactly(t *testing.T) {
	text, _ := json.Marshal(longText("x"))
	const asks = `"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,` +
		`"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`
	for name, tc := range map[string]struct{ body, prefill string }{
		"a short one": {
			`{"model":"base/model","prompt":TEXT}`,
			`{"model":"base/model","prompt":TEXT,"max_tokens":1,"stream":false,` + asks + `}`,
		},
		"limits, a stream and its options": {
			`{ "model":"base/model", "max_tokens":50,"min_tokens":4,"stream":true,"stream_options":{"include_usage":true},"prompt":TEXT,"temperature":0.50}`,
			`{"model":"base/model","prompt":TEXT,"temperature":0.50,"max_tokens":1,"stream":false,` + asks + `}`,
		},
		"the other limit": {
			`{"model":"base/model","max_completion_tokens":50,"kv_transfer_params":null,"prompt":TEXT,"seed":12345678901234567890}`,
			`{"model":"base/model","max_completion_tokens":1,"prompt":TEXT,"seed":12345678901234567890,"max_tokens":1,"stream":false,` + asks + `}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, d := transferring(t, "p"), newEngine(t, "d")
			f := nixl(t, gateway.Options{UsageSample: -1}, []*engine{p}, []*engine{d})
			body := strings.ReplaceAll(tc.body, "TEXT", string(text))
			if got := f.post("/v1/completions", body, "X-Request-Id", "root"); got.status != 200 {
				t.Fatal(got.status, got.body)
			}
			first, second := p.requests()[0], d.requests()[0]
			if want := strings.ReplaceAll(tc.prefill, "TEXT", string(text)); string(first.body) != want {
				t.Errorf("prefill request\n%s\nwant\n%s", first.body, want)
			}
			if want := body[:len(body)-1] + `,"kv_transfer_params":` + someTransfer + `}`; string(second.body) != want {
				t.Errorf("decode request\n%s\nwant\n%s", second.body, want)
			}
			for e, mark := range map[*engine]string{p: "root-p-", d: "root-d-"} {
				id := e.requests()[0].header.Get("X-Request-Id")
				if uuid := strings.TrimPrefix(id, mark); len(uuid) != 36 || uuid[14] != '7' {
					t.Errorf("engine id %q, want %s and a UUID of version 7", id, mark)
				}
			}
			f.idle()
		})
	}
}

// TestNIXLLegsAreRedoneTogether fails a leg before the first byte.
func TestNIXLLegsAreRedoneTogether(t *testing.T) {
	errorEvent := events(event("data: {\"error\":{\"message\":\"KV transfer failed\"}}\n\n"))
	soon := fmt.Sprintf(`{"remote_blocks_expiry_time":%d}`, time.Now().Add(time.Hour).Unix())
	past := fmt.Sprintf(`{"remote_blocks_expiry_time":%d.5}`, time.Now().Add(-time.Second).Unix())
	for name, tc := range map[string]struct {
		prefill, decode http.HandlerFunc
		prefills        int
		decodes         int
	}{
		"decode answers 503":                   {answerTransfer(soon), inTurn(answerStatus(503), answerJSON("d", 0)), 2, 2},
		"decode answers 500, a lost transfer":  {answerTransfer(soon), inTurn(answerStatus(500), answerJSON("d", 0)), 2, 2},
		"decode breaks the connection":         {answerTransfer(soon), inTurn(crashHandler, answerJSON("d", 0)), 2, 2},
		"the stream begins with an error":      {answerTransfer(soon), inTurn(errorEvent, answerJSON("d", 0)), 2, 2},
		"the blocks have expired":              {inTurn(answerTransfer(past), answerTransfer(soon)), answerJSON("d", 0), 2, 1},
		"an expiry on an engine's own clock":   {answerTransfer(`{"remote_blocks_expiry_time":17.5}`), answerJSON("d", 0), 1, 1},
		"prefill fails, and is the only one":   {inTurn(answerStatus(503), answerTransfer(soon)), answerJSON("d", 0), 1, 1},
		"prefill has nothing to pass on":       {answerTransfer("null"), answerJSON("d", 0), 1, 1},
		"prefill does not know the connector":  {answerJSON("p", 0), answerJSON("d", 0), 1, 1},
		"prefill breaks off within its answer": {inTurn(cutShort, answerTransfer(soon)), answerJSON("d", 0), 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			set := func(h http.HandlerFunc) func(*engine) { return func(e *engine) { e.generate = h } }
			p, d := newEngine(t, "p", set(tc.prefill)), newEngine(t, "d", set(tc.decode))
			q := newEngine(t, "q", set(tc.prefill))
			prefill := []*engine{p}
			if strings.HasPrefix(name, "the blocks") { // the failed one is not asked again while another is there
				prefill = append(prefill, q)
				p.generate, q.generate = tc.prefill, p.generate
			}
			f := nixl(t, gateway.Options{}, prefill, []*engine{d})
			got := f.post("/v1/completions", completion(longText("x")), "X-Request-Id", "root")
			if got.status != 200 || !strings.Contains(got.body, `"text":"d"`) {
				t.Fatal(got.status, got.body)
			}
			if n := len(p.requests()) + len(q.requests()); n != tc.prefills || len(d.requests()) != tc.decodes {
				t.Errorf("%d prefill and %d decode requests, want %d and %d", n, len(d.requests()), tc.prefills, tc.decodes)
			}
			f.legsOf("root")
			f.idle()
		})
	}
}

// cutShort breaks the connection within the answer.
func cutShort(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "1000")
	_, _ = io.WriteString(w, `{"id":`)
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// TestNIXLFailuresAreCountedAndTraced follows one failed decode leg.
func TestNIXLFailuresAreCountedAndTraced(t *testing.T) {
	p := transferring(t, "p")
	d := newEngine(t, "d", func(e *engine) { e.generate = inTurn(answerStatus(503), answerJSON("d", 0)) })
	f := nixl(t, gateway.Options{}, []*engine{p}, []*engine{d})
	f.post("/v1/completions", completion(longText("x")), "X-Request-Id", "root")
	records := f.legsOf("root")
	if got := kinds(records); got != "dispatch 0, outcome 0, failure 0, dispatch 1, outcome 1, outcome 1" {
		t.Fatalf("records %s", got)
	}
	if failure := records[2].Failure; failure.Role != "decode" || failure.Status != 503 || !failure.WillRetry || len(failure.Selections) != 2 {
		t.Errorf("failure %+v", failure)
	}
	f.pdCounts(map[string]float64{"two_legs": 2, "leg_failed": 1})
	for _, tc := range []struct {
		leg, result string
		want        float64
	}{{"prefill", "ok", 2}, {"decode", "failed", 1}, {"decode", "ok", 1}, {"prefill", "failed", 0}} {
		if got := f.value("gateway_pd_legs_total", "leg", tc.leg, "result", tc.result); got != tc.want {
			t.Errorf("%v %s legs ended %s, want %v", got, tc.leg, tc.result, tc.want)
		}
	}
	if got := f.value("gateway_retries_total", "result", "ok"); got != 1 {
		t.Errorf("%v retries succeeded, want 1", got)
	}
	f.idle()
}

// TestNIXLRetriesEnd lets the decode replica fail for good.
func TestNIXLRetriesEnd(t *testing.T) {
	p := transferring(t, "p")
	d := newEngine(t, "d", func(e *engine) { e.generate = answerStatus(503) })
	f := nixl(t, gateway.Options{}, []*engine{p}, []*engine{d})
	if got := f.post("/v1/completions", completion(longText("x"))); got.status != 503 || !strings.Contains(got.body, "of the engine") {
		t.Errorf("%d %s", got.status, got.body)
	}
	if len(p.requests()) != 3 || len(d.requests()) != 3 {
		t.Errorf("%d prefill and %d decode requests, want 3 of each", len(p.requests()), len(d.requests()))
	}
	if got := f.value("gateway_retries_total", "result", "failed"); got != 1 {
		t.Errorf("%v requests failed after retries", got)
	}
	f.pdCounts(map[string]float64{"two_legs": 3, "leg_failed": 3})
	f.idle()
}

// TestNIXLErrorsOfTheRequestAreTheClients passes an engine's refusal on.
func TestNIXLErrorsOfTheRequestAreTheClients(t *testing.T) {
	for name, status := range map[string]int{"too long a prompt": 400, "an engine's bug": 500} {
		t.Run(name, func(t *testing.T) {
			p := newEngine(t, "p", func(e *engine) { e.generate = answerStatus(status) })
			d := newEngine(t, "d")
			f := nixl(t, gateway.Options{}, []*engine{p}, []*engine{d})
			got := f.post("/v1/completions", completion(longText("x")))
			if got.status != status || !strings.Contains(got.body, "of the engine") || len(d.requests()) != 0 {
				t.Errorf("%d %s, %d decode requests", got.status, got.body, len(d.requests()))
			}
			f.pdCounts(map[string]float64{"two_legs": 1})
			f.idle()
		})
	}
}

// TestNIXLFailureAfterTheFirstByteIsNotRedone breaks a stream.
func TestNIXLFailureAfterTheFirstByteIsNotRedone(t *testing.T) {
	p := transferring(t, "p")
	d := newEngine(t, "d", func(e *engine) { e.generate = events(event("data: one\n\n"), crash) })
	f := nixl(t, gateway.Options{}, []*engine{p}, []*engine{d})
	body := strings.Replace(completion(longText("x")), "{", `{"stream":true,`, 1)
	got := f.post("/v1/completions", body, "X-Request-Id", "root")
	if got.status != 200 || !strings.Contains(got.body, "one") || !strings.Contains(got.body, `"error"`) || strings.Contains(got.body, "[DONE]") {
		t.Errorf("%d %s", got.status, got.body)
	}
	if len(p.requests()) != 1 || len(d.requests()) != 1 {
		t.Errorf("%d prefill and %d decode requests", len(p.requests()), len(d.requests()))
	}
	f.pdCounts(map[string]float64{"two_legs": 1, "leg_failed": 1})
	f.idle()
}

// TestNIXLClientThatLeavesBetweenTheLegsIsCounted leaves when the prompt is
// computed and the decode engine has not been asked.
func TestNIXLClientThatLeavesBetweenTheLegsIsCounted(t *testing.T) {
	answered := make(chan struct{})
	p := newEngine(t, "p", func(e *engine) {
		e.generate = func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusOK)
			_, _ = io.WriteString(w, `{"id":`)
			_ = http.NewResponseController(w).Flush()
			answered <- struct{}{}
			<-r.Context().Done()
		}
	})
	d := newEngine(t, "d")
	f := nixl(t, gateway.Options{}, []*engine{p}, []*engine{d})
	// A client may be gone before the gateway has seen the answer begin; so
	// requests in between give it time, and several clients leave.
	orphaned := func() float64 { return f.value("routing_pd_total", "outcome", "orphaned") }
	left := 0.0
	for ; left < 20 && orphaned() == 0; left++ {
		when := make(chan struct{})
		go func() {
			<-answered
			for range 5 {
				f.do(http.MethodGet, f.url+"/v1/models", "")
			}
			close(when)
		}()
		f.leave("/v1/completions", completion(longText("x")), when)
		f.idle()
	}
	f.pdCounts(map[string]float64{"two_legs": left, "orphaned": 1})
	if len(d.requests()) != 0 {
		t.Error("the decode engine was asked all the same")
	}
	for _, r := range f.State().Replicas {
		if r.Breaker != "closed" {
			t.Errorf("clients that leave count against replica %s", r.ID)
		}
	}
}

// TestNIXLClientThatLeavesDuringALegIsNoOrphan leaves at other moments.
func TestNIXLClientThatLeavesDuringALegIsNoOrphan(t *testing.T) {
	for name, whileDecoding := range map[string]bool{"while the prompt is computed": false, "while it decodes": true} {
		t.Run(name, func(t *testing.T) {
			begun := make(chan struct{})
			waits := func(e *engine) {
				e.generate = func(w http.ResponseWriter, r *http.Request) {
					close(begun)
					hang(w, r)
				}
			}
			p, d := transferring(t, "p"), newEngine(t, "d")
			if whileDecoding {
				waits(d)
			} else {
				waits(p)
			}
			f := nixl(t, gateway.Options{}, []*engine{p}, []*engine{d})
			f.leave("/v1/completions", completion(longText("x")), begun)
			f.idle()
			f.pdCounts(map[string]float64{"two_legs": 1})
		})
	}
}

// leave sends a request and ends it when something has happened.
func (f *fixture) leave(path, body string, when <-chan struct{}) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	defer cancel()
	go func() {
		<-when
		cancel()
	}()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	response, err := f.client.Do(request)
	if err == nil {
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
	}
}

// TestNIXLPrefillHasADeadline lets the prefill engine hang.
func TestNIXLPrefillHasADeadline(t *testing.T) {
	p := newEngine(t, "p", func(e *engine) { e.generate = hang })
	f := nixl(t, gateway.Options{Timeouts: gateway.Timeouts{PDPrefill: 20 * time.Millisecond}}, []*engine{p}, []*engine{newEngine(t, "d")})
	if got := f.post("/v1/completions", completion(longText("x"))); got.status != 504 || !strings.Contains(got.body, "upstream_timeout") {
		t.Errorf("%d %s", got.status, got.body)
	}
	f.pdCounts(map[string]float64{"two_legs": 1, "leg_failed": 1})
	f.idle()
}

// TestNIXLTakesOneLegForWhatCannotBePassedOn sends requests with several
// sequences, and one that arranges its transfer itself.
func TestNIXLTakesOneLegForWhatCannotBePassedOn(t *testing.T) {
	long, _ := json.Marshal(longText("x"))
	for name, tc := range map[string]struct{ path, members string }{
		"n above 1":         {"/v1/completions", `"n":2,"prompt":` + string(long)},
		"best_of above 1":   {"/v1/completions", `"best_of":3,"prompt":` + string(long)},
		"beam search":       {"/v1/completions", `"use_beam_search":true,"prompt":` + string(long)},
		"a list of prompts": {"/v1/completions", `"prompt":[` + string(long) + `,"b"]`},
		"another API":       {"/v1/responses", `"input":` + string(long)},
		"a transfer of its own": {"/v1/completions",
			`"kv_transfer_params":{"do_remote_prefill":true},"prompt":` + string(long)},
	} {
		t.Run(name, func(t *testing.T) {
			offers := func(e *engine) { e.offers = []string{"/v1/responses"} }
			p, d := newEngine(t, "p", offers), newEngine(t, "d", offers)
			f := nixl(t, gateway.Options{Access: gateway.Access{TrustedListen: "127.0.0.1:0", Salt: gateway.SaltOff}}, []*engine{p}, []*engine{d})
			body := `{"model":"` + testModel + `",` + tc.members + `}`
			got := f.do(http.MethodPost, f.trusted+tc.path, body, "X-Request-Id", "root")
			if got.status != 200 || len(p.requests()) != 0 || len(d.requests()) != 1 || string(d.requests()[0].body) != body {
				t.Fatalf("%d %s; %d prefill requests, decode got %v", got.status, got.body, len(p.requests()), d.requests())
			}
			f.pdCounts(map[string]float64{"local_unsupported": 1})
			if s := f.legsOf("root")[0].Dispatch.Selections; len(s) != 1 || s[0].Prediction.Note != "pd_local" {
				t.Errorf("selections %+v", s)
			}
			f.idle()
		})
	}
	untrusted := nixl(t, gateway.Options{}, []*engine{transferring(t, "p")}, []*engine{newEngine(t, "d")})
	if got := untrusted.post("/v1/completions", `{"model":"`+testModel+`","prompt":"a","kv_transfer_params":{}}`); got.status != 400 {
		t.Errorf("an untrusted client names a transfer: %d %s", got.status, got.body)
	}
}

// TestNIXLLostTransfersEndToEnd lets simulated engines look for blocks that
// nobody has: once, or always.
func TestNIXLLostTransfersEndToEnd(t *testing.T) {
	for _, stream := range []bool{false, true} {
		for _, always := range []bool{false, true} {
			t.Run(fmt.Sprintf("stream %v, always %v", stream, always), func(t *testing.T) {
				p := simulated(t, httpapi.VLLM, gateway.Options{UsageSample: -1})
				target, err := url.Parse(p.prefill.URL())
				if err != nil {
					t.Fatal(err)
				}
				var answers atomic.Int64
				proxy := httputil.NewSingleHostReverseProxy(target)
				proxy.Transport = &http.Transport{DisableKeepAlives: true}
				proxy.ModifyResponse = func(r *http.Response) error {
					if r.Request.URL.Path != "/v1/completions" || answers.Add(1) > 1 && !always {
						return nil
					}
					body, err := io.ReadAll(r.Body)
					_ = r.Body.Close()
					changed := bytes.ReplaceAll(body, []byte(`"remote_request_id":"cmpl`), []byte(`"remote_request_id":"lost`))
					r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(changed)), int64(len(changed))
					r.Header.Del("Content-Length")
					return err
				}
				server := httptest.NewServer(proxy)
				t.Cleanup(server.Close)
				if err := p.SetReplicas([]gateway.Replica{
					{ID: "prefill", URL: server.URL, Role: prefillRole}, {ID: "decode", URL: p.decode.URL(), Role: decodeRole},
				}); err != nil {
					t.Fatal(err)
				}
				eventually(t, "both are ready", func() bool {
					ready, all := p.ReadyReplicas()
					return ready == 2 && all == 2
				})
				got := p.post("/v1/completions", simBody(longText("x"), stream))
				p.idle()
				if !always {
					if got.status != 200 || strings.Contains(got.body, "error") {
						t.Errorf("%d %s", got.status, got.body)
					}
					p.pdCounts(map[string]float64{"two_legs": 2, "leg_failed": 1})
					return
				}
				if want := map[bool]int{false: 500, true: 502}[stream]; got.status != want {
					t.Errorf("%d %s, want %d", got.status, got.body, want)
				}
				p.pdCounts(map[string]float64{"two_legs": 3, "leg_failed": 3})
			})
		}
	}
}

// TestNIXLExpiredBlocksEndToEnd has a prefill engine give its blocks up before
// anybody can take them.
func TestNIXLExpiredBlocksEndToEnd(t *testing.T) {
	p := simulated(t, httpapi.VLLM, gateway.Options{}, func(c *sim.Config) { c.HoldFor = time.Nanosecond })
	if got := p.post("/v1/completions", simBody(longText("x"), false), "X-Request-Id", "root"); got.status != 200 {
		t.Fatal(got.status, got.body)
	}
	if failure := p.legsOf("root")[1].Failure; failure == nil || failure.ErrorCode != "transfer_expired" || failure.Role != "prefill" {
		t.Errorf("failure %+v", failure)
	}
	// There is no other prefill replica, so the decode replica does without.
	p.pdCounts(map[string]float64{"two_legs": 1, "leg_failed": 1, "local_no_prefill": 1})
	p.settled()
}
