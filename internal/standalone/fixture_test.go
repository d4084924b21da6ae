// SPDX-License-Identifier: Apache-2.0

package standalone

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/inferencecache/inference-cache/internal/sim/engine"
	"github.com/inferencecache/inference-cache/internal/sim/eventsock"
	"github.com/inferencecache/inference-cache/internal/sim/sched"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fleet is `up` in front of simulated engines.
type fleet struct {
	t       *testing.T
	up      *Standalone
	engines []*engine.Engine
	client  *http.Client
	key     string // shown to the gateway unless empty
	logs    *logBuffer
	stop    context.CancelFunc
	stopped chan error
}

// logBuffer collects log lines of several goroutines.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// fastEngine answers almost at once.
func fastEngine() engine.Config {
	return engine.Config{
		Timing:    sched.Timing{PrefillTokensPerSecond: 1e6, DecodeStep: time.Millisecond},
		Scheduler: sched.Config{BlockSize: 16, CapacityBlocks: 512},
	}
}

func startEngine(t *testing.T, config engine.Config) *engine.Engine {
	t.Helper()
	started, err := engine.Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(started.Close)
	return started
}

// engineConfig describes a running engine as a user would.
func engineConfig(e *engine.Engine) Engine {
	config := Engine{URL: e.URL(), Events: e.EventsEndpoint()}
	if replay := e.ReplayEndpoint(); replay != "" && replay != eventsock.NoReplay {
		config.Replay = replay
	}
	return config
}

func startFleet(t *testing.T, engines ...*engine.Engine) *fleet {
	t.Helper()
	return startGuardedFleet(t, Access{}, engines...)
}

func startGuardedFleet(t *testing.T, access Access, engines ...*engine.Engine) *fleet {
	t.Helper()
	config := Config{Access: access, Routing: Routing{ExposeReplica: true, LookupTimeout: Duration(time.Second)}}
	for _, e := range engines {
		config.Engines = append(config.Engines, engineConfig(e))
	}
	f := startUp(t, config)
	f.engines = engines
	f.awaitReady()
	return f
}

func startUp(t *testing.T, config Config) *fleet {
	t.Helper()
	return startUpWith(t, config, Deps{})
}

func startUpWith(t *testing.T, config Config, deps Deps) *fleet {
	t.Helper()
	config.Listen, config.Admin, config.GRPC = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	config.Tokenizer.Timeout = Duration(2 * time.Second) // slow machines are no finding here
	if config.Tokenizer.Parity == "" {
		config.Tokenizer.Parity = "off" // tests count what engines get
	}
	f := &fleet{t: t, logs: &logBuffer{}, stopped: make(chan error, 1)}
	logger := slog.New(slog.NewTextHandler(f.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	deps.Logger = logger
	up, err := New(config, deps)
	if err != nil {
		t.Fatal(err)
	}
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	f.up, f.stop = up, stop
	f.client = &http.Client{Transport: &http.Transport{}, Timeout: 30 * time.Second}
	go func() { f.stopped <- up.Run(ctx) }()
	t.Cleanup(func() {
		f.client.CloseIdleConnections()
		stop()
		if err := <-f.stopped; err != nil {
			t.Errorf("run: %v", err)
		}
		if t.Failed() {
			t.Logf("logs:\n%s", f.logs)
		}
	})
	return f
}

// awaitReady waits until every engine may be chosen and followed.
func (f *fleet) awaitReady() {
	f.t.Helper()
	eventually(f.t, 20*time.Second, "all engines ready and followed", func() bool {
		for _, replica := range f.up.gateway.State().Replicas {
			if !replica.Ready {
				return false
			}
		}
		for _, p := range f.up.followers.publishers() {
			if status := p.Status(); !status.Ready() || !status.Settled() {
				return false
			}
		}
		return true
	})
}

// eventually polls a condition that other goroutines make true.
func eventually(t *testing.T, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(limit)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline:
			t.Fatalf("not within %s: %s", limit, what)
		case <-tick.C:
		}
	}
}

// answer is what a client sees of a response.
type answer struct {
	status          int
	replica, reason string
	body            string
	promptTokens    int
	cachedTokens    int
	errorCode       string
}

// complete sends a completion; extra overrides body fields.
func (f *fleet) complete(prompt any, extra map[string]any) answer {
	f.t.Helper()
	body := map[string]any{"model": "sim", "prompt": prompt, "max_tokens": 1}
	for key, value := range extra {
		body[key] = value
	}
	return f.post("/v1/completions", body)
}

func (f *fleet) post(path string, body any) answer {
	f.t.Helper()
	data, ok := body.(string)
	if !ok {
		encoded, err := json.Marshal(body)
		if err != nil {
			f.t.Fatal(err)
		}
		data = string(encoded)
	}
	request, err := http.NewRequestWithContext(f.t.Context(), http.MethodPost, "http://"+f.up.Addresses().Gateway+path, strings.NewReader(data))
	if err != nil {
		f.t.Fatal(err)
	}
	if f.key != "" {
		request.Header.Set("Authorization", "Bearer "+f.key)
	}
	response, err := f.client.Do(request)
	if err != nil {
		f.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	var parsed struct {
		Usage struct {
			PromptTokens  int `json:"prompt_tokens"`
			PromptDetails struct {
				CachedTokens int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
		Error struct{ Code string }
	}
	_ = json.Unmarshal(text, &parsed) // streams are no JSON
	return answer{
		status:       response.StatusCode,
		replica:      response.Header.Get("x-inference-cache-replica"),
		reason:       response.Header.Get("x-inference-cache-reason"),
		body:         string(text),
		promptTokens: parsed.Usage.PromptTokens,
		cachedTokens: parsed.Usage.PromptDetails.CachedTokens,
		errorCode:    parsed.Error.Code,
	}
}

func (f *fleet) get(path string) (status int, body string) {
	f.t.Helper()
	response, err := f.client.Get("http://" + f.up.Addresses().Admin + path)
	if err != nil {
		f.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// awaitKeys waits until the index holds exactly so many blocks.
func (f *fleet) awaitKeys(want int64) {
	f.t.Helper()
	eventually(f.t, 10*time.Second, "the index holds the expected blocks", func() bool {
		return f.metric("inferencecache_index_keys") == float64(want)
	})
}

// metric sums the series of a family on the metrics page.
func (f *fleet) metric(name string) float64 {
	f.t.Helper()
	sum := 0.0
	for _, family := range f.gather() {
		if family.GetName() != name {
			continue
		}
		for _, series := range family.GetMetric() {
			sum += series.GetGauge().GetValue() + series.GetCounter().GetValue()
		}
	}
	return sum
}

// text returns n distinct words; equal seeds give equal text.
func text(seed string, bytes int) string {
	return strings.Repeat(seed+" ", bytes/(len(seed)+1)+1)[:bytes]
}
