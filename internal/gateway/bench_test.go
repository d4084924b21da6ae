// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/gateway"
	"github.com/inferencecache/inference-cache/internal/trace"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// benchEngine starts an engine that answers at once, and returns its URL.
func benchEngine(b *testing.B) string {
	b.Helper()
	engine := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			_, _ = io.WriteString(w, `{"data":[{"id":"m"}]}`)
		case "/tokenize":
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(w, `{"tokens":[`+strings.Repeat("1234,", 511)+`1]}`)
		case "/v1/completions":
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range 8 {
				fmt.Fprintf(w, "data: {\"choices\":[{\"text\":\"%d\"}]}\n\n", i)
				_ = http.NewResponseController(w).Flush()
			}
			_, _ = io.WriteString(w, "data: [DONE]\n\n")
		}
	})}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = engine.Serve(listener) }()
	b.Cleanup(func() { _ = engine.Close() })
	return "http://" + listener.Addr().String()
}

// benchGateway starts a gateway in front of two replicas, and returns its URL.
func benchGateway(b *testing.B, engine string, options gateway.Options) string {
	b.Helper()
	options.BlockSize = 16
	options.Lookuper = &index{answer: func(context.Context, *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
		return &pb.LookupRouteResponse{ReasonCode: "PREFIX_MATCH",
			ReplicaScores: []*pb.ReplicaScore{{ReplicaId: "a", MatchedTokens: 256}}}, nil
	}}
	options.Replicas = []gateway.Replica{{ID: "a", URL: engine}, {ID: "b", URL: engine}}
	g, err := gateway.New(options)
	if err != nil {
		b.Fatal(err)
	}
	if err := g.Start(); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	b.Cleanup(func() { cancel(); <-done })
	if err := g.AwaitReplicas(b.Context(), 2); err != nil {
		b.Fatal(err)
	}
	return "http://" + g.Addresses().Data.String()
}

// BenchmarkRequest compares a request through the gateway with one straight to
// the engine.
func BenchmarkRequest(b *testing.B) {
	url := benchEngine(b)
	proxied := benchGateway(b, url, gateway.Options{})
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	b.Cleanup(client.CloseIdleConnections)

	for _, size := range []int{2 << 10, 50 << 10, 400 << 10} {
		body, _ := json.Marshal(map[string]any{"model": "m", "prompt": strings.Repeat("some words ", size/11), "stream": true})
		for name, target := range map[string]string{"direct": url, "gateway": proxied} {
			b.Run(fmt.Sprintf("%s/%dKiB", name, size>>10), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					response, err := client.Post(target+"/v1/completions", "application/json", bytes.NewReader(body))
					if err != nil {
						b.Fatal(err)
					}
					_, _ = io.Copy(io.Discard, response.Body)
					_ = response.Body.Close()
				}
			})
		}
	}
}

// BenchmarkTracing sends requests to gateways with different traces by turns,
// and reports their medians as shares of the one that keeps records in memory
// only.
func BenchmarkTracing(b *testing.B) {
	engine := benchEngine(b)
	logger := slog.New(slog.NewJSONHandler(io.Discard, nil))
	forms := []struct {
		name     string
		switches trace.Switches
	}{
		{"off", trace.Switches{}},
		{"sampled", trace.Switches{Log: true, Outcome: true, Sample: 100}},
		{"each", trace.Switches{Log: true, Outcome: true}},
		{"header", trace.Switches{Header: trace.HeaderAny}},
	}
	urls := make([]string, len(forms))
	for i := range forms {
		urls[i] = benchGateway(b, engine, gateway.Options{UsageSample: -1, Logger: logger, Trace: gateway.Trace{Switches: forms[i].switches}})
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	b.Cleanup(client.CloseIdleConnections)
	body, _ := json.Marshal(map[string]any{"model": "m", "prompt": strings.Repeat("some words ", 2<<10/11), "stream": true})
	times := make([][]time.Duration, len(forms))
	for round := 0; b.Loop(); round++ {
		for turn := range forms {
			i := (turn + round) % len(forms)
			begin := time.Now()
			response, err := client.Post(urls[i]+"/v1/completions", "application/json", bytes.NewReader(body))
			if err != nil {
				b.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			times[i] = append(times[i], time.Since(begin))
		}
	}
	median := func(i int) float64 {
		slices.Sort(times[i])
		return float64(times[i][len(times[i])/2].Nanoseconds())
	}
	off := median(0)
	b.ReportMetric(off/1000, "off-p50-us")
	for i := 1; i < len(forms); i++ {
		b.ReportMetric(median(i)/off, forms[i].name+"/off")
	}
}
