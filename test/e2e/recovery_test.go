// SPDX-License-Identifier: Apache-2.0

// Package e2e tests roles against each other over real sockets.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/inferencecache/inference-cache/internal/gateway"
	"github.com/inferencecache/inference-cache/internal/publisher"
	"github.com/inferencecache/inference-cache/internal/server"
	"github.com/inferencecache/inference-cache/internal/sim/engine"
	"github.com/inferencecache/inference-cache/internal/sim/sched"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	conversations = 24
	promptBytes   = 640
	promptBlocks  = promptBytes / 16
)

// runServer serves on the given gRPC address until the returned function is
// called.
func runServer(t *testing.T, address string) (running *server.Server, stop func()) {
	t.Helper()
	running, err := server.New(server.Options{GRPCAddress: address, HTTPAddress: "127.0.0.1:0", ShutdownGrace: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := running.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- running.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("server: %v", err)
		}
	})
	t.Cleanup(stop)
	return running, stop
}

// background runs a role until the test ends.
func background(t *testing.T, what string, run func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", what, err)
		}
	})
}

func dial(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, MaxDelay: 500 * time.Millisecond}}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func await(t *testing.T, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(limit)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline:
			t.Fatalf("not within %s: %s", limit, what)
		case <-tick.C:
		}
	}
}

func startEngines(t *testing.T, n int) []*engine.Engine {
	t.Helper()
	engines := make([]*engine.Engine, n)
	for i := range engines {
		started, err := engine.Start(t.Context(), engine.Config{
			HashSeed:  engine.RandomHashSeed,
			Timing:    sched.Timing{PrefillTokensPerSecond: 1e6, DecodeStep: time.Millisecond},
			Scheduler: sched.Config{BlockSize: 16, CapacityBlocks: 4096},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(started.Close)
		engines[i] = started
	}
	return engines
}

func prompt(conversation int) string {
	return text(fmt.Sprintf("conversation %02d says", conversation))
}

func text(seed string) string {
	return strings.Repeat(seed+" ", promptBytes/len(seed)+1)[:promptBytes]
}

func tokens(text string) []uint32 {
	ids := make([]uint32, len(text))
	for i, b := range []byte(text) {
		ids[i] = uint32(b)
	}
	return ids
}

// client sends completions to a gateway.
type client struct {
	http *http.Client
	url  string
}

func (c *client) complete(prompt string) (replica, reason string, err error) {
	body, err := json.Marshal(map[string]any{"model": "sim", "prompt": prompt, "max_tokens": 1})
	if err != nil {
		return "", "", err
	}
	response, err := c.http.Post(c.url+"/v1/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		return "", "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", response.StatusCode, text)
	}
	return response.Header.Get("x-inference-cache-replica"), response.Header.Get("x-inference-cache-reason"), err
}

// A server that restarts under load is whole again from its publishers'
// snapshots; requests flow meanwhile and return to their holders after it.
func TestServerRestartUnderLoad(t *testing.T) {
	engines := startEngines(t, 3)
	first, stopFirst := runServer(t, "127.0.0.1:0")
	address := first.Addresses().GRPC.String()

	var replicas []gateway.Replica
	for _, e := range engines {
		replicas = append(replicas, gateway.Replica{ID: e.Address(), URL: e.URL()})
		p, err := publisher.New(publisher.Config{
			Replica: e.Address(), BaseURL: e.URL(), Events: e.EventsEndpoint(), Replay: e.ReplayEndpoint(),
			Hub: publisher.HubOptions{BackoffMax: 500 * time.Millisecond},
		}, []publisher.Target{publisher.NewGRPCTarget(address, dial(t, address))}, publisher.Deps{})
		if err != nil {
			t.Fatal(err)
		}
		background(t, "publisher", p.Run)
		await(t, 20*time.Second, "publisher in step with the server", func() bool { return p.Status().Ready() && p.Status().Settled() })
	}
	g, err := gateway.New(gateway.Options{
		Replicas: replicas, Lookuper: gateway.NewRemoteLookuper(dial(t, address)), ExposeReplica: true,
		Timeouts: gateway.Timeouts{Lookup: 100 * time.Millisecond, Tokenize: 2 * time.Second},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(); err != nil {
		t.Fatal(err)
	}
	background(t, "gateway", g.Run)
	if err := g.AwaitReplicas(t.Context(), len(replicas)); err != nil {
		t.Fatal(err)
	}
	c := &client{http: &http.Client{Transport: &http.Transport{}}, url: "http://" + g.Addresses().Data.String()}
	t.Cleanup(c.http.CloseIdleConnections)

	for i := range conversations {
		if _, _, err := c.complete(prompt(i)); err != nil {
			t.Fatal(err)
		}
	}
	await(t, 10*time.Second, "all conversations indexed", func() bool { return wholeAgain(t, first, engines) })

	var failures, served atomic.Int64
	background(t, "load", func(ctx context.Context) error {
		for i := 0; ctx.Err() == nil; i++ {
			if _, _, err := c.complete(prompt(i % conversations)); err != nil {
				failures.Add(1)
			}
			served.Add(1)
		}
		return nil
	})
	before := served.Load()
	await(t, 10*time.Second, "load flows", func() bool { return served.Load() > before+10 })

	stopFirst()
	down := served.Load()
	await(t, 20*time.Second, "requests flow without a server", func() bool { return served.Load() > down+20 })

	second, _ := runServer(t, address)
	restarted := time.Now()
	if second.Readiness().Ready {
		t.Error("ready before any publisher had a chance to send its snapshot")
	}
	await(t, 10*time.Second, "index whole again", func() bool { return wholeAgain(t, second, engines) })
	t.Logf("index whole again %s after the restart", time.Since(restarted))
	await(t, 15*time.Second, "ready again", func() bool { return second.Readiness().Ready })
	await(t, 10*time.Second, "hints are followed again", func() bool {
		// Everybody may hold the old prompts by now, which singles nobody out.
		fresh := text(fmt.Sprintf("fresh %d", served.Load()))
		holder, _, err := c.complete(fresh)
		if err != nil {
			return false
		}
		again, reason, err := c.complete(fresh)
		return err == nil && again == holder && strings.Contains(reason, "PREFIX_MATCH")
	})
	if failed := failures.Load(); failed != 0 {
		t.Errorf("%d of %d requests failed", failed, served.Load())
	}
}

// wholeAgain returns whether the server credits each engine with exactly what
// it holds.
func wholeAgain(t *testing.T, s *server.Server, engines []*engine.Engine) bool {
	t.Helper()
	held := 0
	for _, e := range engines {
		for i := range conversations {
			held += e.HoldsPrefix(tokens(prompt(i))) / 16
		}
	}
	return held >= conversations*promptBlocks && s.Totals(time.Now()).Memberships == int64(held)
}
