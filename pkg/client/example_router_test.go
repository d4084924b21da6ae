// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/pkg/client"
)

// router places the requests of one pool of replicas.
type router struct {
	index   *client.Client
	healthy func() []string
	spare   func() string // the least loaded replica
}

// place returns the replica for a prompt. ttft is the value of TTFTHeader.
func (r *router) place(ctx context.Context, tokens []uint32, salt, ttft string) string {
	request := client.Request{
		Tenant:     "team-a", // the namespace of the engine pods
		Model:      "llama",  // as publishers report it
		HashScheme: "vllm",
		Chain:      client.ChainFromTokens(tokens, 16, salt),
	}
	request.TTFT, _ = client.ParseTTFT(ttft)

	healthy := r.healthy()
	result := r.index.Lookup(ctx, request)
	if best, ok := result.Best(func(id string) bool { return slices.Contains(healthy, id) }); ok {
		return best.Replica
	}
	if !result.Reason.Answered() {
		if replica, ok := client.AffinityPick(request.Chain, healthy); ok {
			return replica
		}
	}
	return r.spare()
}

// A small router: the index first, affinity while it is away, load at the end.
func Example() {
	options, stop := exampleServer()
	index, err := client.Dial("passthrough:index", client.Options{Timeout: time.Second, Logger: slog.New(slog.DiscardHandler)}, options...)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer index.Close()
	r := &router{
		index:   index,
		healthy: func() []string { return []string{"pod-1", "pod-2", "pod-3"} },
		spare:   func() string { return "pod-1" },
	}
	fmt.Println("by cache:", r.place(context.Background(), tokensUpTo(64), "", "200"))
	stop()
	fmt.Println("by affinity:", r.place(context.Background(), tokensUpTo(64), "", ""))
	fmt.Println("by load:", r.place(context.Background(), tokensUpTo(8), "", ""))
	// Output:
	// by cache: pod-2
	// by affinity: pod-3
	// by load: pod-1
}

// The README shows the router above.
func TestReadmeShowsTheExample(t *testing.T) {
	source, err := os.ReadFile("example_router_test.go")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, code, _ := strings.Cut(string(source), "// router places")
	code, _, _ = strings.Cut(code, "\n// A small router")
	if !strings.Contains(string(readme), "```go\n// router places"+code+"```\n") {
		t.Error("README.md does not hold the router of this file as a block of Go code")
	}
}
