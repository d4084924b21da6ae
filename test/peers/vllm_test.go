// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	vllmModel     = "tiny"
	vllmBlockSize = 32 // its CPU attention takes multiples of 32 only
	vllmBlocks    = 96
	// vllmStart is how long an engine may take to start on a busy machine.
	vllmStart = 15 * time.Minute
)

// vllmEngine is one real engine.
type vllmEngine struct {
	engineAddresses
	process *process
	replica string
}

// requireVLLM returns the interpreter that has vLLM. hack/peers-vllm.sh sets
// it, and ends before the tests where vLLM cannot be installed.
func requireVLLM(t *testing.T) (python, binary string) {
	t.Helper()
	if os.Getenv("INFERENCECACHE_VLLM_PYTHON") == "" {
		t.Skip("needs vLLM: run make e2e-vllm")
	}
	return requireFile(t, "INFERENCECACHE_VLLM_PYTHON"), requireFile(t, "INFERENCECACHE_BINARY")
}

// freePort returns a TCP port nobody listened on a moment ago: the engine
// cannot tell a port it chose itself.
func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// startVLLM starts an engine without waiting for it. Its event sockets are
// on ports of its own choice, which it tells when asked.
func startVLLM(t *testing.T, python, model, name, core string) *vllmEngine {
	t.Helper()
	events, err := json.Marshal(map[string]any{
		"enable_kv_cache_events": true,
		"publisher":              "zmq",
		"endpoint":               "tcp://*:0",
		"replay_endpoint":        "tcp://*:0",
		"topic":                  "kv@" + name + "@" + vllmModel,
	})
	if err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	// The module is used because the package's own command looks up the
	// version of a package called vllm, which an independent build is not.
	cmd := exec.Command("nice", "-n", "15", python, "-m", "vllm.entrypoints.openai.api_server",
		"--model", model, "--served-model-name", vllmModel, "--load-format", "dummy", "--dtype", "float32",
		"--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "4", "--max-num-batched-tokens", "512",
		"--block-size", fmt.Sprint(vllmBlockSize), "--num-gpu-blocks-override", fmt.Sprint(vllmBlocks),
		"--kv-cache-memory-bytes", "33554432", "--enable-prefix-caching", "--prefix-caching-hash-algo", "sha256_cbor",
		"--enable-prompt-tokens-details", "--host", "127.0.0.1", "--port", port, "--kv-events-config", string(events))
	cmd.Env = append(os.Environ(), "PYTHONHASHSEED=0", "HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1",
		"VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1", "OTEL_SDK_DISABLED=true", "VLLM_TARGET_DEVICE=cpu",
		"VLLM_SERVER_DEV_MODE=1", "VLLM_HOST_IP=127.0.0.1", "VLLM_LOOPBACK_IP=127.0.0.1",
		"OMP_NUM_THREADS=1", "VLLM_CPU_OMP_THREADS_BIND="+core)
	address := net.JoinHostPort("127.0.0.1", port)
	return &vllmEngine{
		engineAddresses: engineAddresses{HTTP: "http://" + address},
		process:         startProcess(t, "vLLM "+name, cmd, nil),
		replica:         address,
	}
}

// waitReady waits until the engine serves, and learns its event sockets.
func (e *vllmEngine) waitReady(t *testing.T) {
	t.Helper()
	eventually(t, vllmStart, e.process.name+" serves", func(ctx context.Context) bool {
		if e.process.ended() {
			t.Fatalf("%s ended while it started", e.process.name)
		}
		return status(ctx, e.HTTP+"/health") == http.StatusOK
	})
	response, err := http.Get(e.HTTP + "/kv_event_sources")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var byRank map[string]struct {
		Endpoint string `json:"endpoint"`
		Replay   string `json:"replay_endpoint"`
	}
	if err := json.NewDecoder(response.Body).Decode(&byRank); err != nil {
		t.Fatalf("event sources of %s: %v", e.process.name, err)
	}
	e.Events, e.Replay = byRank["0"].Endpoint, byRank["0"].Replay
	if e.Events == "" || e.Replay == "" {
		t.Fatalf("%s tells no event sockets of rank 0 among %d ranks", e.process.name, len(byRank))
	}
}

// vllmFleet is `up` in front of two engines.
type vllmFleet struct {
	*fleet
	binary string
	a, b   *vllmEngine
}

func startVLLMFleet(t *testing.T) *vllmFleet {
	t.Helper()
	python, binary := requireVLLM(t)
	model := filepath.Join(t.TempDir(), "model")
	if output, code := runProgram(t, time.Minute, exec.Command(python, "tinymodel/generate.py", model)); code != 0 {
		t.Fatalf("generating the model: exit code %d\n%s", code, output)
	}
	a := startVLLM(t, python, model, "a", "0")
	b := startVLLM(t, python, model, "b", "1")
	a.waitReady(t)
	b.waitReady(t)
	return &vllmFleet{startUp(t, binary, a.engineAddresses, b.engineAddresses), binary, a, b}
}

// request is a completion that is computed to its end, deterministically.
func request(fields map[string]any) map[string]any {
	out := map[string]any{"model": vllmModel, "max_tokens": 2, "temperature": 0, "ignore_eos": true}
	for name, value := range fields {
		out[name] = value
	}
	return out
}

// text returns 320 bytes, ten blocks, that no other topic shares.
func text(topic string) string { return strings.Repeat(topic+". ", 320)[:320] }

func (f *vllmFleet) memberships(ctx context.Context, t *testing.T) float64 {
	t.Helper()
	return sum(metrics(ctx, t, f.Admin+"/metrics")["inferencecache_index_memberships"], nil)
}

// hold makes one engine compute a prompt behind the gateway's back and waits
// until the index has heard of it.
func (f *vllmFleet) hold(t *testing.T, engine *vllmEngine, prompt string) {
	t.Helper()
	want := f.storedBlocks(t.Context(), t) + float64(len(prompt)/vllmBlockSize)
	complete(t, engine.HTTP, request(map[string]any{"prompt": prompt}))
	eventually(t, 10*time.Second, "the index took the prompt in", func(ctx context.Context) bool {
		return f.storedBlocks(ctx, t) >= want
	})
}

// storedBlocks is how many blocks the index has taken in so far.
func (f *vllmFleet) storedBlocks(ctx context.Context, t *testing.T) float64 {
	t.Helper()
	return sum(metrics(ctx, t, f.Admin+"/metrics")["inferencecache_ingest_blocks_total"], map[string]string{"op": "store"})
}

func TestVLLM(t *testing.T) {
	f := startVLLMFleet(t)
	t.Run("a prefix computed elsewhere is routed to its holder", f.testHolder)
	t.Run("turns of a conversation stay with their holder", f.testConversation)
	t.Run("a salted prefix is reused under its salt only", f.testSalt)
	t.Run("evictions are followed", f.testEvictions)
	t.Run("a reset is followed", f.testReset)
	t.Run("every event was used", f.testNothingSkipped)
	t.Run("an index that starts late learns from the replay", f.testLateStart)
	t.Run("a killed engine costs its cache and no request", f.testKilled)
}

func (f *vllmFleet) testHolder(t *testing.T) {
	for n, engine := range []*vllmEngine{f.b, f.a, f.b} {
		prompt := text(fmt.Sprintf("Prompt %d is held by one engine", n))
		f.hold(t, engine, prompt)
		got := complete(t, f.Gateway, request(map[string]any{"prompt": prompt + "And what then?"}))
		if got.Replica != engine.replica || got.CachedTokens != len(prompt) {
			t.Errorf("served by %s (%s) with %d tokens reused, want %s with %d",
				got.Replica, got.Reason, got.CachedTokens, engine.replica, len(prompt))
		}
	}
}

func (f *vllmFleet) testConversation(t *testing.T) {
	holders := map[string]bool{}
	for n := range 6 {
		messages := []chatMessage{{"system", fmt.Sprintf("%d is the number of this talk.", n)}, {"user", text("Go on")[:100]}}
		first := complete(t, f.Gateway, request(map[string]any{"messages": messages}))
		holders[first.Replica] = true
		messages = append(messages, chatMessage{"assistant", "So it is."}, chatMessage{"user", "And then?"})
		second := complete(t, f.Gateway, request(map[string]any{"messages": messages}))
		// The generation prompt ends the first prompt and not its history.
		held := (first.PromptTokens - len("<|im_start|>assistant\n")) / vllmBlockSize * vllmBlockSize
		if second.Replica != first.Replica || second.CachedTokens < held {
			t.Errorf("talk %d: first turn at %s, second at %s (%s) with %d tokens reused, want %d or more",
				n, first.Replica, second.Replica, second.Reason, second.CachedTokens, held)
		}
	}
	if holders[""] {
		t.Error("the gateway does not tell the replica")
	}
}

func (f *vllmFleet) testSalt(t *testing.T) {
	prompt := text("A salted story")
	salted := request(map[string]any{"prompt": prompt, "cache_salt": "north"})
	first := complete(t, f.Gateway, salted)
	again := complete(t, f.Gateway, salted)
	if again.Replica != first.Replica || again.CachedTokens < len(prompt)-vllmBlockSize {
		t.Errorf("first at %s, again at %s (%s) with %d tokens reused", first.Replica, again.Replica, again.Reason, again.CachedTokens)
	}
	for _, salt := range []string{"", "south"} {
		other := request(map[string]any{"prompt": prompt})
		if salt != "" {
			other["cache_salt"] = salt
		}
		if got := complete(t, f.Gateway, other); got.CachedTokens != 0 || got.Reason == "PREFIX_MATCH" {
			t.Errorf("salt %q: %d tokens reused, reason %s", salt, got.CachedTokens, got.Reason)
		}
	}
}

// testEvictions overfills one engine: the index may never hold more of it
// than its pool has blocks.
func (f *vllmFleet) testEvictions(t *testing.T) {
	evicted := text("Soon forgotten")
	f.hold(t, f.a, evicted)
	for n := range 2 * vllmBlocks / 10 {
		complete(t, f.a.HTTP, request(map[string]any{"prompt": text(fmt.Sprintf("Filler %d", n))}))
	}
	last := text("The last one")
	complete(t, f.a.HTTP, request(map[string]any{"prompt": last}))
	eventually(t, 10*time.Second, "the index holds no more than the pools", func(ctx context.Context) bool {
		held := f.memberships(ctx, t)
		return held > 0 && held <= 2*vllmBlocks
	})
	if got := complete(t, f.Gateway, request(map[string]any{"prompt": last + "?"})); got.Replica != f.a.replica || got.CachedTokens != len(last) {
		t.Errorf("the last prompt went to %s (%s) with %d tokens reused", got.Replica, got.Reason, got.CachedTokens)
	}
	if got := complete(t, f.Gateway, request(map[string]any{"prompt": evicted + "?"})); got.Reason == "PREFIX_MATCH" {
		t.Errorf("an evicted prompt was matched, %d tokens reused", got.CachedTokens)
	}
}

// testReset clears an engine's cache; the engine tells with its next request.
func (f *vllmFleet) testReset(t *testing.T) {
	prompt := text("Gone with the reset")
	f.hold(t, f.b, prompt)
	response, err := http.Post(f.b.HTTP+"/reset_prefix_cache", "application/json", nil)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	before := f.memberships(t.Context(), t)
	complete(t, f.b.HTTP, request(map[string]any{"prompt": "One step makes the engine tell."}))
	eventually(t, 10*time.Second, "the index dropped what was cleared", func(ctx context.Context) bool {
		return f.memberships(ctx, t) < before
	})
	if got := complete(t, f.Gateway, request(map[string]any{"prompt": prompt + "?"})); got.CachedTokens != 0 || got.Reason == "PREFIX_MATCH" {
		t.Errorf("a cleared prompt was matched: %s, %d tokens reused", got.Reason, got.CachedTokens)
	}
}

func (f *vllmFleet) testNothingSkipped(t *testing.T) {
	families := metrics(t.Context(), t, f.Admin+"/metrics")
	for _, kind := range []string{"stored", "removed", "cleared"} {
		if sum(families["inferencecache_publisher_events_total"], map[string]string{"type": kind}) == 0 {
			t.Errorf("no event of type %s was counted", kind)
		}
	}
	for _, name := range []string{
		"inferencecache_publisher_events_skipped_total", "inferencecache_publisher_unknown_fields_total",
		"inferencecache_publisher_gaps_total", "inferencecache_ingest_dropped_total",
	} {
		if total := sum(families[name], nil); total != 0 {
			t.Errorf("%s is %v: %v", name, total, families[name].GetMetric())
		}
	}
}

// testLateStart puts a second `up` in front of the same engines.
func (f *vllmFleet) testLateStart(t *testing.T) {
	prompt := text("Older than the index")
	f.hold(t, f.b, prompt)
	late := startUp(t, f.binary, f.a.engineAddresses, f.b.engineAddresses)
	got := complete(t, late.Gateway, request(map[string]any{"prompt": prompt + "?"}))
	if got.Replica != f.b.replica || got.CachedTokens != len(prompt) {
		t.Errorf("served by %s (%s) with %d tokens reused, want %s with %d",
			got.Replica, got.Reason, got.CachedTokens, f.b.replica, len(prompt))
	}
}

func (f *vllmFleet) testKilled(t *testing.T) {
	prompt := text("Lost with its engine")
	f.hold(t, f.b, prompt)
	f.b.process.signalGroup(syscall.SIGKILL)
	for n := range 5 {
		if got := complete(t, f.Gateway, request(map[string]any{"prompt": prompt + "?"})); got.Replica != f.a.replica {
			t.Errorf("request %d was answered by %s, want %s", n, got.Replica, f.a.replica)
		}
	}
}
