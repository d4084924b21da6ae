// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/sim/engine"
	"github.com/inferencecache/inference-cache/internal/sim/httpapi"
)

const keepBlocks = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`

func nixlEngine(t *testing.T, role httpapi.Role, hold time.Duration) *engine.Engine {
	return start(t, engine.Config{NoEvents: true, Role: role, HoldFor: hold})
}

func completionWith(prompt string, members string) string {
	return fmt.Sprintf(`{"prompt":%q,"max_tokens":1,"ignore_eos":true%s}`, prompt, members)
}

// prefilled computes a prompt and returns what a decode engine needs.
func prefilled(t *testing.T, e *engine.Engine, prompt string) map[string]any {
	t.Helper()
	status, answer := call(t, "POST", e.URL()+"/v1/completions", completionWith(prompt, `,"kv_transfer_params":`+keepBlocks))
	transfer, ok := answer["kv_transfer_params"].(map[string]any)
	if status != 200 || !ok {
		t.Fatalf("%d %v", status, answer)
	}
	return transfer
}

func decodeWith(t *testing.T, e *engine.Engine, prompt string, transfer map[string]any) (int, map[string]any) {
	t.Helper()
	text, err := json.Marshal(transfer)
	if err != nil {
		t.Fatal(err)
	}
	return call(t, "POST", e.URL()+"/v1/completions", completionWith(prompt, `,"kv_transfer_params":`+string(text)))
}

// TestNIXLTransfer passes a prompt from one engine to another.
func TestNIXLTransfer(t *testing.T) {
	p, d := nixlEngine(t, httpapi.RolePrefill, 0), nixlEngine(t, httpapi.RoleDecode, 0)
	prompt := strings.Repeat("passed on ", 10)
	transfer := prefilled(t, p, prompt)
	if stats := p.Stats(); stats.HeldRequests != 1 || stats.UsedBlocks != 7 {
		t.Errorf("the prefill engine holds %d blocks of %d requests", stats.UsedBlocks, stats.HeldRequests)
	}
	if transfer["do_remote_prefill"] != true || transfer["do_remote_decode"] != false || transfer["remote_num_tokens"] != 100.0 ||
		len(transfer["remote_block_ids"].([]any)) != 7 {
		t.Errorf("transfer %v", transfer)
	}
	if expiry := transfer["remote_blocks_expiry_time"].(float64); time.Until(time.Unix(int64(expiry), 0)) < 400*time.Second {
		t.Errorf("blocks expire at %v", expiry)
	}
	status, answer := decodeWith(t, d, prompt, transfer)
	if status != 200 || at(t, answer, "usage", "prompt_tokens_details", "cached_tokens") != 99.0 {
		t.Errorf("%d %v", status, answer)
	}
	if p.Stats().UsedBlocks != 0 || d.Stats().PrefilledTokens != 1 {
		t.Errorf("%d blocks are still held, %d tokens were computed twice", p.Stats().UsedBlocks, d.Stats().PrefilledTokens)
	}
	if status, _ := decodeWith(t, d, prompt, transfer); status != 500 {
		t.Errorf("blocks are taken twice: %d", status)
	}
}

// TestNIXLTransfersThatFail asks for what is not there.
func TestNIXLTransfersThatFail(t *testing.T) {
	p, d := nixlEngine(t, httpapi.RolePrefill, 0), nixlEngine(t, httpapi.RoleDecode, 0)
	prompt := strings.Repeat("lost ", 20)
	for name, change := range map[string]func(map[string]any){
		"another request":   func(m map[string]any) { m["remote_request_id"] = "cmpl-other" },
		"another engine":    func(m map[string]any) { m["remote_engine_id"] = "other" },
		"nobody there":      func(m map[string]any) { m["remote_port"] = 1 },
		"no blocks named":   func(m map[string]any) { m["remote_block_ids"] = nil },
		"no address at all": func(m map[string]any) { m["remote_host"] = nil },
	} {
		t.Run(name, func(t *testing.T) {
			transfer := maps.Clone(prefilled(t, p, prompt))
			change(transfer)
			if status, answer := decodeWith(t, d, prompt, transfer); status != 500 || !strings.Contains(fmt.Sprint(answer), "KV transfer failed") {
				t.Errorf("%d %v", status, answer)
			}
		})
	}
	short := nixlEngine(t, httpapi.RolePrefill, time.Nanosecond)
	if status, answer := decodeWith(t, d, prompt, prefilled(t, short, prompt)); status != 500 {
		t.Errorf("expired blocks: %d %v", status, answer)
	}
	if stats := short.Stats(); stats.UsedBlocks != 0 {
		t.Errorf("%d expired blocks are held", stats.UsedBlocks)
	}
	restarted := prefilled(t, p, prompt)
	if err := p.Restart(); err != nil {
		t.Fatal(err)
	}
	if status, answer := decodeWith(t, d, prompt, restarted); status != 500 {
		t.Errorf("blocks of an engine that restarted: %d %v", status, answer)
	}
}

// TestBootstrapNeedsItsOtherSide calls SGLang engines in ways that cannot work.
func TestBootstrapNeedsItsOtherSide(t *testing.T) {
	p := start(t, engine.Config{NoEvents: true, Runtime: httpapi.SGLang, Role: httpapi.RolePrefill})
	d := start(t, engine.Config{NoEvents: true, Runtime: httpapi.SGLang, Role: httpapi.RoleDecode})
	for name, e := range map[string]*engine.Engine{"prefill": p, "decode": d} {
		if status, _ := call(t, "POST", e.URL()+"/v1/completions", completionWith("alone", "")); status != 400 {
			t.Errorf("a %s engine serves a whole request: %d", name, status)
		}
	}
	members := `,"bootstrap_host":"127.0.0.1","bootstrap_port":1,"bootstrap_room":5`
	if status, _ := call(t, "POST", d.URL()+"/v1/completions", completionWith("nobody there", members)); status != 500 {
		t.Errorf("a decode engine without its prefill engine: %d", status)
	}
	_, port, _ := strings.Cut(p.BootstrapAddress(), ":")
	members = `,"bootstrap_host":"127.0.0.1","bootstrap_port":` + port + `,"bootstrap_room":6`
	done := make(chan int, 1)
	go func() {
		status, _ := call(t, "POST", p.URL()+"/v1/completions", completionWith("meet", members))
		done <- status
	}()
	if status, answer := call(t, "POST", d.URL()+"/v1/completions", completionWith("meet", members+`,"disagg_prefill_dp_rank":3`)); status != 500 {
		t.Errorf("a rank that does not have the request: %d %v", status, answer)
	}
	if status := <-done; status == 200 && d.Stats().GeneratedTokens > 0 {
		t.Error("the request went on all the same")
	}
}
