// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/gateway"
)

// writeFile replaces a file as a whole, as mounted secrets are.
func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func newFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	writeFile(t, path, text)
	return path
}

// keyLine is a line of a file of API keys.
func keyLine(key, tenant string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:]) + " " + tenant + "\n"
}

// clientEndpoints are all endpoints with a request that succeeds.
var clientEndpoints = []struct{ method, path, body string }{
	{"POST", "/v1/chat/completions", `{"model":"base/model","messages":[{"role":"user","content":"hi"}]}`},
	{"POST", "/v1/completions", `{"model":"base/model","prompt":"hi"}`},
	{"POST", "/v1/embeddings", `{"model":"base/model","input":"hi"}`},
	{"POST", "/v1/score", `{"model":"base/model","text_1":"a","text_2":"b"}`},
	{"POST", "/v1/rerank", `{"model":"base/model","query":"q","documents":["d"]}`},
	{"POST", "/rerank", `{"model":"base/model","query":"q","documents":["d"]}`},
	{"POST", "/v1/classify", `{"model":"base/model","input":"hi"}`},
	{"POST", "/tokenize", `{"model":"base/model","prompt":"hi"}`},
	{"POST", "/detokenize", `{"model":"base/model","tokens":[1]}`},
	{"GET", "/v1/models", ""},
	{"GET", "/v1/models/base/model", ""},
}

func TestKeysGuardEveryEndpoint(t *testing.T) {
	path := newFile(t, keyLine("key-of-a", "team-a"))
	a := newEngine(t, "a")
	f := start(t, gateway.Options{Access: gateway.Access{APIKeysFile: path}}, a)
	for _, e := range clientEndpoints {
		for name, header := range map[string][]string{
			"no key": nil, "a wrong key": {"Authorization", "Bearer key-of-b"}, "a tenant by header": {"X-Inference-Cache-Tenant", "team-a"},
		} {
			got := f.do(e.method, f.url+e.path, e.body, header...)
			if got.status != 401 || !strings.Contains(got.body, `"type":"invalid_request_error","param":null,"code":"unauthenticated"`) ||
				got.header.Get("Www-Authenticate") != "Bearer" || got.header.Get("X-Request-Id") == "" {
				t.Errorf("%s with %s: %d %v %s", e.path, name, got.status, got.header, got.body)
			}
		}
		if got := f.do(e.method, f.url+e.path, e.body, "Authorization", "Bearer key-of-a"); got.status != 200 {
			t.Errorf("%s with the key: %d %s", e.path, got.status, got.body)
		}
	}
	n := float64(len(clientEndpoints))
	if got := f.value("gateway_rejected_total", "reason", "auth"); got != 3*n {
		t.Errorf("%v refused, want %v", got, 3*n)
	}
	if got := f.value("gateway_authentications_total", "method", "api_key", "result", "ok"); got != n {
		t.Errorf("%v admitted by key, want %v", got, n)
	}
	for _, received := range a.requests() {
		if received.header.Get("Authorization")+received.header.Get("X-Api-Key") != "" {
			t.Errorf("%s: the engine got the key", received.path)
		}
	}
	writeFile(t, path, keyLine("key-of-c", "team-a"))
	if got := f.post("/v1/completions", prompt(), "Authorization", "Bearer key-of-a"); got.status != 401 {
		t.Errorf("a withdrawn key: %d", got.status)
	}
	if got := f.post("/v1/completions", prompt(), "X-Api-Key", "key-of-c"); got.status != 200 {
		t.Errorf("a new key: %d", got.status)
	}
	if f.logs.count("key-of") > 0 {
		t.Error("the logs hold a key")
	}
}

// steeringHeaders are one of each family of control headers.
var steeringHeaders = map[string]string{
	"X-Inference-Cache-Target":       "x-inference-cache-*",
	"X-Inference-Cache-Tenant":       "x-inference-cache-*",
	"X-Inference-Cache-Ttft-Ms":      "x-inference-cache-*",
	"X-Inference-Cache-Trace":        "x-inference-cache-*",
	"X-Smg-Routed-Worker-Id":         "x-smg-*",
	"X-Gateway-Destination-Endpoint": "x-gateway-destination-endpoint*",
	"X-Prefiller-Host-Port":          "x-prefiller-*",
	"X-Prefiller-Url":                "x-prefiller-*",
	"X-Data-Parallel-Rank":           "x-data-parallel-rank",
	"X-Dynamo-Instance-Id":           "x-dynamo-*",
	"X-Session-Id":                   "x-session-id",
}

// Every control header, on both listeners: none reaches an engine, and those of
// strangers are counted and have no effect.
func TestSEC_08_ControlHeadersByListener(t *testing.T) {
	a, b := newEngine(t, "a"), newEngine(t, "b")
	f := start(t, gateway.Options{Access: gateway.Access{TrustedListen: "127.0.0.1:0", Salt: gateway.SaltOff}}, a, b)
	for name, family := range steeringHeaders {
		t.Run(name, func(t *testing.T) {
			for url, counted := range map[string]float64{f.url: 1, f.trusted: 0} {
				before := f.value("gateway_headers_stripped_total", "header", family)
				value := map[string]string{"X-Inference-Cache-Target": "b", "X-Inference-Cache-Ttft-Ms": "5"}[name]
				if value == "" {
					value = "7"
				}
				if got := f.do("POST", url+"/v1/completions", prompt(), name, value); got.status != 200 {
					t.Errorf("status %d: %s", got.status, got.body)
				}
				if got := f.value("gateway_headers_stripped_total", "header", family) - before; got != counted {
					t.Errorf("%v counted, want %v", got, counted)
				}
			}
		})
	}
	for _, received := range append(a.requests(), b.requests()...) {
		for name := range steeringHeaders {
			if _, there := received.header[name]; there {
				t.Errorf("the engine got %s", name)
			}
		}
	}
}

func TestSEC_08_ControlFieldsByListener(t *testing.T) {
	a := newEngine(t, "a")
	f := start(t, gateway.Options{Access: gateway.Access{TrustedListen: "127.0.0.1:0", Salt: gateway.SaltOff}}, a)
	for _, field := range []string{"kv_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room",
		"data_parallel_rank", "routed_dp_rank", "disagg_prefill_dp_rank", "kv_cache_report_mode"} {
		for _, path := range []string{"/v1/completions", "/v1/chat/completions", "/v1/embeddings"} {
			body := `{"model":"base/model","prompt":"x","messages":[],"` + field + `":{"a":1}}`
			got := f.post(path, body)
			if got.status != 400 || !strings.Contains(got.body, `"param":"`+field+`","code":"forbidden_field"`) {
				t.Errorf("%s %s from a stranger: %d %s", path, field, got.status, got.body)
			}
			before := len(a.requests())
			if got := f.do("POST", f.trusted+path, body); got.status != 200 {
				t.Fatalf("%s %s from a trusted client: %d %s", path, field, got.status, got.body)
			}
			if seen := a.requests()[before].body; string(seen) != body {
				t.Errorf("the engine got %s", seen)
			}
		}
		if got := f.value("gateway_forbidden_fields_total", "field", field); got != 3 {
			t.Errorf("%s: %v counted, want 3", field, got)
		}
		if got := f.post("/v1/completions", `{"model":"base/model","prompt":"x","`+field+`":null}`); got.status != 200 {
			t.Errorf("%s of null, which says nothing: %d", field, got.status)
		}
	}
}

func TestTrustedClientNamesAReplica(t *testing.T) {
	a, b := newEngine(t, "a"), newEngine(t, "b")
	var ill atomic.Bool
	b.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ill.Load() {
			http.NotFound(w, r)
			return
		}
		b.ServeHTTP(w, r)
	})
	lookups := says("PREFIX_MATCH", "a")
	f := start(t, gateway.Options{
		Lookuper: lookups, Access: gateway.Access{TrustedListen: "127.0.0.1:0", Salt: gateway.SaltOff},
		Timeouts: gateway.Timeouts{HealthInterval: 10 * time.Millisecond},
	}, a, b)
	for range 3 {
		if got := f.do("POST", f.trusted+"/v1/completions", prompt(), "X-Inference-Cache-Target", "b"); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	if len(b.requests()) != 3 || len(lookups.requests()) != 0 {
		t.Errorf("%d of 3 went to the named replica, after %d lookups", len(b.requests()), len(lookups.requests()))
	}
	for name, id := range map[string]string{"an unknown id": "c", "an address": b.Listener.Addr().String(), "a URL": b.URL} {
		got := f.do("POST", f.trusted+"/v1/completions", prompt(), "X-Inference-Cache-Target", id)
		if got.status != 503 || !strings.Contains(got.body, `"code":"no_ready_replica"`) || got.header.Get("Retry-After") == "" {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	b.Server.CloseClientConnections()
	ill.Store(true)
	eventually(t, "b is out", func() bool {
		return f.do("POST", f.trusted+"/v1/completions", prompt(), "X-Inference-Cache-Target", "b").status == 503
	})
	for outcome, least := range map[string]float64{"followed": 3, "unknown": 3, "ineligible": 0} {
		if got := f.value("gateway_targets_total", "outcome", outcome); got < least {
			t.Errorf("%s: %v, want at least %v", outcome, got, least)
		}
	}
	if got := f.value("routing_decisions_total", "origin", "target_header"); got < 3 {
		t.Errorf("%v decisions by header", got)
	}
}

func TestTrustedClientNamesItsDeadline(t *testing.T) {
	lookups := says("NO_HINT")
	f := start(t, gateway.Options{Lookuper: lookups, Access: gateway.Access{TrustedListen: "127.0.0.1:0", Salt: gateway.SaltOff}},
		newEngine(t, "a"), newEngine(t, "b"))
	f.do("POST", f.trusted+"/v1/completions", prompt(), "X-Inference-Cache-Ttft-Ms", "250")
	f.post("/v1/completions", prompt(), "X-Inference-Cache-Ttft-Ms", "250")
	asked := lookups.requests()
	if len(asked) != 2 || asked[0].GetSlo().GetTtftMs() != 250 || asked[1].GetSlo() != nil {
		t.Errorf("lookups %v, want the deadline of the trusted client only", asked)
	}
	for _, value := range []string{"0", "-1", "soon", "99999999999"} {
		if got := f.do("POST", f.trusted+"/v1/completions", prompt(), "X-Inference-Cache-Ttft-Ms", value); got.status != 400 {
			t.Errorf("%s: %d", value, got.status)
		}
	}
	if got := f.do("POST", f.trusted+"/v1/completions", prompt(), "X-Inference-Cache-Tenant", "no tenant"); got.status != 400 {
		t.Errorf("a tenant that cannot be: %d %s", got.status, got.body)
	}
}

// innerHeaders are what engines may say about the inside.
var innerHeaders = []string{
	"X-Inference-Cache-Trace", "X-Inference-Cache-Replica", "X-Inference-Cache-Reason", "X-Inference-Cache-Anything",
	"X-Smg-Cache-Trace", "X-Smg-Routed-Worker-Id", "X-Gateway-Destination-Endpoint", "X-Gateway-Destination-Endpoint-Served",
	"X-Prefiller-Host-Port", "X-Data-Parallel-Rank", "X-Dynamo-Instance-Id", "X-Session-Id",
	"X-Request-Id", "X-Correlation-Id", "X-Trace-Id", "Request-Id", "Traceparent", "Tracestate", "Baggage", "B3", "X-B3-Traceid",
	"Server-Timing", "Server", "Via", "Alt-Svc", "Location", "X-Envoy-Upstream-Service-Time", "X-Served-By", "X-Upstream-Addr",
	"X-Worker-Url", "X-Vllm-Instance", "X-Forwarded-For", "X-Powered-By", "X-Process-Time", "Keep-Alive", "Proxy-Authenticate",
}

// Nothing internal reaches a client unless switched on: every header an engine
// may set, on every endpoint, in answers, errors and streams.
func TestNoInnerHeaderReachesClients(t *testing.T) {
	const inside = "10.11.12.13:8000"
	for kind, answerWith := range map[string]http.HandlerFunc{
		"an answer":            answerJSON("x", 0),
		"an error":             answerStatus(http.StatusBadRequest),
		"a failure":            answerStatus(http.StatusInternalServerError),
		"a stream":             events(event("data: {}\n\n"), event("data: [DONE]\n\n")),
		"a stream that breaks": events(event("data: {}\n\n"), crash),
	} {
		for _, exposed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, replica exposed: %t", kind, exposed), func(t *testing.T) {
				leaky := func(e *engine) {
					e.generate = func(w http.ResponseWriter, r *http.Request) {
						for _, name := range innerHeaders {
							w.Header().Set(name, inside)
						}
						w.Header().Set("Trailer", "X-Inference-Cache-Late")
						answerWith(w, r)
						w.Header().Set("X-Inference-Cache-Late", inside)
					}
				}
				f := start(t, gateway.Options{ExposeReplica: exposed}, newEngine(t, "a", leaky), newEngine(t, "b", leaky))
				for _, e := range clientEndpoints {
					got := f.do(e.method, f.url+e.path, e.body, "X-Request-Id", "mine")
					if id := got.header.Get("X-Request-Id"); id != "mine" {
						t.Errorf("%s: request id %q, want the client's", e.path, id)
					}
					allowed := map[string]bool{"X-Request-Id": true, "Content-Type": true, "Content-Length": true, "Date": true, "Retry-After": true}
					if exposed && e.method == "POST" {
						allowed["X-Inference-Cache-Replica"], allowed["X-Inference-Cache-Reason"] = true, true
					}
					for name, values := range got.header {
						if !allowed[name] || strings.Contains(strings.Join(values, ""), inside) {
							t.Errorf("%s: the client got %s: %q", e.path, name, values)
						}
					}
				}
			})
		}
	}
}

func TestAdminToken(t *testing.T) {
	token := newFile(t, "a-token-of-the-operators\n")
	f := start(t, gateway.Options{Access: gateway.Access{AdminTokenFile: token}}, newEngine(t, "a"))
	for path, open := range map[string]bool{"/healthz": true, "/readyz": true, "/metrics": false, "/debug/state": false} {
		if got := f.do("GET", f.admin+path, ""); (got.status == 200) != open {
			t.Errorf("%s without the token: %d", path, got.status)
		}
		if got := f.do("GET", f.admin+path, "", "Authorization", "Bearer a-token-of-the-operators"); got.status != 200 {
			t.Errorf("%s with the token: %d", path, got.status)
		}
		if got := f.do("GET", f.admin+path, "", "Authorization", "Bearer a-token-of-the-operator"); (got.status == 200) != open {
			t.Errorf("%s with another token: %d", path, got.status)
		}
	}
	if got := f.do("POST", f.admin+"/debug/explain", prompt()); got.status != 401 {
		t.Errorf("explain without the token: %d", got.status)
	}
	writeFile(t, token, "another-token-of-the-operators")
	if got := f.do("GET", f.admin+"/debug/state", "", "Authorization", "Bearer another-token-of-the-operators"); got.status != 200 {
		t.Errorf("a renewed token: %d", got.status)
	}
}

func TestAccessIsChecked(t *testing.T) {
	salt, short := newFile(t, "0123456789abcdef"), newFile(t, "too short")
	two, one := newFile(t, keyLine("a", "team-a")+keyLine("b", "team-b")), newFile(t, keyLine("a", "team-a"))
	for name, tc := range map[string]struct {
		options gateway.Options
		want    string // "" is accepted
	}{
		"one tenant":                          {gateway.Options{Access: gateway.Access{APIKeysFile: one}}, ""},
		"several tenants without a word":      {gateway.Options{Access: gateway.Access{APIKeysFile: two}}, "several caller tenants"},
		"several tenants that share":          {gateway.Options{Access: gateway.Access{APIKeysFile: two, Salt: gateway.SaltOff}}, ""},
		"several tenants kept apart":          {gateway.Options{Access: gateway.Access{APIKeysFile: two, Salt: gateway.SaltDerive, SaltKeyFile: salt}}, ""},
		"a trusted listener without a word":   {gateway.Options{Access: gateway.Access{TrustedListen: "127.0.0.1:0"}}, "several caller tenants"},
		"derived salts without a key":         {gateway.Options{Access: gateway.Access{Salt: gateway.SaltDerive}}, "key file"},
		"a key without derived salts":         {gateway.Options{Access: gateway.Access{Salt: gateway.SaltOff, SaltKeyFile: salt}}, "key file"},
		"a short key":                         {gateway.Options{Access: gateway.Access{Salt: gateway.SaltDerive, SaltKeyFile: short}}, "at least 16"},
		"another salt":                        {gateway.Options{Access: gateway.Access{Salt: "sea"}}, "off or derive"},
		"administration for everybody":        {gateway.Options{AdminListen: "0.0.0.0:8080"}, "loopback"},
		"administration on all addresses":     {gateway.Options{AdminListen: ":8080"}, "loopback"},
		"administration by name":              {gateway.Options{AdminListen: "localhost:8080"}, ""},
		"administration with a token":         {gateway.Options{AdminListen: ":8080", Access: gateway.Access{AdminTokenFile: salt}}, ""},
		"a short admin token":                 {gateway.Options{Access: gateway.Access{AdminTokenFile: short}}, "at least 16"},
		"a certificate without a key":         {gateway.Options{Access: gateway.Access{TLSCertFile: one}}, "both"},
		"client certificates without TLS":     {gateway.Options{Access: gateway.Access{ClientCAFile: one}}, "need TLS"},
		"tenants of certificates without any": {gateway.Options{Access: gateway.Access{ClientTenantsFile: one}}, "authorities"},
		"a default tenant that cannot be":     {gateway.Options{Access: gateway.Access{DefaultTenant: "a b"}}, "tenant"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := gateway.New(tc.options)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("error %v, want one that says %q", err, tc.want)
			}
		})
	}
}

func TestExplainsForATenant(t *testing.T) {
	lookups := says("NO_HINT")
	f := start(t, gateway.Options{Lookuper: lookups, Access: gateway.Access{
		Salt: gateway.SaltDerive, SaltKeyFile: newFile(t, "0123456789abcdef"), AllowHiddenSalts: true,
	}}, newEngine(t, "a"), newEngine(t, "b"))
	for _, tenant := range []string{"team-a", "team-b"} {
		if got := f.do("POST", f.admin+"/debug/explain", prompt(), "X-Inference-Cache-Tenant", tenant); got.status != 200 {
			t.Fatal(got.status, got.body)
		}
	}
	f.post("/v1/completions", prompt())
	asked := lookups.requests()
	if len(asked) != 3 || cmp.Equal(asked[0].BlockHashes, asked[1].BlockHashes) || cmp.Equal(asked[0].BlockHashes, asked[2].BlockHashes) {
		t.Error("different tenants have the same keys")
	}
}

// saltOf returns the salt of a body and the body without it.
func saltOf(t *testing.T, body []byte) (string, map[string]any) {
	t.Helper()
	members := map[string]any{}
	if err := json.Unmarshal(body, &members); err != nil {
		t.Fatalf("body %s: %v", body, err)
	}
	salt, _ := members["cache_salt"].(string)
	delete(members, "cache_salt")
	return salt, members
}

func TestGW26DerivedSalts(t *testing.T) {
	a := newEngine(t, "a")
	f := start(t, gateway.Options{Access: gateway.Access{
		APIKeysFile: newFile(t, keyLine("a", "team-a")+keyLine("b", "team-b")),
		Salt:        gateway.SaltDerive, SaltKeyFile: newFile(t, "0123456789abcdef"), AllowHiddenSalts: true,
	}}, a)
	send := func(key, path, body string) (string, map[string]any) {
		t.Helper()
		if got := f.post(path, body, "X-Api-Key", key); got.status != 200 {
			t.Fatal(got.status, got.body)
		}
		seen := a.requests()
		return saltOf(t, seen[len(seen)-1].body)
	}
	plain, rest := send("a", "/v1/completions", `{"model":"base/model","prompt":"x","n":2}`)
	if len(plain) != 43 || strings.ContainsAny(plain, "+/=") {
		t.Errorf("salt %q, want 43 letters of base64url", plain)
	}
	if diff := cmp.Diff(map[string]any{"model": "base/model", "prompt": "x", "n": 2.0}, rest); diff != "" {
		t.Errorf("the rest of the body (-want +got):\n%s", diff)
	}
	salts := map[string]string{plain: "team-a without a salt"}
	for what, request := range map[string][2]string{
		"team-b without a salt":          {"b", `{"model":"base/model","prompt":"x"}`},
		"team-a with a salt":             {"a", `{"cache_salt":"s","model":"base/model","prompt":"x"}`},
		"team-b with the same salt":      {"b", `{"cache_salt":"s","model":"base/model","prompt":"x"}`},
		"team-b with the salt of team-a": {"b", `{"cache_salt":"` + plain + `","model":"base/model","prompt":"x"}`},
	} {
		salt, _ := send(request[0], "/v1/completions", request[1])
		if other, known := salts[salt]; known || salt == "" {
			t.Errorf("%s has the salt of %s", what, other)
		}
		salts[salt] = what
	}
	for what, body := range map[string]string{
		"null":        `{"model":"base/model","cache_salt":null}`,
		"empty":       `{"model":"base/model","cache_salt":""}`,
		"in front":    `{ "cache_salt" : "" ,"model":"base/model"}`,
		"in disguise": `{"model":"base/model","cache\u005fsalt":""}`,
		"twice":       `{"cache_salt":"other","model":"base/model","cache_salt":""}`,
		"space":       "{\"model\":\"base/model\"\n }\n",
	} {
		if salt, _ := send("a", "/v1/embeddings", body); salt != plain {
			t.Errorf("%s: salt %q, want that without a salt", what, salt)
		}
		seen := a.requests()
		if last := seen[len(seen)-1].body; strings.Contains(string(last), "other") {
			t.Errorf("%s: the client's own salt is still there: %s", what, last)
		}
	}
	if got := f.post("/tokenize", `{"model":"base/model","prompt":"x"}`, "X-Api-Key", "a"); strings.Contains(got.body, "cache_salt") {
		t.Error("tokenization got a salt")
	}
	again, _ := send("a", "/v1/chat/completions", `{"model":"base/model","messages":[]}`)
	if again != plain {
		t.Error("the salt of a tenant depends on more than the tenant")
	}
}

// Two tenants that do not share salts do not learn from each other's
// placements either, with or without token ids.
func TestPlacementsAreATenantsOwn(t *testing.T) {
	keys := keyLine("a", "team-a") + keyLine("b", "team-b")
	secret := "0123456789abcdef"
	for name, tc := range map[string]struct {
		access    gateway.Access
		tokenizer gateway.TokenizerMode
		shared    bool
	}{
		"derived, by tokens": {gateway.Access{Salt: gateway.SaltDerive, AllowHiddenSalts: true}, gateway.TokenizeByEngine, false},
		"derived, by text":   {gateway.Access{Salt: gateway.SaltDerive, AllowHiddenSalts: true}, gateway.TokenizeNone, false},
		"off, by tokens":     {gateway.Access{Salt: gateway.SaltOff}, gateway.TokenizeByEngine, true},
		"off, by text":       {gateway.Access{Salt: gateway.SaltOff}, gateway.TokenizeNone, true},
	} {
		t.Run(name, func(t *testing.T) {
			tc.access.APIKeysFile = newFile(t, keys)
			if tc.access.Salt == gateway.SaltDerive {
				tc.access.SaltKeyFile = newFile(t, secret)
			}
			f := start(t, gateway.Options{
				Access: tc.access, Tokenizer: tc.tokenizer, Lookuper: says("NO_HINT"), ExposeReplica: true,
			}, newEngine(t, "a"), newEngine(t, "b"))
			body := completion(strings.Repeat("long enough to be remembered. ", 40))
			reason := func(key string) string {
				return f.post("/v1/completions", body, "X-Api-Key", key).header.Get("X-Inference-Cache-Reason")
			}
			reason("a")
			if got := reason("a"); !strings.Contains(got, "branch=hit") {
				t.Fatalf("the tenant's own second request: %s", got)
			}
			if got := strings.Contains(reason("b"), "branch=hit"); got != tc.shared {
				t.Errorf("the other tenant follows: %t, want %t", got, tc.shared)
			}
		})
	}
}
