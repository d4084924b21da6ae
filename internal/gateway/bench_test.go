// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/inferencecache/inference-cache/internal/gateway"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// BenchmarkRequest compares a request through the gateway with one straight to
// the engine.
func BenchmarkRequest(b *testing.B) {
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
	url := "http://" + listener.Addr().String()

	g, err := gateway.New(gateway.Options{
		BlockSize: 16, Lookuper: &index{answer: func(context.Context, *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
			return &pb.LookupRouteResponse{ReasonCode: "PREFIX_MATCH",
				ReplicaScores: []*pb.ReplicaScore{{ReplicaId: "a", MatchedTokens: 256}}}, nil
		}},
		Replicas: []gateway.Replica{{ID: "a", URL: url}, {ID: "b", URL: url}},
	})
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
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	b.Cleanup(client.CloseIdleConnections)

	for _, size := range []int{2 << 10, 50 << 10, 400 << 10} {
		body, _ := json.Marshal(map[string]any{"model": "m", "prompt": strings.Repeat("some words ", size/11), "stream": true})
		for name, target := range map[string]string{"direct": url, "gateway": "http://" + g.Addresses().Data.String()} {
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
