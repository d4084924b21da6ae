// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"google.golang.org/grpc"

	"github.com/inferencecache/inference-cache/pkg/client"
	"github.com/inferencecache/inference-cache/pkg/fingerprint"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// exampleIndex is an index in which pod-2 holds every prompt of team-a.
func exampleIndex() *fakeIndex {
	ack := &pb.Ack{Accepted: true}
	return &fakeIndex{
		lookup: func(_ context.Context, in *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
			if in.GetTenantId() != "team-a" {
				return &pb.LookupRouteResponse{ReasonCode: "UNKNOWN_TENANT"}, nil
			}
			return &pb.LookupRouteResponse{
				ReasonCode:    "PREFIX_MATCH",
				ReplicaScores: []*pb.ReplicaScore{{ReplicaId: "pod-2", Score: 32, MatchedTokens: 32, Tier: pb.CacheTier_CACHE_TIER_T1}},
			}, nil
		},
		report: func(stream pb.InferenceCache_ReportCacheStateServer) error {
			for {
				if _, err := stream.Recv(); err != nil {
					return stream.SendAndClose(ack)
				}
			}
		},
		event: func(context.Context, *pb.CacheEvent) (*pb.Ack, error) { return ack, nil },
	}
}

// exampleServer runs exampleIndex. A program has a server and its own
// transport credentials instead.
func exampleServer() (dial []grpc.DialOption, stop func()) { return serve(exampleIndex()) }

// A gateway with a connection of the client's own.
func ExampleDial() {
	options, stop := exampleServer()
	defer stop()
	index, err := client.Dial("passthrough:index", client.Options{Timeout: time.Second}, options...)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer index.Close()
	result := index.Lookup(context.Background(), client.Request{
		Tenant: "team-a", Model: "llama", HashScheme: "vllm",
		Chain: client.ChainFromTokens(tokensUpTo(40), 16, ""),
	})
	fmt.Println(result.Reason, result.Scores[0].Replica)
	// Output: PREFIX_MATCH pod-2
}

// A gateway that shares its connection.
func ExampleNew() {
	options, stop := exampleServer()
	defer stop()
	conn, err := grpc.NewClient("passthrough:index", options...)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	index := client.New(conn, client.Options{Timeout: time.Second})
	fmt.Println(index.Breaker())
	// Output: closed
}

// A wrong key is answered like a miss, and logged once a minute.
func ExampleClient_Lookup() {
	options, stop := exampleServer()
	defer stop()
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.MessageKey {
			return slog.Attr{}
		}
		return a
	}}))
	index, err := client.Dial("passthrough:index", client.Options{Timeout: time.Second, Logger: logger}, options...)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer index.Close()
	for range 3 {
		result := index.Lookup(context.Background(), client.Request{
			Tenant: "default", Model: "llama", HashScheme: "vllm",
			Chain: client.ChainFromTokens(tokensUpTo(40), 16, ""),
		})
		fmt.Println(result.Reason, result.Scores)
	}
	// Output:
	// level=WARN reason=UNKNOWN_TENANT tenant=default
	// UNKNOWN_TENANT []
	// UNKNOWN_TENANT []
	// UNKNOWN_TENANT []
}

// The first replica of an answer that the gateway may use.
func ExampleResult_Best() {
	result := client.Result{Reason: client.PrefixMatch, Scores: []client.Score{
		{Replica: "pod-1", MatchedTokens: 512}, {Replica: "pod-2", MatchedTokens: 256},
	}}
	draining := map[string]bool{"pod-1": true}
	best, ok := result.Best(func(replica string) bool { return !draining[replica] })
	fmt.Println(best.Replica, best.MatchedTokens, ok)
	// Output: pod-2 256 true
}

// The tail of 8 tokens is no full block.
func ExampleChainFromTokens() {
	chain := client.ChainFromTokens(tokensUpTo(40), 16, "")
	fmt.Printf("%x %v\n", chain.Hashes, chain.TokenCounts)
	// Output: [ea06fc71a5ee6e88 ad01835a37dd294c] [16 16]
}

// A prompt whose first block holds an image.
func ExampleChainFromKeys() {
	parent := fingerprint.MultimodalParent(fingerprint.Parent{}, []fingerprint.Identifier{{ID: "image-1", Offset: 2}})
	keys := fingerprint.Append(nil, parent, tokensUpTo(16), 16)
	chain := client.ChainFromKeys(keys, 16)
	fmt.Printf("%x %d\n", chain.Hashes, chain.Tokens())
	// Output: [6103e78522d17dc3] 16
}

// Equal prompts meet on one replica while the index does not answer.
func ExampleAffinityPick() {
	chain := client.ChainFromTokens(tokensUpTo(32), 16, "")
	replica, ok := client.AffinityPick(chain, []string{"pod-1", "pod-2", "pod-3"})
	fmt.Println(replica, ok)
	// Output: pod-1 true
}

func ExampleAffinityPickExact() {
	hash := client.ChainFromTokens(tokensUpTo(32), 16, "").Hashes[1]
	replica, ok := client.AffinityPickExact(hash, []string{"pod-1", "pod-2", "pod-3"})
	fmt.Println(replica, ok)
	// Output: pod-3 true
}

func ExampleParseTTFT() {
	for _, value := range []string{"200", "soon"} {
		ttft, ok := client.ParseTTFT(value)
		fmt.Println(ttft, ok)
	}
	// Output:
	// 200ms true
	// 0s false
}

// Codes of newer servers are no hint.
func ExampleParseReason() {
	fmt.Println(client.ParseReason("PREFIX_MATCH"), client.ParseReason("SEMANTIC_MATCH"))
	// Output: PREFIX_MATCH NO_HINT
}

// The values of a metric's reason label.
func ExampleReasons() {
	for _, reason := range client.Reasons() {
		if reason.Misconfigured() {
			fmt.Println(reason)
		}
	}
	// Output:
	// UNKNOWN_TENANT
	// UNKNOWN_MODEL
	// UNKNOWN_HASH_SCHEME
}

// printed tells what it observes; a program increments its own metrics.
type printed struct{}

func (printed) ObserveLookup(reason client.Reason, _ time.Duration) { fmt.Println("lookup", reason) }

func (printed) ObserveBreaker(state client.BreakerState) { fmt.Println("breaker", state) }

func ExampleMetrics() {
	options, stop := exampleServer()
	stop() // Nobody answers.
	index, err := client.Dial("passthrough:index", client.Options{
		Timeout: time.Second, BreakerFailures: 1, Metrics: printed{}, Logger: slog.New(slog.DiscardHandler),
	}, options...)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer index.Close()
	for range 2 {
		index.Lookup(context.Background(), client.Request{Tenant: "team-a", Model: "llama", HashScheme: "vllm"})
	}
	// Output:
	// breaker open
	// lookup UNAVAILABLE
	// lookup BREAKER_OPEN
}

// A producer says what a replica holds.
func ExampleReporter_Report() {
	options, stop := exampleServer()
	defer stop()
	conn, err := grpc.NewClient("passthrough:index", options...)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	chain := client.ChainFromTokens(tokensUpTo(32), 16, "")
	applied, err := client.NewReporter(conn).Report(context.Background(), &pb.CacheStateUpdate{
		TenantId: "team-a", ModelId: "llama", HashScheme: "vllm", ReplicaId: "pod-2",
		Prefixes: []*pb.PrefixEntry{{BlockHashes: chain.Hashes, BlockTokenCounts: chain.TokenCounts}},
	})
	fmt.Println(applied == client.AppliedAll, err)
	// Output: true <nil>
}

// A producer says that a replica dropped a block.
func ExampleReporter_Publish() {
	options, stop := exampleServer()
	defer stop()
	conn, err := grpc.NewClient("passthrough:index", options...)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	applied, err := client.NewReporter(conn).Publish(context.Background(), &pb.CacheEvent{
		Type: pb.CacheEvent_PREFIX_EVICTED, TenantId: "team-a", ModelId: "llama", ReplicaId: "pod-2",
		PrefixHash: client.ChainFromTokens(tokensUpTo(32), 16, "").Hashes[1],
	})
	fmt.Println(applied == client.AppliedAll, err)
	// Output: true <nil>
}
