// SPDX-License-Identifier: Apache-2.0

package standalone

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/finding"
	"github.com/inferencecache/inference-cache/internal/gateway"
	"github.com/inferencecache/inference-cache/internal/sim/engine"
	"github.com/inferencecache/inference-cache/internal/sim/tinymodel"
)

// tinyTemplate is the chat template of the simulated engines.
const tinyTemplate = `{%- if tools %}<|im_start|>system
# Tools
{{ tools | tojson(separators=(',', ':')) }}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}`

// writeTinyModel writes the files of the simulated engines' model, whose ids
// are bytes, and returns their folder. merges makes it another tokenizer.
func writeTinyModel(t *testing.T, template string, merges ...string) string {
	t.Helper()
	vocabulary := map[string]int{}
	next := 256
	for b := range 256 {
		r := rune(b)
		if !(b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae) {
			r = rune(next)
			next++
		}
		vocabulary[string(r)] = b
	}
	var added []map[string]any
	for id, content := range []string{"<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"} {
		added = append(added, map[string]any{"id": tinymodel.BOS + id, "content": content, "special": true})
	}
	for i, merge := range merges {
		vocabulary[strings.ReplaceAll(merge, " ", "")] = tinymodel.VocabSize + i
	}
	tokenizer, err := json.Marshal(map[string]any{
		"version": "1.0", "added_tokens": added,
		"pre_tokenizer": map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
		"model":         map[string]any{"type": "BPE", "vocab": vocabulary, "merges": append([]string{}, merges...)},
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string]string{
		"tokenizer.json":        string(tokenizer),
		"tokenizer_config.json": `{"tokenizer_class":"PreTrainedTokenizerFast","bos_token":"<|bos|>"}`,
		"chat_template.jinja":   template,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// hasty are short times, so that tests need not wait.
var hasty = gateway.ParityOptions{Interval: time.Hour, Retry: 100 * time.Millisecond, Appear: time.Second}

// startChecked runs `up` before two engines with parity checks on.
func startChecked(t *testing.T, tokenizer Tokenizer, change func(*Config)) *fleet {
	t.Helper()
	engines := []*engine.Engine{startEngine(t, fastEngine()), startEngine(t, fastEngine())}
	tokenizer.Parity = "on"
	config := Config{Tokenizer: tokenizer, Routing: Routing{ExposeReplica: true, LookupTimeout: Duration(time.Second)}}
	for _, e := range engines {
		config.Engines = append(config.Engines, engineConfig(e))
	}
	if change != nil {
		change(&config)
	}
	f := startUpWith(t, config, Deps{Parity: hasty})
	f.engines = engines
	f.awaitReady()
	return f
}

func (f *fleet) awaitParity(state string) gateway.ParityState {
	f.t.Helper()
	var last gateway.ParityState
	defer func() {
		if last.State != state {
			f.t.Logf("parity is %+v", last)
		}
	}()
	eventually(f.t, 20*time.Second, "parity is "+state, func() bool {
		for _, last = range f.up.gateway.State().Parity {
			if last.State == state {
				return true
			}
		}
		return false
	})
	return last
}

// chatBody is a conversation of several blocks.
func chatBody(n int) string {
	return fmt.Sprintf(`{"model":"sim","max_tokens":1,"messages":[{"role":"system","content":"Be brief."},`+
		`{"role":"user","content":"Question %d: %s größer?"}]}`, n, strings.Repeat("why ", 40))
}

// reasonOfNext sends a conversation twice and returns what the second answer
// says about its choice.
func (f *fleet) reasonOfNext(n int) string {
	f.t.Helper()
	reason := ""
	for range 2 {
		got := f.post("/v1/chat/completions", chatBody(n))
		if got.status != http.StatusOK {
			f.t.Fatalf("status %d: %s", got.status, got.body)
		}
		reason = got.reason
	}
	return reason
}

func (f *fleet) findings() map[finding.Code]finding.Finding {
	out := map[finding.Code]finding.Finding{}
	for _, found := range f.up.gateway.State().Findings {
		out[found.Code] = found
	}
	return out
}

// TestParityHolds checks each way to token ids against real events.
func TestParityHolds(t *testing.T) {
	for _, mode := range []string{"render", "engine", "local"} {
		t.Run(mode, func(t *testing.T) {
			tokenizer := Tokenizer{Mode: mode}
			if mode == "local" {
				tokenizer.Folders = []string{writeTinyModel(t, tinyTemplate)}
			}
			f := startChecked(t, tokenizer, nil)
			state := f.awaitParity("ok")
			if state.Reason != "" || state.Replica == "" || state.Checked.IsZero() {
				t.Errorf("state %+v", state)
			}
			eventually(f.t, 20*time.Second, "a conversation follows its prefix", func() bool {
				return strings.Contains(f.reasonOfNext(1), "branch=hit; code=PREFIX_MATCH")
			})
			if found := f.findings(); len(found) != 0 {
				t.Errorf("findings %v", found)
			}
		})
	}
}

// TestFR_06_IDsThatAreNotTheEngines checks that ids which are not the engine's are found out,
// turn hints off for the model, and never cost a request.
func TestFR_06_IDsThatAreNotTheEngines(t *testing.T) {
	for name, folder := range map[string]func(t *testing.T) string{
		"a template without tools": func(t *testing.T) string {
			return writeTinyModel(t, strings.Replace(tinyTemplate, "if tools", "if false", 1))
		},
		"a template of the same length": func(t *testing.T) string {
			return writeTinyModel(t, strings.Replace(tinyTemplate, "# Tools", "# TOOLS", 1))
		},
		"another tokenizer": func(t *testing.T) string { return writeTinyModel(t, tinyTemplate, "e r") },
	} {
		t.Run(name, func(t *testing.T) {
			f := startChecked(t, Tokenizer{Mode: "local", Folders: []string{folder(t)}}, nil)
			state := f.awaitParity("failed")
			if state.Reason == "" {
				t.Error("no reason is given")
			}
			if reason := f.reasonOfNext(1); !strings.Contains(reason, "branch=parity_failed") {
				t.Errorf("the next choice was made by %q", reason)
			}
			found := f.findings()[finding.ParityFailed]
			if found.What != state.Reason || !strings.Contains(found.Where, "sim") || found.Action == "" {
				t.Errorf("finding %+v", found)
			}
			if _, page := f.get("/metrics"); !strings.Contains(page, `inferencecache_gateway_findings{code="parity_failed"} 1`) {
				t.Error("the metric does not show the finding")
			}
			eventually(f.t, 20*time.Second, "the check is repeated", func() bool { return f.findings()[finding.ParityFailed].Count >= 2 })
			for _, secret := range []string{"Zähle", "größer", "why why"} {
				if strings.Contains(f.logs.String(), secret) {
					t.Errorf("the logs hold %q", secret)
				}
			}
		})
	}
}

// TestEventsMissing checks that engines without events are told from ids that
// differ.
func TestEventsMissing(t *testing.T) {
	f := startChecked(t, Tokenizer{}, func(config *Config) {
		for i := range config.Engines {
			config.Engines[i].Events, config.Engines[i].Replay = NoEvents, ""
		}
	})
	if state := f.awaitParity("failed"); !strings.Contains(state.Reason, "see whether its events arrive") {
		t.Errorf("reason %q", state.Reason)
	}
	f.reasonOfNext(1) // is served
}

// TestEventsOfOneReplicaMissing checks that one silent engine does not turn
// hints off for the model.
func TestEventsOfOneReplicaMissing(t *testing.T) {
	f := startChecked(t, Tokenizer{}, func(config *Config) {
		config.Engines[0].Events, config.Engines[0].Replay = NoEvents, ""
	})
	f.awaitParity("ok")
	eventually(f.t, 20*time.Second, "a conversation follows its prefix", func() bool {
		return strings.Contains(f.reasonOfNext(1), "branch=hit")
	})
}
