// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/engines"
	"github.com/inferencecache/inference-cache/internal/gateway"
	sim "github.com/inferencecache/inference-cache/internal/sim/engine"
	"github.com/inferencecache/inference-cache/internal/sim/httpapi"
	"github.com/inferencecache/inference-cache/internal/sim/tinymodel"
	"github.com/inferencecache/inference-cache/internal/trace"
)

const (
	prefillRole = "prefill"
	decodeRole  = "decode"
)

// as makes a replica of an engine with a role.
func as(role, runtime string, e *engine) gateway.Replica {
	return gateway.Replica{ID: e.id, URL: e.URL, Role: role, Runtime: runtime, Rank: e.rank, Models: e.static}
}

// paired starts a gateway in front of replicas with roles.
func paired(t *testing.T, options gateway.Options, replicas ...gateway.Replica) *fixture {
	t.Helper()
	options.Trace.Problem = func(problem string) { t.Errorf("record: %s", problem) }
	options.Replicas = replicas
	options.ExposeReplica = true
	f := startUnready(t, options)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := f.AwaitReplicas(ctx, len(replicas)); err != nil {
		t.Fatal(err)
	}
	return f
}

// simPair is a prefill and a decode engine behind a gateway.
type simPair struct {
	*fixture
	prefill, decode *sim.Engine
}

// simulated starts a pair of simulated engines. Both may be changed before.
func simulated(t *testing.T, runtime httpapi.Runtime, options gateway.Options, change ...func(*sim.Config)) *simPair {
	t.Helper()
	p := &simPair{}
	var replicas []gateway.Replica
	for role, e := range map[httpapi.Role]**sim.Engine{httpapi.RolePrefill: &p.prefill, httpapi.RoleDecode: &p.decode} {
		config := sim.Config{Model: "tiny", NoEvents: true, Runtime: runtime, Role: role}
		config.Timing.Speed = 20
		for _, f := range change {
			f(&config)
		}
		started, err := sim.Start(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(started.Close)
		*e = started
		for rank := range max(config.Ranks, 1) {
			replica := gateway.Replica{ID: string(role), URL: started.URL(), Role: string(role), Runtime: string(runtime)}
			if config.Ranks > 1 {
				replica.ID, replica.Rank = fmt.Sprintf("%s#%d", role, rank), &rank
			}
			if address := started.BootstrapAddress(); address != "" {
				_, port, _ := strings.Cut(address, ":")
				_, _ = fmt.Sscan(port, &replica.BootstrapPort)
			}
			replicas = append(replicas, replica)
		}
	}
	p.fixture = paired(t, options, replicas...)
	return p
}

var simRuntimes = []httpapi.Runtime{httpapi.VLLM, httpapi.SGLang}

// longText is a prompt of 1,600 tokens at a simulated engine, 400 by estimate.
func longText(mark string) string { return strings.Repeat(fmt.Sprintf("%-40s", mark), 40) }

func simBody(text string, stream bool) string {
	body, _ := json.Marshal(map[string]any{"model": "tiny", "prompt": text, "max_tokens": 5, "stream": stream, "ignore_eos": true})
	return string(body)
}

// legsOf waits for the records of a request up to the decode leg's end.
func (f *fixture) legsOf(root string) []*trace.Record {
	f.t.Helper()
	var records []*trace.Record
	eventually(f.t, "the end of "+root, func() bool {
		requests := f.latest("id=" + root)
		if len(requests) == 0 {
			return false
		}
		records = requests[0]
		last := records[len(records)-1]
		return last.Kind == trace.KindOutcome && last.Outcome.Role != trace.RolePrefill ||
			last.Kind == trace.KindFailure && !last.Failure.WillRetry
	})
	return records
}

// settled checks that nothing is left of any request, here or at the engines.
func (p *simPair) settled() {
	p.t.Helper()
	p.idle()
	for name, e := range map[string]*sim.Engine{"prefill": p.prefill, "decode": p.decode} {
		eventually(p.t, "the "+name+" engine has given all blocks back", func() bool {
			stats := e.Stats()
			return stats.UsedBlocks == 0 && stats.HeldRequests == 0 && stats.Running+stats.Waiting == 0
		})
	}
}

// pdCounts checks what the counter of requests with a decode replica says.
func (f *fixture) pdCounts(want map[string]float64) {
	f.t.Helper()
	for _, outcome := range []string{
		"two_legs", "local_short", "local_no_prefill", "local_unsupported", "orphaned", "leg_failed",
	} {
		if got := f.value("routing_pd_total", "outcome", outcome); got != want[outcome] {
			f.t.Errorf("routing_pd_total{outcome=%q} is %v, want %v", outcome, got, want[outcome])
		}
	}
}

// TestPairsOfSimulatedEnginesShareARequest runs both transports end to end, and
// compares the answer with that of one engine that does everything.
func TestPairsOfSimulatedEnginesShareARequest(t *testing.T) {
	alone, err := sim.Start(t.Context(), sim.Config{Model: "tiny", NoEvents: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(alone.Close)
	reference := start(t, gateway.Options{UsageSample: -1, Replicas: []gateway.Replica{{ID: "alone", URL: alone.URL()}}})
	if err := reference.AwaitReplicas(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	for _, runtime := range simRuntimes {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, stream %v", runtime, stream), func(t *testing.T) {
				p := simulated(t, runtime, gateway.Options{UsageSample: -1})
				text := longText("shared")
				got := p.post("/v1/completions", simBody(text, stream), "X-Request-Id", "root")
				want := reference.post("/v1/completions", simBody(text, stream))
				if got.status != 200 || answerText(t, got.body, stream) != answerText(t, want.body, stream) {
					t.Fatalf("%d %s\nwant the text of %s", got.status, got.body, want.body)
				}
				if reason := got.header.Get("X-Inference-Cache-Reason"); !strings.HasSuffix(reason, "; pd=two_legs; prefill=prefill") {
					t.Errorf("reason %q", reason)
				}
				p.settled()
				tokens := tinymodel.Encode(text)
				prefill, decode := p.prefill.Stats(), p.decode.Stats()
				if prefill.PrefilledTokens != int64(len(tokens)) || decode.PrefilledTokens != 1 || decode.ReceivedTokens != int64(len(tokens)-1) {
					t.Errorf("prefill engine computed %d prompt tokens, decode engine %d and received %d; the prompt has %d",
						prefill.PrefilledTokens, decode.PrefilledTokens, decode.ReceivedTokens, len(tokens))
				}
				if prefill.GeneratedTokens != 1 || decode.GeneratedTokens != 5 {
					t.Errorf("%d and %d tokens were generated", prefill.GeneratedTokens, decode.GeneratedTokens)
				}
				if p.prefill.HoldsPrefix(tokens) != len(tokens) || p.decode.HoldsPrefix(tokens) != len(tokens) {
					t.Errorf("%d and %d tokens are cached, want %d", p.prefill.HoldsPrefix(tokens), p.decode.HoldsPrefix(tokens), len(tokens))
				}
				p.pdCounts(map[string]float64{"two_legs": 1})
				checkPairRecord(t, p.legsOf("root"))
			})
		}
	}
}

// answerText joins the text of a completion.
func answerText(t *testing.T, body string, stream bool) (text string) {
	t.Helper()
	pieces := []string{body}
	if stream {
		pieces = nil
		for line := range strings.SplitSeq(body, "\n") {
			if data, ok := strings.CutPrefix(line, "data: "); ok && data != "[DONE]" {
				pieces = append(pieces, data)
			}
		}
	}
	for _, piece := range pieces {
		var answer struct {
			Choices []struct{ Text string }
		}
		if err := json.Unmarshal([]byte(piece), &answer); err != nil {
			t.Fatalf("%s: %v", piece, err)
		}
		for _, choice := range answer.Choices {
			text += choice.Text
		}
	}
	return text
}

// checkPairRecord checks the records of one request that took two legs at once.
func checkPairRecord(t *testing.T, records []*trace.Record) {
	t.Helper()
	if got := kinds(records); got != "dispatch 0, outcome 0, outcome 0" {
		t.Fatalf("records %s", got)
	}
	dispatch := records[0].Dispatch
	if records[0].Mode != trace.ModePD || len(dispatch.Selections) != 2 || len(dispatch.EngineIDs) != 2 || !dispatch.EngineIDsComplete {
		t.Fatalf("dispatch %+v of mode %s", dispatch, records[0].Mode)
	}
	for i, role := range []trace.Role{trace.RolePrefill, trace.RoleDecode} {
		mark := "root-" + string(role[:1]) + "-"
		if s := dispatch.Selections[i]; s.Role != role || s.Replica != trace.Text(role) {
			t.Errorf("selection %d: role %s, replica %s", i, s.Role, s.Replica)
		}
		if id := dispatch.EngineIDs[i]; id.Role != role || id.ID != mark+string(records[0].DispatchID) {
			t.Errorf("engine id %+v, want one that begins with %s", id, mark)
		}
		if o := records[i+1].Outcome; o.Role != role || o.Replica != trace.Text(role) || o.Status != 200 {
			t.Errorf("outcome %+v of the %s leg", o, role)
		}
	}
}

// TestGW12NoPrefillReplicaIsServedAndSaid takes the prefill replicas away in
// several ways.
func TestGW12NoPrefillReplicaIsServedAndSaid(t *testing.T) {
	for name, setUp := range map[string]func(d, p *engine) []gateway.Replica{
		"none is configured": func(d, _ *engine) []gateway.Replica { return []gateway.Replica{as(decodeRole, "vllm", d)} },
		"the only one is cordoned": func(d, p *engine) []gateway.Replica {
			prefill := as(prefillRole, "vllm", p)
			prefill.Cordoned = true
			return []gateway.Replica{as(decodeRole, "vllm", d), prefill}
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, p := newEngine(t, "d"), newEngine(t, "p")
			f := paired(t, gateway.Options{}, setUp(d, p)...)
			got := f.post("/v1/completions", completion(longText("x")), "X-Request-Id", "root")
			if got.status != 200 || len(d.requests()) != 1 || len(p.requests()) != 0 {
				t.Fatalf("%d %s, %d and %d requests", got.status, got.body, len(d.requests()), len(p.requests()))
			}
			if strings.Contains(string(d.requests()[0].body), "kv_transfer_params") {
				t.Errorf("the decode engine got %s", d.requests()[0].body)
			}
			f.pdCounts(map[string]float64{"local_no_prefill": 1})
			dispatch := f.legsOf("root")[0]
			selections := dispatch.Dispatch.Selections
			last := selections[len(selections)-1]
			if dispatch.Mode != trace.ModeRegular || last.Role != trace.RoleDecode || last.Prediction == nil || last.Prediction.Note != trace.NotePDLocal {
				t.Errorf("mode %s, selection %+v, want a decode leg with note pd_local", dispatch.Mode, last)
			}
			if selections[0].Role != trace.RolePrefill || selections[0].Replica != "" {
				t.Errorf("the failed search for a prefill replica is not in the record: %+v", selections[0])
			}
			f.idle()
		})
	}
}

// TestGW12FewUncachedTokensStayWithTheDecodeReplica moves the threshold.
func TestGW12FewUncachedTokensStayWithTheDecodeReplica(t *testing.T) {
	for name, tc := range map[string]struct {
		minimum, prompt int
		want            string
	}{
		"one token below the default":   {0, 255, "local_short"},
		"the default":                   {0, 256, "two_legs"},
		"below a threshold of its own":  {1000, 999, "local_short"},
		"at a threshold of its own":     {1000, 1000, "two_legs"},
		"no threshold, the least there": {-1, 1, "two_legs"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newEngine(t, "d")
			f := paired(t, gateway.Options{PDMinUncached: tc.minimum, Lookuper: says("NO_HINT")},
				as(decodeRole, "vllm", d), as(prefillRole, "vllm", transferring(t, "p")))
			if got := f.post("/v1/completions", completion(strings.Repeat("x", tc.prompt)), "X-Request-Id", "root"); got.status != 200 {
				t.Fatal(got.status, got.body)
			}
			f.pdCounts(map[string]float64{tc.want: 1})
			note := f.legsOf("root")[0].Dispatch.Selections
			if local := note[len(note)-1].Prediction != nil && note[len(note)-1].Prediction.Note == trace.NotePDLocal; local != (tc.want == "local_short") {
				t.Errorf("note pd_local: %v", local)
			}
			f.idle()
		})
	}
}

// TestDecodeReplicaThatHoldsThePrefixNeedsNoPrefill has the index name it.
func TestDecodeReplicaThatHoldsThePrefixNeedsNoPrefill(t *testing.T) {
	p := simulated(t, httpapi.VLLM, gateway.Options{Lookuper: says("PREFIX_MATCH")})
	text := longText("turn one")
	for range 2 {
		if got := p.post("/v1/completions", simBody(text, false)); got.status != 200 {
			t.Fatal(got.status, got.body)
		}
	}
	// The second time the decode replica is known to have been given the prompt.
	p.pdCounts(map[string]float64{"two_legs": 1, "local_short": 1})
	p.settled()
}

// TestExplainShowsBothLegs asks without sending anything.
func TestExplainShowsBothLegs(t *testing.T) {
	d, p := newEngine(t, "d"), newEngine(t, "p")
	f := paired(t, gateway.Options{}, as(decodeRole, "vllm", d), as(prefillRole, "vllm", p))
	for body, want := range map[string]string{completion(longText("x")): "two_legs", completion("short"): "local_short"} {
		var e gateway.Explanation
		got := f.do(http.MethodPost, f.admin+"/debug/explain", body)
		if err := json.Unmarshal([]byte(got.body), &e); err != nil || got.status != 200 {
			t.Fatalf("%d %s: %v", got.status, got.body, err)
		}
		if e.PD != want || e.Replica != "d" || (e.Prefill != nil) != (want == "two_legs") || e.Prefill != nil && e.Prefill.Replica != "p" {
			t.Errorf("explained as %s, decode %s, prefill %+v", e.PD, e.Replica, e.Prefill)
		}
	}
	f.pdCounts(nil)
	if len(d.requests())+len(p.requests()) != 0 {
		t.Error("something was sent")
	}
}

// TestRolesFollowAReload turns a replica from one role to another.
func TestRolesFollowAReload(t *testing.T) {
	d, p := newEngine(t, "d"), transferring(t, "p")
	f := paired(t, gateway.Options{}, as("single", "vllm", d), as("", "vllm", p))
	roles := func() (out []string) {
		for _, r := range f.State().Replicas {
			out = append(out, r.Role)
		}
		return out
	}
	if got := roles(); !slices.Equal(got, []string{"single", "single"}) {
		t.Fatalf("roles %v", got)
	}
	f.post("/v1/completions", completion(longText("x")))
	f.pdCounts(nil)
	if err := f.SetReplicas([]gateway.Replica{as(decodeRole, "vllm", d), as(prefillRole, "vllm", p)}); err != nil {
		t.Fatal(err)
	}
	if err := f.AwaitReplicas(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if got := roles(); !slices.Equal(got, []string{decodeRole, prefillRole}) {
		t.Fatalf("roles %v", got)
	}
	if got := f.post("/v1/completions", completion(longText("x"))); got.status != 200 {
		t.Fatal(got.status, got.body)
	}
	f.pdCounts(map[string]float64{"two_legs": 1})
	f.idle()
}

// TestMixedRuntimesMakeNoPair refuses them in a configuration and in a reload.
func TestMixedRuntimesMakeNoPair(t *testing.T) {
	replica := func(id, role, runtime string, models ...string) gateway.Replica {
		return gateway.Replica{ID: id, URL: "http://127.0.0.1:1", Role: role, Runtime: runtime, Models: models}
	}
	for name, tc := range map[string]struct {
		replicas []gateway.Replica
		want     string // part of the error, empty for none
	}{
		"two runtimes that may serve the same": {[]gateway.Replica{
			replica("p", prefillRole, "vllm"), replica("d", decodeRole, "sglang", "m"),
		}, `replica "p": a prefill replica of vllm cannot serve decode replica "d" of sglang`},
		"two runtimes with a model in common": {[]gateway.Replica{
			replica("p", prefillRole, "sglang", "a", "b"), replica("d", decodeRole, "vllm", "b", "c"),
		}, "cannot serve"},
		"two runtimes with a model each": {[]gateway.Replica{
			replica("p", prefillRole, "sglang", "a"), replica("d", decodeRole, "sglang", "a"),
			replica("q", prefillRole, "vllm", "b"), replica("e", decodeRole, "vllm", "b"),
		}, ""},
		"a single replica of another runtime": {[]gateway.Replica{
			replica("p", prefillRole, "vllm"), replica("d", decodeRole, "vllm"), replica("s", "single", engines.SGLang),
		}, ""},
		"a runtime without a transport": {[]gateway.Replica{replica("p", prefillRole, "tensorrt-llm")}, "expected runtime vllm or sglang"},
		"an unknown role":               {[]gateway.Replica{replica("p", "both", "vllm")}, "expected single, prefill or decode"},
		"a bootstrap port without use": {[]gateway.Replica{
			{ID: "d", URL: "http://127.0.0.1:1", Runtime: "sglang", Role: decodeRole, BootstrapPort: 1},
		}, "expected only with role prefill"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := gateway.New(gateway.Options{Replicas: tc.replicas})
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
	f := paired(t, gateway.Options{}, as(decodeRole, "vllm", newEngine(t, "d")))
	err := f.SetReplicas([]gateway.Replica{as(decodeRole, "vllm", newEngine(t, "d")), replica("p", prefillRole, "sglang")})
	if err == nil || len(f.State().Replicas) != 1 {
		t.Errorf("a reload with two runtimes: error %v, %d replicas", err, len(f.State().Replicas))
	}
}

// TestPairsServeAChatAndLoadOnlyPaths uses the other endpoints of a pair.
func TestPairsServeAChatAndLoadOnlyPaths(t *testing.T) {
	for _, runtime := range simRuntimes {
		t.Run(string(runtime), func(t *testing.T) {
			p := simulated(t, runtime, gateway.Options{Lookuper: says("NO_HINT")})
			chat := fmt.Sprintf(`{"model":"tiny","messages":[{"role":"user","content":%q}],"max_completion_tokens":3}`, longText("chat"))
			if got := p.post("/v1/chat/completions", chat); got.status != 200 || !strings.Contains(got.body, `"completion_tokens":3`) {
				t.Errorf("chat: %d %s", got.status, got.body)
			}
			if got := p.post("/tokenize", `{"model":"tiny","prompt":"abc"}`); got.status != 200 {
				t.Errorf("tokenize: %d %s", got.status, got.body)
			}
			p.pdCounts(map[string]float64{"two_legs": 1})
			if reported := p.value("routing_tokens_total", "kind", "engine_unknown"); reported != 0 {
				t.Errorf("%v tokens without usage", reported)
			}
			p.settled()
		})
	}
}

// hang keeps an engine's answer until the request ends.
func hang(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

// inTime fails a test whose request never returns.
func inTime(t *testing.T, what string, done <-chan answer) answer {
	t.Helper()
	select {
	case got := <-done:
		return got
	case <-time.After(patience):
		t.Fatalf("%s never ended", what)
		return answer{}
	}
}
