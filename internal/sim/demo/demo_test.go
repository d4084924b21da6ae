// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/inferencecache/inference-cache/internal/sim/engine"
	"github.com/inferencecache/inference-cache/internal/sim/sched"
	"github.com/inferencecache/inference-cache/internal/sim/tinymodel"
	"github.com/inferencecache/inference-cache/internal/sim/workload"
)

// childVariable makes this test binary play a sim-engine process.
const childVariable = "DEMO_TEST_CHILD"

func TestMain(m *testing.M) {
	if mode := os.Getenv(childVariable); mode != "" {
		playChild(mode)
		return
	}
	goleak.VerifyTestMain(m)
}

func playChild(mode string) {
	if mode == "mute" {
		return
	}
	fmt.Println(`{"http":"http://127.0.0.1:1","events":"tcp://127.0.0.1:2","replay":"tcp://127.0.0.1:3"}`)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// local is an engine inside the test.
type local struct{ *engine.Engine }

func (l local) Addresses() Addresses {
	return Addresses{HTTP: l.URL(), Events: l.EventsEndpoint(), Replay: l.ReplayEndpoint()}
}

func (l local) Close() error {
	l.Engine.Close()
	return nil
}

// fleet launches engines inside the test and routes to them.
type fleet struct {
	mu      sync.Mutex
	engines map[string]*engine.Engine // by URL
}

func (f *fleet) launch(ctx context.Context, config engine.Config) (Engine, error) {
	e, err := engine.Start(ctx, config)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.engines[e.URL()] = e
	return local{e}, nil
}

// router is a Route that asks the engines themselves what they hold.
type router struct {
	server *httptest.Server
	fleet  *fleet
	policy string

	mu   sync.Mutex
	next int
	urls []string
}

func (f *fleet) front(policies map[string]string) Front {
	return func(_ context.Context, policy string, engines []Addresses) (Route, error) {
		r := &router{fleet: f, policy: policies[policy]}
		for _, e := range engines {
			r.urls = append(r.urls, e.HTTP)
		}
		r.server = httptest.NewServer(r)
		return r, nil
	}
}

func (r *router) URL() string { return r.server.URL }

func (r *router) Close() error {
	r.server.Close()
	return nil
}

func (r *router) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	target, reason := r.choose(body)
	if target == "" {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	parsed, _ := url.Parse(target)
	request.Body = io.NopCloser(bytes.NewReader(body))
	w.Header().Set("X-Inference-Cache-Replica", parsed.Host)
	w.Header().Set("X-Inference-Cache-Reason", reason)
	proxy := httputil.NewSingleHostReverseProxy(parsed)
	proxy.FlushInterval = -1
	proxy.Transport = &http.Transport{DisableKeepAlives: true}
	proxy.ServeHTTP(w, request)
}

func (r *router) choose(body []byte) (target, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	target, reason = r.urls[r.next%len(r.urls)], "origin=policy"
	switch r.policy {
	case "broken":
		return "", ""
	case "exact":
		var chat struct{ Messages []tinymodel.Message }
		if json.Unmarshal(body, &chat) != nil {
			return target, reason
		}
		prompt := tinymodel.Chat(chat.Messages, nil, true)
		best := 0
		for candidate, e := range r.fleet.engines {
			if held := e.HoldsPrefix(prompt); held > best {
				target, reason, best = candidate, "origin=index_hint; branch=hit; code=PREFIX_MATCH", held
			}
		}
	}
	return target, reason
}

var quick = Options{
	Engines:  3,
	Engine:   engine.Config{Scheduler: sched.Config{CapacityBlocks: 1024}, Timing: sched.Timing{Speed: 50}},
	Workload: workload.Config{Duration: 300 * time.Millisecond, Pause: 60 * time.Millisecond, Conversations: 24, SystemPrompts: 6},
}

func TestRun(t *testing.T) {
	exact := map[string]string{CacheAware: "exact"}
	unique := quick
	unique.Workload.Unique = true
	cases := map[string]struct {
		options    Options
		policies   map[string]string
		wantGood   bool
		wantFailed bool
		wantWords  []string
	}{
		"a router that follows prefixes is good": {quick, exact, true, false, []string{
			"cache-aware", "Three decisions", "because the index knew that its prefix was there",
		}},
		"round robin twice is not": {quick, nil, false, false, []string{"Not good"}},
		"nothing to reuse is good": {unique, exact, true, false, []string{"of 0 reusable"}},
		"a router that fails is not": {
			quick, map[string]string{CacheAware: "broken"}, false, true, []string{"requests failed, the first with: 502"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			f := &fleet{engines: map[string]*engine.Engine{}}
			options := tc.options
			options.Launch, options.Front = f.launch, f.front(tc.policies)
			var last Progress
			var mu sync.Mutex
			options.Progress = func(p Progress) {
				mu.Lock()
				defer mu.Unlock()
				last = p
			}
			report, err := Run(t.Context(), options)
			if err != nil {
				t.Fatal(err)
			}
			var text bytes.Buffer
			if err := report.WriteText(&text); err != nil {
				t.Fatal(err)
			}
			if report.Good != tc.wantGood || (report.Phases[1].Failed > 0) != tc.wantFailed {
				t.Errorf("good %v, want %v:\n%s", report.Good, tc.wantGood, &text)
			}
			for _, words := range tc.wantWords {
				if !strings.Contains(text.String(), words) {
					t.Errorf("the report does not say %q:\n%s", words, &text)
				}
			}
			for _, phase := range report.Phases {
				// A preempted request computes some tokens twice.
				complete := phase.ReusedTokens+phase.ComputedTokens >= report.PromptTokens
				if !phase.UsageTokensMatch || !complete && !tc.wantFailed {
					t.Errorf("%s: %d reused and %d computed of %d prompt tokens, usage matches %v",
						phase.Policy, phase.ReusedTokens, phase.ComputedTokens, report.PromptTokens, phase.UsageTokensMatch)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if last.Policy != CacheAware || last.Total != report.Requests {
				t.Errorf("last progress %+v", last)
			}
		})
	}
}

// The real router must answer every request under both policies; how much it
// reuses depends on the machine and is not checked here.
func TestRunWithUp(t *testing.T) {
	f := &fleet{engines: map[string]*engine.Engine{}}
	options := quick
	options.Launch, options.Front = f.launch, Up(nil)
	report, err := Run(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	for _, phase := range report.Phases {
		if phase.Failed > 0 || !phase.UsageTokensMatch {
			t.Errorf("%s: %+v", phase.Policy, phase)
		}
	}
	for _, example := range report.Examples {
		if example.Replica == "" || example.Reason == "" {
			t.Errorf("the router does not say where and why: %+v", example)
		}
	}
	if len(report.Examples) != 3 {
		t.Errorf("%d examples, want 3", len(report.Examples))
	}
}

func TestRunPassesErrorsOn(t *testing.T) {
	failure := errors.New("no such thing")
	f := &fleet{engines: map[string]*engine.Engine{}}
	cases := map[string]Options{
		"launching": {
			Launch: func(context.Context, engine.Config) (Engine, error) { return nil, failure },
			Front:  f.front(nil),
		},
		"the router": {
			Launch: f.launch,
			Front:  func(context.Context, string, []Addresses) (Route, error) { return nil, failure },
		},
	}
	for name, options := range cases {
		t.Run(name, func(t *testing.T) {
			options.Engine, options.Workload = quick.Engine, quick.Workload
			if _, err := Run(t.Context(), options); !errors.Is(err, failure) {
				t.Errorf("error %v", err)
			}
		})
	}
	if _, err := Run(t.Context(), Options{}); err == nil {
		t.Error("a run without engines and router gave no error")
	}
}

func child(t *testing.T, mode string) *exec.Cmd {
	t.Helper()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(executable)
	command.Env = append(os.Environ(), childVariable+"="+mode)
	return command
}

func TestProcess(t *testing.T) {
	p, err := startProcess(t.Context(), child(t, "engine"))
	if err != nil {
		t.Fatal(err)
	}
	want := Addresses{HTTP: "http://127.0.0.1:1", Events: "tcp://127.0.0.1:2", Replay: "tcp://127.0.0.1:3"}
	if p.Addresses() != want {
		t.Errorf("addresses %+v", p.Addresses())
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if _, err := startProcess(t.Context(), child(t, "mute")); err == nil {
		t.Error("a process without addresses gave no error")
	}
	if _, err := startProcess(t.Context(), exec.Command("/does/not/exist")); err == nil {
		t.Error("a missing executable gave no error")
	}
}

func TestThousands(t *testing.T) {
	cases := map[string]struct {
		n    int
		want string
	}{
		"small":   {7, "7"},
		"one":     {1234, "1,234"},
		"several": {12345678, "12,345,678"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := thousands(tc.n); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}
