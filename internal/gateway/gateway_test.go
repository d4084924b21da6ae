// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/inferencecache/inference-cache/internal/gateway"
	"github.com/inferencecache/inference-cache/pkg/fingerprint"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

func TestFollowsTheHint(t *testing.T) {
	a, b, c := newEngine(t, "a"), newEngine(t, "b"), newEngine(t, "c")
	b.generate = answerJSON("b", 32)
	lookups := says("PREFIX_MATCH", "b")
	f := start(t, gateway.Options{Lookuper: lookups, ExposeReplica: true, Tenant: "team"}, a, b, c)

	for range 5 {
		got := f.post("/v1/completions", prompt())
		if got.status != 200 || got.header.Get("X-Inference-Cache-Replica") != "b" {
			t.Fatalf("status %d from %q: %s", got.status, got.header.Get("X-Inference-Cache-Replica"), got.body)
		}
		if reason := got.header.Get("X-Inference-Cache-Reason"); reason != "origin=index_hint; branch=hit; code=PREFIX_MATCH" {
			t.Errorf("reason %q", reason)
		}
	}
	tokens := make([]uint32, 64)
	for i := range tokens {
		tokens[i] = 'p'
	}
	want := &pb.LookupRouteRequest{
		ModelId: testModel, TenantId: "team", HashScheme: "vllm",
		BlockHashes:      fingerprint.Wire(fingerprint.Append(nil, fingerprint.Parent{}, tokens, 16)),
		BlockTokenCounts: []int32{16, 16, 16, 16},
	}
	if diff := cmp.Diff(want, lookups.requests()[0], protocmp.Transform()); diff != "" {
		t.Errorf("lookup (-want +got):\n%s", diff)
	}
	f.idle()
	for metric, want := range map[string]float64{
		"routing_decisions_total origin index_hint branch hit": 5,
		"routing_predictions_total source index_lookup":        5,
		"routing_hints_total outcome followed":                 5,
		"routing_lookups_total reason_code PREFIX_MATCH":       5,
		"routing_tokens_total kind prompt":                     5 * 64,
		"routing_tokens_total kind best_overlap":               5 * 48,
		"routing_tokens_total kind chosen_overlap":             5 * 48,
		"routing_tokens_total kind engine_cached":              5 * 32,
		"routing_prediction_error_tokens sign over":            5,
		"routing_parity_total check count result ok":           5,
		"routing_parity_total check cached result ok":          5,
		"routing_match_ratio":                                  5,
		"routing_candidates state ready":                       3,
		"routing_index_state state ok":                         1,
		"gateway_tokenize_total source engine result ok":       1,
		"gateway_tokenize_total source cache result ok":        4,
		"gateway_requests_total endpoint completions code 200": 5,
		"gateway_ttft_seconds endpoint completions":            5,
		"gateway_replica_inflight replica_id b":                0,
		"gateway_breaker_state target tokenizer state closed":  1,
	} {
		words := strings.Fields(metric)
		if got := f.value(words[0], words[1:]...); got != want {
			t.Errorf("%s = %v, want %v", metric, got, want)
		}
	}
}

func TestWithoutAUsableHint(t *testing.T) {
	tests := map[string]struct {
		lookups    *index
		body       string
		wantBranch string
	}{
		"no hint":            {lookups: says("NO_HINT"), wantBranch: "no_hint"},
		"timeout":            {lookups: says("TIMEOUT"), wantBranch: "timeout"},
		"a needed chain":     {lookups: says("POLICY_REQUIRES_CHAIN"), wantBranch: "no_hint"},
		"a code of tomorrow": {lookups: says("SOMETHING_NEW", "a"), wantBranch: "no_hint"},
		"an unknown tenant":  {lookups: says("UNKNOWN_TENANT"), wantBranch: "no_hint"},
		"an error": {lookups: &index{answer: func(context.Context, *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
			return nil, errors.New("down")
		}}, wantBranch: "no_hint"},
		"a short prompt": {lookups: says("PREFIX_MATCH", "a"), body: completion("short"), wantBranch: "short_request"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			a, b := newEngine(t, "a"), newEngine(t, "b")
			f := start(t, gateway.Options{Lookuper: tc.lookups}, a, b)
			const requests = 40
			for number := range requests {
				body := tc.body
				if body == "" { // equal prompts would meet on one replica
					body = completion(fmt.Sprintf("%03d", number) + strings.Repeat("x", 301))
				}
				if got := f.post("/v1/completions", body); got.status != 200 {
					t.Fatalf("status %d: %s", got.status, got.body)
				}
			}
			if len(a.requests()) == 0 || len(b.requests()) == 0 {
				t.Errorf("%d and %d requests, want both replicas used", len(a.requests()), len(b.requests()))
			}
			if got := f.value("routing_decisions_total", "origin", "policy", "branch", tc.wantBranch); got != requests {
				t.Errorf("%v decisions with branch %s, want %d", got, tc.wantBranch, requests)
			}
		})
	}
}

func TestUnknownKeysWarnOnce(t *testing.T) {
	lookups := says("UNKNOWN_TENANT")
	f := start(t, gateway.Options{Lookuper: lookups}, newEngine(t, "a"), newEngine(t, "b"))
	for range 10 {
		f.post("/v1/completions", prompt())
	}
	if got := f.logs.count("reason=UNKNOWN_TENANT tenant=local"); got != 1 {
		t.Errorf("%d warnings, want 1", got)
	}
	for _, asked := range lookups.requests() {
		if asked.GetTenantId() != "local" {
			t.Errorf("asked under tenant %q", asked.GetTenantId())
		}
	}
	if got := len(lookups.requests()); got != 10 {
		t.Errorf("%d lookups for 10 requests", got)
	}
}

func TestUnplaceableHint(t *testing.T) {
	f := start(t, gateway.Options{Lookuper: says("PREFIX_MATCH", "pod-a.ns")}, newEngine(t, "a"), newEngine(t, "b"))
	for range 3 {
		if got := f.post("/v1/completions", prompt()); got.status != 200 {
			t.Fatal(got)
		}
	}
	if got := f.logs.count(`named=pod-a.ns candidates="[a b]"`) + f.logs.count(`named=pod-a.ns candidates="[b a]"`); got != 1 {
		t.Errorf("%d warnings with both spellings, want 1", got)
	}
	if got := f.value("routing_hints_total", "outcome", "unplaceable"); got != 3 {
		t.Errorf("%v hints counted, want 3", got)
	}
}

func TestHangingIndex(t *testing.T) {
	hanging := &index{answer: func(ctx context.Context, _ *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	f := start(t, gateway.Options{Lookuper: hanging, Timeouts: gateway.Timeouts{Lookup: time.Millisecond}},
		newEngine(t, "a"), newEngine(t, "b"))
	for range 20 {
		if got := f.post("/v1/completions", prompt()); got.status != 200 {
			t.Fatal(got)
		}
	}
	timeouts := f.value("routing_lookups_total", "reason_code", "CLIENT_TIMEOUT")
	refused := f.value("routing_lookups_total", "reason_code", "BREAKER_OPEN")
	if timeouts < 5 || refused == 0 || timeouts+refused != 20 {
		t.Errorf("%v timeouts and %v refused, want at least 5 and the rest", timeouts, refused)
	}
}

func TestSaltsAndAdapters(t *testing.T) {
	tokens := make([]uint32, 16)
	for i := range tokens {
		tokens[i] = 's'
	}
	key := func(salt string) string {
		return fmt.Sprintf("%x", fingerprint.Wire(fingerprint.Append(nil, fingerprint.SaltParent(salt), tokens, 16)))
	}
	tests := map[string]struct {
		body        string
		wantKey     string
		wantAdapter string
	}{
		"without a salt": {`{"model":"base/model","prompt":"ssssssssssssssss"}`, key(""), ""},
		"with a salt":    {`{"model":"base/model","prompt":"ssssssssssssssss","cache_salt":"x"}`, key("x"), ""},
		"another salt":   {`{"model":"base/model","prompt":"ssssssssssssssss","cache_salt":"y"}`, key("y"), ""},
		"an adapter":     {`{"model":"lora-a","prompt":"ssssssssssssssss"}`, key(""), "lora-a"},
		"token ids":      {`{"model":"base/model","prompt":[115,115,115,115,115,115,115,115,115,115,115,115,115,115,115,115,7]}`, key(""), ""},
		"list of prompts": {
			`{"model":"base/model","prompt":["ssssssssssssssss","other"],"n":3}`, key(""), ""},
		"model left out": {`{"prompt":"ssssssssssssssss"}`, key(""), ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			lookups := says("PREFIX_MATCH", "a")
			a := newEngine(t, "a")
			f := start(t, gateway.Options{Lookuper: lookups}, a, newEngine(t, "b"))
			if got := f.post("/v1/completions", tc.body); got.status != 200 {
				t.Fatal(got)
			}
			asked := lookups.requests()[0]
			if got := fmt.Sprintf("%x", asked.GetBlockHashes()); got != tc.wantKey {
				t.Errorf("keys %s, want %s", got, tc.wantKey)
			}
			if asked.GetAdapterId() != tc.wantAdapter || asked.GetModelId() != testModel {
				t.Errorf("adapter %q of model %q, want %q", asked.GetAdapterId(), asked.GetModelId(), tc.wantAdapter)
			}
			if got := string(a.requests()[0].body); got != tc.body {
				t.Errorf("the engine got %s", got)
			}
		})
	}
}

func TestLargeBodiesArriveUnchanged(t *testing.T) {
	for _, path := range []string{"/v1/completions", "/v1/embeddings"} {
		a, b := newEngine(t, "a"), newEngine(t, "b")
		f := start(t, gateway.Options{Lookuper: says("NO_HINT")}, a, b)
		body := " {\"model\": \"base/model\" , \"prompt\":\"" + strings.Repeat("\\u00e4 b", 1<<17) + "\", \"x\": 1e3}\n"
		if got := f.post(path, body); got.status != 200 {
			t.Fatal(got.status, got.body)
		}
		seen := append(a.requests(), b.requests()...)
		if len(seen) != 1 || !bytes.Equal(seen[0].body, []byte(body)) {
			t.Errorf("%s: the body changed on the way", path)
		}
	}
}

func TestBlockSizeDispute(t *testing.T) {
	tests := map[string]struct {
		options     gateway.Options
		second      int
		wantLookups int
		wantLog     string
	}{
		"engines agree":                   {second: 16, wantLookups: 1},
		"engines disagree":                {second: 32, wantLog: "sources disagree"},
		"configuration disagrees":         {options: gateway.Options{BlockSize: 64}, second: 16, wantLog: "sources disagree"},
		"publishers disagree":             {options: gateway.Options{BlockSizer: blockSizes(128)}, second: 16, wantLog: "sources disagree"},
		"publishers have not told a size": {options: gateway.Options{BlockSizer: blockSizes(0)}, second: 16, wantLookups: 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			lookups := says("NO_HINT")
			tc.options.Lookuper = lookups
			f := start(t, tc.options, newEngine(t, "a"), newEngine(t, "b", func(e *engine) { e.blockSize = tc.second }))
			if got := f.post("/v1/completions", prompt()); got.status != 200 {
				t.Fatal(got)
			}
			if got := len(lookups.requests()); got != tc.wantLookups {
				t.Errorf("%d lookups, want %d", got, tc.wantLookups)
			}
			if tc.wantLog != "" && f.logs.count(tc.wantLog) != 1 {
				t.Errorf("no finding %q", tc.wantLog)
			}
		})
	}
}

type blockSizes int

func (b blockSizes) BlockSize(_, _, _ string) (int, bool) { return int(b), b > 0 }

func TestPolicies(t *testing.T) {
	lookups := says("PREFIX_MATCH", "a")
	a, b := newEngine(t, "a"), newEngine(t, "b")
	f := start(t, gateway.Options{Lookuper: lookups, Policy: "round_robin"}, a, b)
	for range 10 {
		f.post("/v1/completions", prompt())
	}
	if len(a.requests()) != 5 || len(b.requests()) != 5 {
		t.Errorf("%d and %d requests, want 5 each", len(a.requests()), len(b.requests()))
	}
}

func TestRanks(t *testing.T) {
	one := 1
	zero := newEngine(t, "p#0")
	f := start(t, gateway.Options{
		Lookuper: says("PREFIX_MATCH", "p#1"), ExposeReplica: true,
		Replicas: []gateway.Replica{{ID: "p#1", URL: zero.URL, Rank: &one}},
	}, zero)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := f.AwaitReplicas(ctx, 2); err != nil {
		t.Fatal(err)
	}
	if got := f.post("/v1/completions", prompt()); got.header.Get("X-Inference-Cache-Replica") != "p#1" {
		t.Fatal(got)
	}
	if got := zero.requests()[0].header.Get("X-Data-Parallel-Rank"); got != "1" {
		t.Errorf("rank %q, want 1", got)
	}
}

func TestModels(t *testing.T) {
	a := newEngine(t, "a")
	b := newEngine(t, "b", func(e *engine) {
		e.models = []string{`{"id":"base/model","object":"model"}`, `{"id":"other","object":"model","x":1}`}
	})
	f := start(t, gateway.Options{}, a, b)
	want := `{"object":"list","data":[` + strings.Join(a.models, ",") + `,{"id":"other","object":"model","x":1}]}`
	if got := f.do("GET", f.url+"/v1/models", ""); got.body != want {
		t.Errorf("models\n%s\nwant\n%s", got.body, want)
	}
	if got := f.do("GET", f.url+"/v1/models/base/model", ""); got.body != a.models[0] {
		t.Errorf("model %s", got.body)
	}
	if got := f.do("GET", f.url+"/v1/models/none", ""); got.status != 404 || !strings.Contains(got.body, `"code":"model_not_found"`) {
		t.Errorf("unknown model: %d %s", got.status, got.body)
	}
	for range 10 { // only a has the adapter, only b the other model
		f.post("/v1/completions", `{"model":"lora-a","prompt":"x"}`)
		f.post("/v1/completions", `{"model":"other","prompt":"x"}`)
	}
	if len(a.requests()) != 10 || len(b.requests()) != 10 {
		t.Errorf("%d and %d requests, want 10 each", len(a.requests()), len(b.requests()))
	}
}

// A path with dots gets the same error as any other unknown path, at once.
func TestUncleanPathsAreNotRedirected(t *testing.T) {
	f := start(t, gateway.Options{}, newEngine(t, "a"))
	f.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	for _, path := range []string{"/v1/../reset_prefix_cache", "//v1/models", "/v1/completions/../completions"} {
		if got := f.do("POST", f.url+path, "{}"); got.status != 404 || !strings.Contains(got.body, `"code":"not_found"`) {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
}

func TestStaticModels(t *testing.T) {
	a := newEngine(t, "a", func(e *engine) { e.static, e.models = []string{"static"}, nil })
	f := start(t, gateway.Options{}, a)
	if got := f.post("/v1/completions", `{"model":"static","prompt":"x"}`); got.status != 200 {
		t.Error(got)
	}
	if got := f.post("/v1/completions", prompt()); got.status != 404 {
		t.Error(got)
	}
}

func TestOptions(t *testing.T) {
	replica := func(change func(*gateway.Replica)) gateway.Options {
		r := gateway.Replica{ID: "a", URL: "http://127.0.0.1:1"}
		change(&r)
		return gateway.Options{Replicas: []gateway.Replica{r}}
	}
	for name, options := range map[string]gateway.Options{
		"policy":     {Policy: "best"},
		"fallback":   {Fallback: "hint"},
		"tokenizer":  {Tokenizer: "magic"},
		"no folder":  {Tokenizer: gateway.TokenizeLocally},
		"no model":   {Tokenizer: gateway.TokenizeLocally, Tokenizing: gateway.TokenizerOptions{Folders: []string{"/nowhere"}}},
		"folders":    {Tokenizer: gateway.TokenizeClientIDs, Tokenizing: gateway.TokenizerOptions{Folders: []string{"/nowhere"}}},
		"render":     {Tokenizing: gateway.TokenizerOptions{RenderURL: "http://127.0.0.1:1"}},
		"render URL": {Tokenizer: gateway.TokenizeByRender, Tokenizing: gateway.TokenizerOptions{RenderURL: "nowhere"}},
		"no id":      replica(func(r *gateway.Replica) { r.ID = "" }),
		"no scheme":  replica(func(r *gateway.Replica) { r.URL = "127.0.0.1:1" }),
		"a path":     replica(func(r *gateway.Replica) { r.URL += "/v1" }),
		"a user":     replica(func(r *gateway.Replica) { r.URL = "http://u:p@127.0.0.1:1" }),
		"a runtime":  replica(func(r *gateway.Replica) { r.Runtime = "llama" }),
		"two of one": {Replicas: []gateway.Replica{{ID: "a", URL: "http://x:1"}, {ID: "a", URL: "http://x:2"}}},
	} {
		if _, err := gateway.New(options); !errors.Is(err, gateway.ErrOptions) {
			t.Errorf("%s: %v, want ErrOptions", name, err)
		} else if strings.Contains(err.Error(), "u:p@") {
			t.Errorf("the error shows a password: %v", err)
		}
	}
}
