// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/gateway"
)

// ids lists the replicas the gateway knows, with what is special about them.
func (f *fixture) ids() string {
	var out []string
	for _, r := range f.State().Replicas {
		name := r.ID
		if r.Draining {
			name += "(draining)"
		}
		out = append(out, name)
	}
	return strings.Join(out, " ")
}

// open begins a stream and reads its first event.
func (f *fixture) open() io.ReadCloser {
	f.t.Helper()
	response, err := f.client.Post(f.url+"/v1/completions", "application/json", strings.NewReader(streamBody))
	if err != nil {
		f.t.Fatal(err)
	}
	if _, err := io.ReadFull(response.Body, make([]byte, len("data: 1\n\n"))); err != nil {
		f.t.Fatal(err)
	}
	return response.Body
}

// held is an engine whose streams end when release is closed.
func held(t *testing.T, id string) (e *engine, release chan struct{}) {
	release = make(chan struct{})
	return newEngine(t, id, func(e *engine) {
		e.generate = events(event("data: 1\n\n"), func(w io.Writer, r *http.Request) {
			select {
			case <-release:
			case <-r.Context().Done():
			}
			_, _ = io.WriteString(w, "data: [DONE]\n\n")
		})
	}), release
}

func TestRemovedReplicaFinishesWhatItHas(t *testing.T) {
	a, release := held(t, "a")
	b := newEngine(t, "b")
	f := start(t, gateway.Options{Policy: "round_robin"}, a)
	stream := f.open()
	defer stream.Close()
	if err := f.SetReplicas(replicas(b)); err != nil {
		t.Fatal(err)
	}
	if got := f.ids(); got != "a(draining) b" {
		t.Errorf("replicas %q", got)
	}
	if err := f.AwaitReplicas(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if got := f.post("/v1/completions", prompt()); got.status != 200 || !strings.Contains(got.body, `"b"`) {
			t.Fatalf("%d %s, want an answer of the replica that stays", got.status, got.body)
		}
	}
	close(release)
	if rest, err := io.ReadAll(stream); err != nil || string(rest) != "data: [DONE]\n\n" {
		t.Errorf("the stream ended with %q, %v", rest, err)
	}
	eventually(t, "the replica is gone", func() bool { return f.ids() == "b" })
}

func TestRemovedReplicaIsCutAfterTheDrainTimeout(t *testing.T) {
	a, _ := held(t, "a")
	f := start(t, gateway.Options{Timeouts: gateway.Timeouts{Drain: 50 * time.Millisecond}}, a)
	stream := f.open()
	defer stream.Close()
	if err := f.SetReplicas(nil); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(stream); err != nil || !strings.Contains(string(rest), `"code":"upstream_failed"`) {
		t.Errorf("the stream ended with %q, %v", rest, err)
	}
	eventually(t, "the replica is gone", func() bool { return f.ids() == "" })
	if got := f.post("/v1/completions", prompt()); got.status != 503 || !strings.Contains(got.body, "no_ready_replica") {
		t.Errorf("without replicas: %d %s", got.status, got.body)
	}
}

func TestReplicaThatIsRemovedAndListedAgainStays(t *testing.T) {
	a, release := held(t, "a")
	f := start(t, gateway.Options{}, a)
	stream := f.open()
	defer stream.Close()
	for range 3 {
		if err := f.SetReplicas(nil); err != nil {
			t.Fatal(err)
		}
		if err := f.SetReplicas(replicas(a)); err != nil {
			t.Fatal(err)
		}
	}
	if got := f.ids(); got != "a" {
		t.Errorf("replicas %q", got)
	}
	if f.State().Replicas[0].Inflight != 1 {
		t.Error("its load was forgotten")
	}
	second := f.open()
	defer second.Close()
	close(release)
	if _, err := io.ReadAll(stream); err != nil {
		t.Error(err)
	}
	if got := f.ids(); got != "a" {
		t.Errorf("replicas %q after the stream", got)
	}
}

// TestGW21ReplacedPodsInheritNothing replaces an engine that fails by another
// one under the same id and address.
func TestGW21ReplacedPodsInheritNothing(t *testing.T) {
	a := newEngine(t, "a", func(e *engine) { e.generate = answerStatus(500) })
	f := start(t, gateway.Options{}, a)
	pod := func(uid string) []gateway.Replica {
		r := replicas(a)
		r[0].UID = uid
		return r
	}
	if err := f.SetReplicas(pod("first")); err != nil {
		t.Fatal(err)
	}
	if err := f.AwaitReplicas(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if got := f.post("/v1/completions", prompt()); got.status != 500 {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	eventually(t, "the breaker is open", func() bool { return f.State().Replicas[0].Breaker == "open" })
	a.mu.Lock()
	a.generate = answerJSON("a", 0)
	a.mu.Unlock()
	if err := f.SetReplicas(pod("second")); err != nil {
		t.Fatal(err)
	}
	if err := f.AwaitReplicas(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if got := f.State().Replicas[0]; got.Breaker != "closed" || got.Inflight != 0 {
		t.Errorf("the new pod begins with %+v", got)
	}
	if got := f.post("/v1/completions", prompt()); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestWrongReplicasChangeNothing(t *testing.T) {
	a := newEngine(t, "a")
	f := start(t, gateway.Options{}, a)
	for name, wrong := range map[string]gateway.Replica{
		"no id":             {URL: a.URL},
		"no address":        {ID: "b", URL: "nowhere"},
		"an unknown engine": {ID: "b", URL: a.URL, Runtime: "other"},
		"a protocol":        {ID: "b", URL: a.URL, Protocol: "spdy"},
		"h2c with TLS":      {ID: "b", URL: "https://127.0.0.1:1", Protocol: "h2c"},
	} {
		if err := f.SetReplicas([]gateway.Replica{wrong}); !errors.Is(err, gateway.ErrOptions) {
			t.Errorf("%s: %v", name, err)
		}
		if err := f.Apply(gateway.Options{Replicas: []gateway.Replica{wrong}, Policy: "random"}); !errors.Is(err, gateway.ErrOptions) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := f.Apply(gateway.Options{Replicas: replicas(a), Policy: "none"}); !errors.Is(err, gateway.ErrOptions) {
		t.Errorf("unknown policy: %v", err)
	}
	if got := f.State(); got.Policy != "hint" || f.ids() != "a" {
		t.Errorf("policy %s, replicas %s", got.Policy, f.ids())
	}
}

func TestApplyChangesWhatMayChange(t *testing.T) {
	a, b := newEngine(t, "a"), newEngine(t, "b")
	f := start(t, gateway.Options{}, a)
	options := gateway.Options{Policy: "round_robin", Replicas: replicas(a, b), MaxInflight: 7}
	if err := f.Apply(options); err != nil {
		t.Fatal(err)
	}
	if err := f.AwaitReplicas(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if got := f.State(); got.Policy != "round_robin" || f.ids() != "a b" {
		t.Errorf("policy %s, replicas %s", got.Policy, f.ids())
	}
	options.Replicas[1].Cordoned = true
	if err := f.Apply(options); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		f.post("/v1/completions", prompt())
	}
	if len(b.requests()) != 0 {
		t.Error("the cordoned replica got requests")
	}
	if !f.State().Replicas[1].Ready {
		t.Error("a bound that changed made the replica start anew")
	}
}

// TestChangesWhileRequestsRun applies options over and over under load; no
// request may notice.
func TestChangesWhileRequestsRun(t *testing.T) {
	a, b := newEngine(t, "a"), newEngine(t, "b")
	f := start(t, gateway.Options{}, a, b)
	over := make(chan struct{})
	go func() {
		defer close(over)
		for i := range 200 {
			if got := f.post("/v1/completions", prompt()); got.status != 200 {
				t.Errorf("request %d: %d %s", i, got.status, got.body)
			}
		}
	}()
	for i := 0; ; i++ {
		listed := replicas(a, b)
		listed[0].MaxInflight, listed[1].Cordoned = 1+i%7, i%2 == 0
		options := gateway.Options{Replicas: listed, Policy: []string{"hint", "least_load"}[i%2], MaxInflight: 1 + i%5}
		if err := f.Apply(options); err != nil {
			t.Fatal(err)
		}
		select {
		case <-over:
			f.idle()
			return
		case <-time.After(time.Millisecond):
		}
	}
}
