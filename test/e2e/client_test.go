// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	cacheclient "github.com/inferencecache/inference-cache/pkg/client"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

const lookupPatience = 10 * time.Second

// holding is a report that a replica of team-a's model holds a chain.
func holding(replica string, chain cacheclient.Chain) *pb.CacheStateUpdate {
	update := &pb.CacheStateUpdate{TenantId: "team-a", ModelId: "llama", HashScheme: "vllm", ReplicaId: replica}
	if chain.Blocks() > 0 {
		update.Prefixes = []*pb.PrefixEntry{{BlockHashes: chain.Hashes, BlockTokenCounts: chain.TokenCounts, Tier: pb.CacheTier_CACHE_TIER_T2}}
	}
	return update
}

func chainOf(text, salt string) cacheclient.Chain {
	return cacheclient.ChainFromTokens(tokens(text), 16, salt)
}

func ask(chain cacheclient.Chain, change ...func(*cacheclient.Request)) cacheclient.Request {
	request := cacheclient.Request{Tenant: "team-a", Model: "llama", HashScheme: "vllm", Chain: chain}
	for _, c := range change {
		c(&request)
	}
	return request
}

// reportAll sends updates and events and fails unless all of them apply.
func reportAll(t *testing.T, conn *grpc.ClientConn, updates []*pb.CacheStateUpdate, events ...*pb.CacheEvent) {
	t.Helper()
	reporter := cacheclient.NewReporter(conn)
	if applied, err := reporter.Report(t.Context(), updates...); err != nil || applied != cacheclient.AppliedAll {
		t.Fatalf("report: %q, %v", applied, err)
	}
	for _, event := range events {
		if applied, err := reporter.Publish(t.Context(), event); err != nil || applied != cacheclient.AppliedAll {
			t.Fatalf("event %s: %q, %v", event.GetType(), applied, err)
		}
	}
}

func TestClientGetsEveryKindOfAnswer(t *testing.T) {
	shared, other, novel := prompt(1), prompt(2), prompt(3)
	exactly := func(hash []byte) func(*cacheclient.Request) {
		return func(r *cacheclient.Request) {
			r.PrefixHash, r.PrefixTokens, r.Chain = hash, promptBytes, cacheclient.Chain{}
		}
	}
	chain := chainOf(shared, "")
	last := chain.Hashes[chain.Blocks()-1]

	running, _ := runServer(t, "127.0.0.1:0")
	conn := dial(t, running.Addresses().GRPC.String())
	c := cacheclient.New(conn, cacheclient.Options{Timeout: lookupPatience, Logger: slog.New(slog.DiscardHandler)})
	if got := c.Lookup(t.Context(), ask(chain)); got.Reason != cacheclient.NoHint || got.Err != nil {
		t.Errorf("empty index: %s, %v", got.Reason, got.Err)
	}
	reportAll(t, conn, []*pb.CacheStateUpdate{
		holding("pod-a", chain), holding("pod-b", chainOf(shared[:promptBytes/2], "")), holding("pod-c", chainOf(other, "")),
	})
	replicas := []string{"pod-a", "pod-b", "pod-c"}
	affine, _ := cacheclient.AffinityPick(chainOf(novel, ""), replicas)
	salted, _ := cacheclient.AffinityPick(chainOf(shared, "salt"), replicas)
	exact, _ := cacheclient.AffinityPickExact([]byte("no such prefix"), replicas)

	type answer struct {
		Reason  cacheclient.Reason
		Matches []cacheclient.Score // without score and probability
	}
	held := func(replica string, matched int) cacheclient.Score {
		return cacheclient.Score{Replica: replica, MatchedTokens: matched, Tier: cacheclient.TierHost}
	}
	named := func(replica string) []cacheclient.Score { return []cacheclient.Score{{Replica: replica}} }
	for name, tc := range map[string]struct {
		request cacheclient.Request
		want    answer
	}{
		"a chain finds its holders, the deepest first": {
			ask(chain), answer{cacheclient.PrefixMatch, []cacheclient.Score{held("pod-a", promptBytes), held("pod-b", promptBytes/2)}},
		},
		"an objective goes along": {
			ask(chain, func(r *cacheclient.Request) { r.TTFT = 50 * time.Millisecond }),
			answer{cacheclient.PrefixMatch, []cacheclient.Score{held("pod-a", promptBytes), held("pod-b", promptBytes/2)}},
		},
		"tokens hashed by the server are the same chain": {
			ask(cacheclient.Chain{}, func(r *cacheclient.Request) { r.TokenIDs = tokens(shared) }),
			answer{cacheclient.PrefixMatch, []cacheclient.Score{held("pod-a", promptBytes), held("pod-b", promptBytes/2)}},
		},
		"an exact prefix": {
			ask(chain, exactly(last)), answer{cacheclient.PrefixMatch, []cacheclient.Score{held("pod-a", promptBytes)}},
		},
		"a novel chain goes where the client's own affinity says": {
			ask(chainOf(novel, "")), answer{cacheclient.AffinityHint, named(affine)},
		},
		"a salted chain shares nothing with the plain one": {
			ask(chainOf(shared, "salt")), answer{cacheclient.AffinityHint, named(salted)},
		},
		"a novel exact prefix goes where the client's own affinity says": {
			ask(chain, exactly([]byte("no such prefix"))), answer{cacheclient.AffinityHint, named(exact)},
		},
		"an adapter nobody has blocks of": {
			ask(chain, func(r *cacheclient.Request) { r.Adapter = "sql" }), answer{Reason: cacheclient.NoHint},
		},
		"a wrong tenant": {
			ask(chain, func(r *cacheclient.Request) { r.Tenant = "default" }), answer{Reason: cacheclient.UnknownTenant},
		},
		"a wrong model": {
			ask(chain, func(r *cacheclient.Request) { r.Model = "meta/llama" }), answer{Reason: cacheclient.UnknownModel},
		},
		"a wrong hash scheme": {
			ask(chain, func(r *cacheclient.Request) { r.HashScheme = "vllm-v1" }), answer{Reason: cacheclient.UnknownHashScheme},
		},
		"of several wrong keys the outermost": {
			ask(chain, func(r *cacheclient.Request) { r.Tenant, r.HashScheme = "default", "vllm-v1" }), answer{Reason: cacheclient.UnknownTenant},
		},
	} {
		t.Run(name, func(t *testing.T) {
			result := c.Lookup(t.Context(), tc.request)
			if result.Err != nil {
				t.Fatal(result.Err)
			}
			got := answer{Reason: result.Reason}
			for _, score := range result.Scores {
				score.Score, score.HitProbability = 0, 0
				got.Matches = append(got.Matches, score)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
		})
	}

	event := func(kind pb.CacheEvent_Type, replica string, hash []byte) *pb.CacheEvent {
		return &pb.CacheEvent{Type: kind, TenantId: "team-a", ModelId: "llama", ReplicaId: replica, PrefixHash: hash}
	}
	reportAll(t, conn, nil,
		event(pb.CacheEvent_PREFIX_EVICTED, "pod-a", chain.Hashes[10]),
		event(pb.CacheEvent_ALL_CLEARED, "pod-b", nil))
	result := c.Lookup(t.Context(), ask(chain))
	if best, ok := result.Best(nil); !ok || len(result.Scores) != 1 || best.Replica != "pod-a" || best.MatchedTokens != 160 {
		t.Errorf("after an eviction and a clear: %s %+v", result.Reason, result.Scores)
	}
}

func TestClientFindsWarmReplicas(t *testing.T) {
	running, _ := runServer(t, "127.0.0.1:0")
	conn := dial(t, running.Addresses().GRPC.String())
	warm := holding("pod-a", chainOf(prompt(1), ""))
	warm.Stats = &pb.ReplicaStats{HitRate: 0.9, Pressure: 0.1}
	reportAll(t, conn, []*pb.CacheStateUpdate{warm, holding("pod-b", chainOf(prompt(2), ""))})
	c := cacheclient.New(conn, cacheclient.Options{Timeout: lookupPatience})
	request := ask(cacheclient.Chain{}, func(r *cacheclient.Request) { r.PrefixHash, r.PrefixTokens = []byte("novel"), 640 })
	result := c.Lookup(t.Context(), request)
	if best, ok := result.Best(nil); result.Reason != cacheclient.TenantHot || !ok || best.Replica != "pod-a" {
		t.Errorf("%s %+v, %v", result.Reason, result.Scores, result.Err)
	}
}

// recorder keeps the states a breaker goes through.
type recorder struct {
	mu     sync.Mutex
	states []cacheclient.BreakerState
}

func (r *recorder) ObserveLookup(cacheclient.Reason, time.Duration) {}

func (r *recorder) ObserveBreaker(state cacheclient.BreakerState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.states = append(r.states, state)
}

func TestClientOutlivesTheServer(t *testing.T) {
	first, stopFirst := runServer(t, "127.0.0.1:0")
	address := first.Addresses().GRPC.String()
	conn := dial(t, address)
	var seen recorder
	var lines strings.Builder
	c := cacheclient.New(conn, cacheclient.Options{
		Timeout: lookupPatience, BreakerOpenFor: 20 * time.Millisecond, Metrics: &seen,
		Logger: slog.New(slog.NewTextHandler(&lines, nil)),
	})
	chain := chainOf(prompt(1), "")
	matches := func() bool {
		return c.Lookup(context.WithoutCancel(t.Context()), ask(chain)).Reason == cacheclient.PrefixMatch
	}

	reports := []*pb.CacheStateUpdate{holding("pod-a", chain), holding("pod-b", chainOf(prompt(2), ""))}
	reportAll(t, conn, reports)
	if !matches() {
		t.Fatal("no match before the server stops")
	}
	stopFirst()
	await(t, lookupPatience, "the breaker opens", func() bool {
		result := c.Lookup(t.Context(), ask(chain))
		if result.Reason.Answered() || len(result.Scores) > 0 {
			t.Errorf("a stopped server answers %s %+v", result.Reason, result.Scores)
		}
		return result.Reason == cacheclient.BreakerOpen
	})
	second, _ := runServer(t, address)
	reportAll(t, dial(t, second.Addresses().GRPC.String()), reports)
	await(t, lookupPatience, "hints come back", matches)

	want := []cacheclient.BreakerState{cacheclient.BreakerOpened, cacheclient.BreakerClosed}
	if !slices.Equal(seen.states, want) {
		t.Errorf("breaker went through %v, want %v", seen.states, want)
	}
	for _, message := range []string{"index does not answer", "index answers again"} {
		if n := strings.Count(lines.String(), message); n != 1 {
			t.Errorf("%q logged %d times", message, n)
		}
	}
}
