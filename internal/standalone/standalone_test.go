// SPDX-License-Identifier: Apache-2.0

package standalone

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/sim/engine"
	"github.com/inferencecache/inference-cache/internal/sim/sched"
)

const hit = "origin=index_hint; branch=hit; code=PREFIX_MATCH"

func TestRequestsGoToTheHolderOfTheirPrefix(t *testing.T) {
	f := startFleet(t, startEngine(t, fastEngine()), startEngine(t, fastEngine()), startEngine(t, fastEngine()))
	prompt := text("a conversation", 640)
	first := f.complete(prompt, nil)
	if first.status != http.StatusOK || first.cachedTokens != 0 {
		t.Fatalf("first request: %+v", first)
	}
	f.awaitKeys(40)
	for turn := range 4 {
		prompt += text("one more turn", 160)
		got := f.complete(prompt, nil)
		if got.replica != first.replica || got.reason != hit {
			t.Errorf("turn %d: replica %s for reason %q, want %s for %q", turn, got.replica, got.reason, first.replica, hit)
		}
		if got.cachedTokens < len(prompt)-160-16 {
			t.Errorf("turn %d: the engine reused %d of %d tokens", turn, got.cachedTokens, got.promptTokens)
		}
		f.awaitKeys(int64(len(prompt) / 16))
	}
}

func TestNoEngines(t *testing.T) {
	f := startUp(t, Config{})
	started := time.Now()
	got := f.complete("hello", nil)
	if got.status != http.StatusServiceUnavailable || got.errorCode != "no_ready_replica" {
		t.Errorf("answer %+v, want 503 no_ready_replica", got)
	}
	if took := time.Since(started); took > 5*time.Second {
		t.Errorf("the client waited %s", took)
	}
}

func TestUnreachableEngineIsUsedOnceItAppears(t *testing.T) {
	// Ports that are free until the engine takes them.
	late := startEngine(t, fastEngine())
	config := engineConfig(late)
	late.Kill()

	f := startUp(t, Config{Engines: []Engine{config}, Routing: Routing{ExposeReplica: true}})
	if got := f.complete("hello", nil); got.status != http.StatusServiceUnavailable || got.errorCode != "no_ready_replica" {
		t.Fatalf("answer %+v, want 503 no_ready_replica", got)
	}
	eventually(t, 15*time.Second, "ready in spite of the engine", func() bool {
		status, _ := f.get("/readyz")
		return status == http.StatusOK
	})
	if err := late.Restart(); err != nil {
		t.Fatal(err)
	}
	f.awaitReady()
	prompt := text("late", 320)
	if got := f.complete(prompt, nil); got.status != http.StatusOK {
		t.Fatalf("answer %+v, want 200", got)
	}
	f.awaitKeys(20)
	if logs := f.logs.String(); !strings.Contains(logs, "waiting for the engine") {
		t.Errorf("no log line says what is waited for:\n%s", logs)
	}
}

func TestOtherIdentitiesNeverMatch(t *testing.T) {
	config := fastEngine()
	config.Adapters = []string{"lora-a", "lora-b"}
	other := fastEngine()
	other.Adapters = config.Adapters
	f := startFleet(t, startEngine(t, config), startEngine(t, other))

	partA, partB := text("the first half", 320), text("another half", 320)
	prompt := partA + partB
	if got := f.complete(prompt, nil); got.status != http.StatusOK {
		t.Fatalf("first request: %+v", got)
	}
	f.awaitKeys(40)
	if got := f.complete(prompt, nil); got.reason != hit {
		t.Fatalf("the same prompt again: reason %q, want %q", got.reason, hit)
	}
	for name, tc := range map[string]struct {
		prompt string
		extra  map[string]any
	}{
		"the halves swapped": {partB + partA, nil},
		"one adapter":        {prompt, map[string]any{"model": "lora-a"}},
		"another adapter":    {prompt, map[string]any{"model": "lora-b"}},
		"a salt":             {prompt, map[string]any{"cache_salt": "salt-1"}},
		"another salt":       {prompt, map[string]any{"cache_salt": "salt-2"}},
	} {
		if got := f.complete(tc.prompt, tc.extra); got.status != http.StatusOK || strings.Contains(got.reason, "PREFIX_MATCH") || got.cachedTokens != 0 {
			t.Errorf("%s: %+v, want no match and nothing cached", name, got)
		}
	}
	f.awaitKeys(40 * 6)
	for name, extra := range map[string]map[string]any{
		"the adapter":      {"model": "lora-a"},
		"the first salt":   {"cache_salt": "salt-1"},
		"no salt, as base": {},
	} {
		if got := f.complete(prompt, extra); got.reason != hit || got.cachedTokens == 0 {
			t.Errorf("%s again: %+v, want a hit", name, got)
		}
	}
}

// A restarted engine has an empty cache. Within a second of its first new
// event nothing of its old life may be hinted.
func TestRestartedEngineIsNotHintedForItsOldLife(t *testing.T) {
	random := fastEngine()
	random.HashSeed = engine.RandomHashSeed
	f := startFleet(t, startEngine(t, random))
	old := text("before the restart", 640)
	f.complete(old, nil)
	f.awaitKeys(40)

	restarted := f.engines[0]
	restarted.Kill()
	if err := restarted.Restart(); err != nil {
		t.Fatal(err)
	}
	f.awaitReady()
	eventually(t, 10*time.Second, "an answer of the new life", func() bool {
		return f.complete(text("after the restart", 160), nil).status == http.StatusOK
	})
	firstEvent := time.Now()
	f.awaitKeys(10)
	if took := time.Since(firstEvent); took > time.Second {
		t.Errorf("the old life was forgotten after %s, want at most 1s", took)
	}
	if got := f.complete(old, nil); strings.Contains(got.reason, "PREFIX_MATCH") || got.cachedTokens != 0 {
		t.Errorf("the old prompt: %+v, want no match", got)
	}
}

func TestFlushedEngineIsNotHinted(t *testing.T) {
	f := startFleet(t, startEngine(t, fastEngine()), startEngine(t, fastEngine()))
	prompt := text("to be flushed", 640)
	first := f.complete(prompt, nil)
	f.awaitKeys(40)
	for _, e := range f.engines {
		eventually(t, 5*time.Second, "an idle engine", e.ResetCache)
		e.Flush()
	}
	f.awaitKeys(0)
	if got := f.complete(prompt, nil); strings.Contains(got.reason, "PREFIX_MATCH") {
		t.Errorf("after the flush of %s: %+v, want no match", first.replica, got)
	}
}

func TestAdminPages(t *testing.T) {
	f := startFleet(t, startEngine(t, fastEngine()), startEngine(t, fastEngine()))
	f.complete(text("a page", 160), nil)
	eventually(t, 15*time.Second, "ready", func() bool {
		status, _ := f.get("/readyz")
		return status == http.StatusOK
	})
	for path, want := range map[string]string{
		"/healthz":        "ok",
		"/readyz?verbose": "in step with the index: true",
		"/debug/state":    `"breaker"`,
	} {
		if status, body := f.get(path); status != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %q, want 200 with %q", path, status, body, want)
		}
	}
	_, page := f.get("/metrics")
	for _, series := range []string{
		`inferencecache_build_info{`,
		`inferencecache_publisher_engine_connected{rank="0",replica_id="`,
		`inferencecache_lookup_route_calls_total{`,
		`inferencecache_gateway_requests_total{`,
		`go_goroutines`,
	} {
		if !strings.Contains(page, series) {
			t.Errorf("/metrics lacks %s", series)
		}
	}
}

// What a prompt says must stay between client, gateway and engine.
// Readiness is about this process: without engines it still has to be there to
// tell clients so, with a 503 that says when to try again.
func TestStaysReadyWithoutEngines(t *testing.T) {
	f := startFleet(t, startEngine(t, fastEngine()), startEngine(t, fastEngine()))
	ready := func(want string) func() bool {
		return func() bool {
			status, body := f.get("/readyz?verbose")
			return status == http.StatusOK && strings.Contains(body, want)
		}
	}
	eventually(t, 15*time.Second, "ready", ready("replicas: 2 of 2 ready"))
	for _, e := range f.engines {
		e.Close()
	}
	eventually(t, 15*time.Second, "all engines are gone, and that is shown", ready("replicas: 0 of 2 ready"))
	if got := f.complete(text("nobody", 160), nil); got.status != http.StatusServiceUnavailable || got.errorCode != "no_ready_replica" {
		t.Errorf("answer %+v, want 503 no_ready_replica", got)
	}
	if !ready("ok\n")() {
		t.Error("not ready any more")
	}
}

func TestPromptsAppearInNoLogOrMetric(t *testing.T) {
	f := startFleet(t, startEngine(t, fastEngine()), startEngine(t, fastEngine()))
	const canary = "xylophone-canary-4711"
	prompt := text(canary, 320)
	f.complete(prompt, nil)
	f.complete(prompt, nil)
	ids := f.complete([]int{120, 121, 108, 111, 112, 104, 111, 110, 101, 45, 99, 97, 110, 97, 114, 121, 45, 52, 55, 49, 49}, nil)
	if ids.status != http.StatusOK {
		t.Errorf("token ids as prompt: %+v", ids)
	}
	f.post("/v1/completions", `{"model":"sim","prompt":"`+canary+`",`)
	f.complete(prompt, map[string]any{"model": "no-such-model"})
	f.awaitKeys(20) // the ids are the text's first block
	_, page := f.get("/metrics")
	_, state := f.get("/debug/state")
	for where, text := range map[string]string{"logs": f.logs.String(), "metrics": page, "state": state} {
		for _, secret := range []string{canary, "120 121 108", "120,121,108"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s hold %q", where, secret)
			}
		}
	}
}

func TestShutdownWithAnOpenStreamEndsInTime(t *testing.T) {
	slow := fastEngine()
	slow.Timing = sched.Timing{DecodeStep: 200 * time.Millisecond}
	f := startFleet(t, startEngine(t, slow))
	body := `{"model":"sim","prompt":"tell me","max_tokens":500,"stream":true}`
	response, err := f.client.Post("http://"+f.up.Addresses().Gateway+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	if !lines.Scan() {
		t.Fatal("the stream did not begin")
	}
	started := time.Now()
	f.stop()
	var rest []string
	for lines.Scan() {
		rest = append(rest, lines.Text())
	}
	if err := <-f.stopped; err != nil {
		t.Error(err)
	}
	f.stopped <- nil
	if took := time.Since(started); took > 5*time.Second {
		t.Errorf("shutdown took %s, want at most 5s", took)
	}
	if all := strings.Join(rest, "\n"); !strings.Contains(all, `"error"`) || strings.Contains(all, "[DONE]") {
		t.Errorf("the stream ended with %.300q, want an error event and no [DONE]", all[max(0, len(all)-300):])
	}
}

func TestStartFailsCleanly(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for name, change := range map[string]func(*Config){
		"gateway": func(c *Config) { c.Listen = taken.Addr().String() },
		"admin":   func(c *Config) { c.Admin = taken.Addr().String() },
		"grpc":    func(c *Config) { c.GRPC = taken.Addr().String() },
	} {
		config := Config{Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", GRPC: "127.0.0.1:0"}
		change(&config)
		up, err := New(config, Deps{})
		if err != nil {
			t.Fatal(err)
		}
		if err := up.Start(); err == nil || !strings.Contains(err.Error(), "address already in use") {
			t.Errorf("%s address taken: error %v", name, err)
		}
	}
}

func TestRunEndsWhenItsContextHasEnded(t *testing.T) {
	up, err := New(Config{Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", GRPC: "127.0.0.1:0"}, Deps{})
	if err != nil {
		t.Fatal(err)
	}
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := up.Run(ctx); err != nil {
		t.Error(err)
	}
}
