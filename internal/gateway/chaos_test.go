// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/gateway"
)

var chaosRequests = flag.Int("chaos-requests", 0, "requests of the test with engines that die; 0 is 10,000, or a quarter of that with the race detector")

// mortal is an engine that can be killed and started again at its address.
type mortal struct {
	address string
	handler http.Handler
	server  *http.Server
	serving sync.WaitGroup
}

func newMortal(t *testing.T, id string) *mortal {
	t.Helper()
	e := newEngine(t, id, func(e *engine) {
		e.generate = func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			time.Sleep(5 * time.Millisecond) // so that some are under way when it dies
			if strings.Contains(string(body), `"stream":true`) {
				events(event("data: {\"choices\":[]}\n\n"), event("data: {\"choices\":[]}\n\n"), event("data: [DONE]\n\n"))(w, r)
				return
			}
			answerJSON(id, 0)(w, r)
		}
	})
	m := &mortal{address: "127.0.0.1:0", handler: e}
	m.start(t)
	t.Cleanup(m.kill)
	return m
}

func (m *mortal) start(t *testing.T) {
	t.Helper()
	listener, err := net.Listen("tcp", m.address)
	if err != nil {
		t.Error("start an engine again:", err)
		return
	}
	m.address = listener.Addr().String()
	m.server = &http.Server{Handler: m.handler}
	m.serving.Go(func() { _ = m.server.Serve(listener) })
}

func (m *mortal) kill() {
	_ = m.server.Close()
	m.serving.Wait()
}

// verdict is how a request ended for its client.
type verdict string

const (
	complete verdict = "complete"
	left     verdict = "left by the client"
	broken   verdict = "broken without a word"
)

// ask sends one request and says how it ended.
func (f *fixture) ask(ctx context.Context, stream bool) verdict {
	body := prompt()
	if stream {
		body = strings.Replace(body, "{", `{"stream":true,`, 1)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return broken
	}
	response, err := f.client.Do(request)
	var data []byte
	if err == nil {
		data, err = io.ReadAll(response.Body)
		_ = response.Body.Close()
	}
	var failed struct {
		Error struct{ Code string }
	}
	text := strings.TrimSpace(string(data))
	last := text[max(strings.LastIndex(text, "data: "), 0):]
	switch {
	case ctx.Err() != nil:
		return left
	case err != nil:
		return broken
	case response.StatusCode == 200 && stream && strings.HasSuffix(text, "data: [DONE]"), response.StatusCode == 200 && !stream && json.Valid(data):
		return complete
	case json.Unmarshal([]byte(strings.TrimPrefix(last, "data: ")), &failed) == nil && failed.Error.Code != "":
		return verdict(failed.Error.Code)
	default:
		return broken
	}
}

// TestGW03NothingIsLostWhileEnginesDie sends many requests while engines are
// killed and started again and clients leave. Each ends exactly once, whole or
// with a reason, and no load is left anywhere.
func TestGW03NothingIsLostWhileEnginesDie(t *testing.T) {
	requests := *chaosRequests
	if requests == 0 {
		requests = 10_000
		if raceEnabled {
			requests /= 4
		}
	}
	options := gateway.Options{
		Tokenizer: gateway.TokenizeNone, MaxInflight: 40, HedgePercentile: 99, StickyField: "user",
		Timeouts: gateway.Timeouts{HealthInterval: 50 * time.Millisecond, Queue: 10 * time.Second},
	}
	var engines []*mortal
	// More than die while a breaker is open, so that there is always somebody.
	for i := range 16 {
		m := newMortal(t, fmt.Sprint("e", i))
		engines = append(engines, m)
		options.Replicas = append(options.Replicas, gateway.Replica{ID: fmt.Sprint("e", i), URL: "http://" + m.address, Models: []string{testModel}})
	}
	f := startUnready(t, options)
	if err := f.AwaitReplicas(t.Context(), len(engines)); err != nil {
		t.Fatal(err)
	}
	f.client.Transport = &http.Transport{MaxIdleConnsPerHost: 64}
	ended, sent := f.ride(t, engines, requests)
	total := 0
	for _, n := range ended {
		total += n
	}
	t.Logf("%d requests ended: %v", total, ended)
	allowed := []verdict{complete, left, "upstream_failed", "no_ready_replica", "overloaded", "upstream_timeout"}
	for how, n := range ended {
		if !slices.Contains(allowed, how) {
			t.Errorf("%d requests ended as %q", n, how)
		}
	}
	if total != requests || ended[complete] < requests*8/10 {
		t.Errorf("%d of %d requests ended, %d whole", total, requests, ended[complete])
	}
	f.idle()
	f.settled(sent)
}

// ride sends requests from several clients while engines come and go.
func (f *fixture) ride(t *testing.T, engines []*mortal, requests int) (ended map[verdict]int, sent int) {
	var next atomic.Int64
	var clients, reaper sync.WaitGroup
	results := make(chan verdict, requests)
	for client := range uint64(50) {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(client, 1))
			for next.Add(1) <= int64(requests) {
				ctx, cancel := context.WithCancelCause(t.Context())
				if random.IntN(20) == 0 {
					time.AfterFunc(time.Duration(random.IntN(3000))*time.Microsecond, func() { cancel(errors.New("left")) })
				}
				results <- f.ask(ctx, random.IntN(2) == 0)
				cancel(nil)
			}
		})
	}
	over := make(chan struct{})
	reaper.Go(func() {
		for i := 0; ; i++ {
			victim := engines[i%len(engines)]
			victim.kill()
			time.Sleep(20 * time.Millisecond)
			victim.start(t)
			select {
			case <-over:
				return
			case <-time.After(680 * time.Millisecond):
			}
		}
	})
	clients.Wait()
	close(over)
	reaper.Wait()
	close(results)
	ended = map[verdict]int{}
	for result := range results {
		ended[result]++
	}
	return ended, requests
}

// settled checks that every request was counted once and every gauge of what is
// under way is 0.
func (f *fixture) settled(sent int) {
	f.t.Helper()
	eventually(f.t, "nothing waits", func() bool {
		return f.value("gateway_inflight", "endpoint", "completions") == 0 && f.value("gateway_queue", "endpoint", "completions") == 0
	})
	families, err := f.registry.Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	for _, family := range families {
		counted := 0.0
		for _, m := range family.GetMetric() {
			switch family.GetName() {
			case "inferencecache_gateway_requests_total":
				counted += m.GetCounter().GetValue()
			case "inferencecache_gateway_replica_inflight", "inferencecache_gateway_replica_queue_tokens":
				if m.GetGauge().GetValue() != 0 {
					f.t.Errorf("%s is %v", family.GetName(), m.GetGauge().GetValue())
				}
			}
		}
		// Clients that leave before they are heard are not counted.
		if family.GetName() == "inferencecache_gateway_requests_total" && (counted > float64(sent) || counted < 0.9*float64(sent)) {
			f.t.Errorf("%v requests counted, %d were sent", counted, sent)
		}
	}
}
