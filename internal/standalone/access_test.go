// SPDX-License-Identifier: Apache-2.0

package standalone

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/caller"
	"github.com/inferencecache/inference-cache/internal/sim/engine"
)

// twoTenants returns an access section with derived salts and the keys of two
// tenants.
func twoTenants(t *testing.T) (access Access, keyOfA, keyOfB string) {
	t.Helper()
	dir := t.TempDir()
	access = Access{
		APIKeysFile: filepath.Join(dir, "keys"), TenantSalt: "derive", TenantSaltKeyFile: filepath.Join(dir, "salt"),
	}
	if err := os.WriteFile(access.TenantSaltKeyFile, []byte("a secret that no client knows"), 0o600); err != nil {
		t.Fatal(err)
	}
	var keys [2]string
	for i, tenant := range []string{"team-a", "team-b"} {
		var err error
		if keys[i], err = caller.AddKey(access.APIKeysFile, tenant, ""); err != nil {
			t.Fatal(err)
		}
	}
	return access, keys[0], keys[1]
}

// The derived salt of tenant A never yields tenant B's hit, at the index or at
// the engine, whatever salt B's clients send.
func TestGW_26_DerivedSaltsKeepTenantsApart(t *testing.T) {
	for name, runtime := range map[string]engine.Config{
		"vllm":   fastEngine(),
		"sglang": func() engine.Config { c := fastEngine(); c.Runtime, c.EventShape = "sglang", "sglang-0.5.18"; return c }(),
	} {
		t.Run(name, func(t *testing.T) {
			access, keyOfA, keyOfB := twoTenants(t)
			first, second := startEngine(t, runtime), startEngine(t, runtime)
			config := Config{Access: access, Routing: Routing{ExposeReplica: true, LookupTimeout: Duration(time.Second)}}
			for _, e := range []*engine.Engine{first, second} {
				one := engineConfig(e)
				one.Runtime = string(runtime.Runtime)
				config.Engines = append(config.Engines, one)
			}
			f := startUp(t, config)
			f.awaitReady()
			prompt := text("the same for both tenants", 320)
			f.key = keyOfA
			if got := f.complete(prompt, nil); got.status != 200 || got.cachedTokens != 0 {
				t.Fatalf("the first request: %+v", got)
			}
			f.awaitKeys(20)
			if got := f.complete(prompt, nil); got.reason != hit || got.cachedTokens == 0 {
				t.Fatalf("tenant A again: %+v, want a hit", got)
			}
			f.key = keyOfB
			for _, extra := range []map[string]any{nil, {"cache_salt": "team-a"}} {
				got := f.complete(prompt, extra)
				if got.status != 200 || strings.Contains(got.reason, "PREFIX_MATCH") || got.cachedTokens != 0 {
					t.Errorf("tenant B with %v: %+v, want no match and nothing cached", extra, got)
				}
			}
			f.awaitKeys(60) // A's, B's, and B's with a salt of its own
			if got := f.complete(prompt, nil); got.reason != hit || got.cachedTokens == 0 {
				t.Errorf("tenant B again: %+v, want a hit of its own", got)
			}
			f.key = ""
			if got := f.complete(prompt, nil); got.status != 401 {
				t.Errorf("a stranger: %+v", got)
			}
		})
	}
}

// An engine whose events hide salts must not be used with derived salts.
func TestEnginesThatHideSaltsAreRefused(t *testing.T) {
	access, key, _ := twoTenants(t)
	old := fastEngine()
	old.EventShape = "vllm-0.14"
	for _, allowed := range []bool{false, true} {
		access.AllowHiddenSalts = allowed
		hiding := startEngine(t, old)
		f := startUp(t, Config{Access: access, Engines: []Engine{engineConfig(hiding)}})
		f.key = key
		want := map[bool]int{false: 503, true: 200}[allowed]
		eventually(t, 10*time.Second, "the engine is judged", func() bool {
			state := f.up.gateway.State().Replicas[0]
			return state.Ready || strings.Contains(state.Problem, "cannot show cache salts")
		})
		if got := f.complete("hello", nil); got.status != want {
			t.Errorf("allowed %t: %+v, want status %d", allowed, got, want)
		}
	}
}

// turn is one exchange of a conversation in some API.
type turn struct{ user, assistant string }

// conversation renders turns and a question in the form of an API.
type conversation struct {
	path string
	body func(turns []turn, question string, stream bool) map[string]any
	// reply finds the text of an answer, and cached the reused tokens.
	reply  func(t *testing.T, body string) string
	cached func(t *testing.T, body string) int
}

const system = "You are the test of a gateway, and you answer at length."

func chatTurns(turns []turn, question string) []map[string]any {
	var messages []map[string]any
	for _, one := range turns {
		messages = append(messages, map[string]any{"role": "user", "content": one.user},
			map[string]any{"role": "assistant", "content": one.assistant})
	}
	return append(messages, map[string]any{"role": "user", "content": question})
}

func decode(t *testing.T, body string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(body), into); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
}

var conversations = map[string]conversation{
	"responses": {
		path: "/v1/responses",
		body: func(turns []turn, question string, stream bool) map[string]any {
			return map[string]any{"model": "sim", "instructions": system, "input": chatTurns(turns, question),
				"max_output_tokens": 20, "stream": stream,
				"tools": []any{map[string]any{"type": "function", "name": "f", "parameters": map[string]any{"type": "object"}}}}
		},
		reply: func(t *testing.T, body string) string {
			var answer struct {
				Output []struct{ Content []struct{ Text string } }
			}
			decode(t, body, &answer)
			return answer.Output[0].Content[0].Text
		},
		cached: func(t *testing.T, body string) int {
			var answer struct {
				Usage struct {
					Details struct {
						Cached int `json:"cached_tokens"`
					} `json:"input_tokens_details"`
				}
			}
			decode(t, body, &answer)
			return answer.Usage.Details.Cached
		},
	},
	"messages": {
		path: "/v1/messages",
		body: func(turns []turn, question string, stream bool) map[string]any {
			return map[string]any{"model": "sim", "system": []any{map[string]any{"type": "text", "text": system}},
				"messages": chatTurns(turns, question), "max_tokens": 20, "stream": stream,
				"tools": []any{map[string]any{"name": "f", "input_schema": map[string]any{"type": "object"}}}}
		},
		reply: func(t *testing.T, body string) string {
			var answer struct{ Content []struct{ Text string } }
			decode(t, body, &answer)
			return answer.Content[0].Text
		},
		cached: func(t *testing.T, body string) int {
			var answer struct {
				Usage struct {
					Cached int `json:"cache_read_input_tokens"`
				}
			}
			decode(t, body, &answer)
			return answer.Usage.Cached
		},
	},
}

// A conversation in another form of chat follows its prefix by keys that are
// those of the engine's own events.
func TestOtherChatAPIsFollowTheirPrefix(t *testing.T) {
	for name, c := range conversations {
		t.Run(name, func(t *testing.T) {
			f := startFleet(t, startEngine(t, fastEngine()), startEngine(t, fastEngine()), startEngine(t, fastEngine()))
			var turns []turn
			home := ""
			for i := range 4 {
				question := text("question", 100+i)
				before := f.metric("inferencecache_index_keys")
				got := f.post(c.path, c.body(turns, question, false))
				if got.status != 200 {
					t.Fatalf("turn %d: %+v", i, got)
				}
				if i > 0 && (got.reason != hit || got.replica != home || c.cached(t, got.body) == 0) {
					t.Errorf("turn %d went to %s (%s), %d tokens cached; its prefix is on %s", i, got.replica, got.reason, c.cached(t, got.body), home)
				}
				home = got.replica
				turns = append(turns, turn{question, c.reply(t, got.body)})
				eventually(t, 10*time.Second, "the index knows the turn", func() bool { return f.metric("inferencecache_index_keys") > before })
			}
			if got := f.metric("inferencecache_routing_parity_total"); got == 0 {
				t.Error("no parity check was made")
			}
			f.wantParity()

			streamed := f.post(c.path, c.body(turns, "and at last?", true))
			if streamed.status != 200 || streamed.reason != hit || streamed.replica != home {
				t.Errorf("streamed: %+v", streamed)
			}
			ending := map[string]string{"responses": "event: response.completed\n", "messages": "event: message_stop\n"}[name]
			if !strings.Contains(streamed.body, ending) || strings.Contains(streamed.body, "[DONE]") {
				t.Errorf("the stream does not end like one of this API: %.300s", streamed.body[max(0, len(streamed.body)-300):])
			}
			f.wantParity()
		})
	}
}

// wantParity checks that no prompt was counted or cached otherwise than
// predicted.
func (f *fleet) wantParity() {
	f.t.Helper()
	for _, family := range f.gather() {
		if family.GetName() != "inferencecache_routing_parity_total" {
			continue
		}
		for _, series := range family.GetMetric() {
			mismatch := false
			for _, label := range series.GetLabel() {
				mismatch = mismatch || label.GetValue() == "mismatch"
			}
			if mismatch && series.GetCounter().GetValue() > 0 {
				f.t.Errorf("parity: %v", series)
			}
		}
	}
}

// Ids that engines make of a request's id have the prefix of their kind once.
func TestAnswerIDsHaveOnePrefix(t *testing.T) {
	f := startFleet(t, startEngine(t, fastEngine()))
	for path, body := range map[string]string{
		"/v1/completions":      `{"model":"sim","prompt":"hi","max_tokens":1}`,
		"/v1/chat/completions": `{"model":"sim","messages":[{"role":"user","content":"hi"}],"max_tokens":1}`,
		"/v1/responses":        `{"model":"sim","input":"hi","max_output_tokens":1}`,
		"/v1/messages":         `{"model":"sim","messages":[{"role":"user","content":"hi"}],"max_tokens":1}`,
	} {
		prefix := map[string]string{
			"/v1/completions": "cmpl-", "/v1/chat/completions": "chatcmpl-", "/v1/responses": "resp_", "/v1/messages": "msg_",
		}[path]
		var answer struct{ ID string }
		decode(t, f.post(path, body).body, &answer)
		if !strings.HasPrefix(answer.ID, prefix) || strings.HasPrefix(answer.ID, prefix+prefix) {
			t.Errorf("%s: id %q", path, answer.ID)
		}
	}
}
