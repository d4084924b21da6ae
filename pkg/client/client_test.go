// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/inferencecache/inference-cache/pkg/client"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

func TestLookupAnswers(t *testing.T) {
	scores := []*pb.ReplicaScore{
		{ReplicaId: "pod-b", Score: 24, MatchedTokens: 32, EstimatedCacheHitProb: 0.75, Tier: pb.CacheTier_CACHE_TIER_T1},
		{ReplicaId: "pod-a", Score: 8, MatchedTokens: 16, EstimatedCacheHitProb: 0.5, Tier: pb.CacheTier_CACHE_TIER_T3},
	}
	want := []client.Score{
		{Replica: "pod-b", Score: 24, MatchedTokens: 32, HitProbability: 0.75, Tier: client.TierMemory},
		{Replica: "pod-a", Score: 8, MatchedTokens: 16, HitProbability: 0.5, Tier: client.TierStorage},
	}
	for name, tc := range map[string]struct {
		answer *pb.LookupRouteResponse
		want   client.Result
	}{
		"a match comes with its scores in order": {
			answer: &pb.LookupRouteResponse{ReasonCode: "PREFIX_MATCH", ReplicaScores: scores, LookupLatencyUs: 42},
			want:   client.Result{Reason: client.PrefixMatch, Code: "PREFIX_MATCH", Scores: want, Server: 42 * time.Microsecond},
		},
		"a match without scores is valid": {
			answer: &pb.LookupRouteResponse{ReasonCode: "PREFIX_MATCH"},
			want:   client.Result{Reason: client.PrefixMatch, Code: "PREFIX_MATCH"},
		},
		"warm replicas": {
			answer: &pb.LookupRouteResponse{ReasonCode: "TENANT_HOT", ReplicaScores: scores[:1]},
			want:   client.Result{Reason: client.TenantHot, Code: "TENANT_HOT", Scores: want[:1]},
		},
		"an affinity names one replica": {
			answer: &pb.LookupRouteResponse{ReasonCode: "AFFINITY_HINT", ReplicaScores: []*pb.ReplicaScore{{ReplicaId: "pod-c"}}},
			want:   client.Result{Reason: client.AffinityHint, Code: "AFFINITY_HINT", Scores: []client.Score{{Replica: "pod-c"}}},
		},
		"a code of the future is no hint, scores or not": {
			answer: &pb.LookupRouteResponse{ReasonCode: "SEMANTIC_MATCH", ReplicaScores: scores},
			want:   client.Result{Reason: client.NoHint, Code: "SEMANTIC_MATCH"},
		},
		"a code of the client's own is none of the index's": {
			answer: &pb.LookupRouteResponse{ReasonCode: "BREAKER_OPEN"},
			want:   client.Result{Reason: client.NoHint, Code: "BREAKER_OPEN"},
		},
		"no code at all": {
			answer: &pb.LookupRouteResponse{},
			want:   client.Result{Reason: client.NoHint},
		},
		"a wrong key is routed as no hint": {
			answer: &pb.LookupRouteResponse{ReasonCode: "UNKNOWN_MODEL", ReplicaScores: scores},
			want:   client.Result{Reason: client.UnknownModel, Code: "UNKNOWN_MODEL"},
		},
		"the server's own timeout is an answer": {
			answer: &pb.LookupRouteResponse{ReasonCode: "TIMEOUT"},
			want:   client.Result{Reason: client.Timeout, Code: "TIMEOUT"},
		},
		"odd values are tamed": {
			answer: &pb.LookupRouteResponse{
				ReasonCode: "PREFIX_MATCH", LookupLatencyUs: -1,
				ReplicaScores: []*pb.ReplicaScore{{Score: 9}, {ReplicaId: "pod", MatchedTokens: -5, Tier: 77}, {ReplicaId: "pod", Tier: -1}},
			},
			want: client.Result{Reason: client.PrefixMatch, Code: "PREFIX_MATCH", Scores: []client.Score{{Replica: "pod"}, {Replica: "pod"}}},
		},
		"tokens the server made come back": {
			answer: &pb.LookupRouteResponse{ReasonCode: "NO_HINT", TokenIds: []uint32{1, 2}},
			want:   client.Result{Reason: client.NoHint, Code: "NO_HINT", TokenIDs: []uint32{1, 2}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			conn := connect(t, &fakeIndex{lookup: func(context.Context, *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
				return tc.answer, nil
			}})
			got := client.New(conn, client.Options{Timeout: patient, Logger: silent}).Lookup(t.Context(), question())
			if got.Took <= 0 {
				t.Errorf("Took = %s", got.Took)
			}
			got.Took = 0
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLookupWithoutAnAnswer(t *testing.T) {
	fails := func(code codes.Code) *fakeIndex {
		return &fakeIndex{lookup: func(context.Context, *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
			return nil, status.Error(code, "no")
		}}
	}
	for name, tc := range map[string]struct {
		index    *fakeIndex
		want     client.Reason
		wantCode codes.Code
	}{
		"a server that breaks":               {fails(codes.Internal), client.Unavailable, codes.Internal},
		"a server that goes away":            {fails(codes.Unavailable), client.Unavailable, codes.Unavailable},
		"a server that cancels":              {fails(codes.Canceled), client.Unavailable, codes.Canceled},
		"a server in front that is too slow": {fails(codes.DeadlineExceeded), client.ClientTimeout, codes.DeadlineExceeded},
		"a request too large":                {fails(codes.ResourceExhausted), client.Rejected, codes.ResourceExhausted},
		"a caller without credentials":       {fails(codes.Unauthenticated), client.Rejected, codes.Unauthenticated},
		"a server of another kind":           {&fakeIndex{}, client.Rejected, codes.Unimplemented},
	} {
		t.Run(name, func(t *testing.T) {
			var counted tally
			c := client.New(connect(t, tc.index), client.Options{Timeout: patient, Logger: silent, Metrics: &counted})
			got := c.Lookup(t.Context(), question())
			if got.Reason != tc.want || len(got.Scores) != 0 || got.Code != "" {
				t.Errorf("result %+v, want reason %s and nothing else", got, tc.want)
			}
			if code := status.Code(errors.Unwrap(got.Err)); code != tc.wantCode {
				t.Errorf("error %v has code %s, want %s", got.Err, code, tc.wantCode)
			}
			if diff := cmp.Diff(map[client.Reason]int{tc.want: 1}, counted.reasons); diff != "" {
				t.Errorf("counted (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLookupEndsByItself(t *testing.T) {
	hangs := &fakeIndex{lookup: func(ctx context.Context, _ *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	conn := connect(t, hangs)

	t.Run("at its own deadline", func(t *testing.T) {
		got := client.New(conn, client.Options{Timeout: time.Millisecond, Logger: silent}).Lookup(context.WithoutCancel(t.Context()), question())
		if got.Reason != client.ClientTimeout {
			t.Errorf("reason %s", got.Reason)
		}
	})
	t.Run("at the caller's deadline", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		got := client.New(conn, client.Options{Timeout: patient, Logger: silent}).Lookup(ctx, question())
		if got.Reason != client.ClientTimeout {
			t.Errorf("reason %s", got.Reason)
		}
	})
	t.Run("with the caller", func(t *testing.T) {
		asked := make(chan struct{})
		conn := direct(func(ctx context.Context, _ *pb.LookupRouteRequest, _ *pb.LookupRouteResponse) error {
			close(asked)
			<-ctx.Done()
			return status.FromContextError(ctx.Err()).Err()
		})
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-asked
			cancel()
		}()
		got := client.New(conn, client.Options{Timeout: patient, Logger: silent}).Lookup(ctx, question())
		if got.Reason != client.Canceled {
			t.Errorf("reason %s", got.Reason)
		}
	})
	t.Run("before it begins", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		got := client.New(conn, client.Options{Timeout: patient, Logger: silent}).Lookup(ctx, question())
		if got.Reason != client.Canceled || !errors.Is(got.Err, context.Canceled) {
			t.Errorf("reason %s, error %v", got.Reason, got.Err)
		}
	})
}

func TestBest(t *testing.T) {
	result := client.Result{Scores: []client.Score{{Replica: "a"}, {Replica: "b"}}}
	if got, ok := result.Best(nil); !ok || got.Replica != "a" {
		t.Errorf("best of all = %v, %v", got, ok)
	}
	if got, ok := result.Best(func(replica string) bool { return replica == "b" }); !ok || got.Replica != "b" {
		t.Errorf("best eligible = %v, %v", got, ok)
	}
	if got, ok := result.Best(func(string) bool { return false }); ok {
		t.Errorf("best of none = %v", got)
	}
	if got, ok := (client.Result{}).Best(nil); ok {
		t.Errorf("best of an empty result = %v", got)
	}
}

func TestReasons(t *testing.T) {
	seen := map[client.Reason]bool{}
	for _, reason := range client.Reasons() {
		if seen[reason] {
			t.Errorf("%s is listed twice", reason)
		}
		seen[reason] = true
		if answered := client.ParseReason(string(reason)) == reason; answered != reason.Answered() {
			t.Errorf("%s: Answered = %v", reason, reason.Answered())
		}
		if (reason.Hints() || reason.Misconfigured()) && !reason.Answered() {
			t.Errorf("%s says something about an answer there was not", reason)
		}
	}
	for _, code := range []string{"", "prefix_match", "PREFIX_MATCH ", "UNKNOWN_PD_TOPOLOGY", "CLIENT_TIMEOUT"} {
		if got := client.ParseReason(code); got != client.NoHint {
			t.Errorf("ParseReason(%q) = %s", code, got)
		}
	}
}

func TestDial(t *testing.T) {
	t.Run("without transport credentials", func(t *testing.T) {
		if _, err := client.Dial("passthrough:index", client.Options{}); err == nil {
			t.Error("no error")
		}
	})
	t.Run("owns its connection", func(t *testing.T) {
		dial, stop := serve(&fakeIndex{lookup: func(context.Context, *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
			return &pb.LookupRouteResponse{ReasonCode: "NO_HINT"}, nil
		}})
		t.Cleanup(stop)
		c, err := client.Dial("passthrough:index", client.Options{Timeout: patient, Logger: silent}, dial...)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Lookup(t.Context(), question()); got.Reason != client.NoHint {
			t.Errorf("reason %s, error %v", got.Reason, got.Err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if got := c.Lookup(t.Context(), question()); got.Reason != client.Unavailable {
			t.Errorf("reason %s after Close", got.Reason)
		}
	})
	t.Run("to nobody", func(t *testing.T) {
		c, err := client.Dial("passthrough:127.0.0.1:0", client.Options{Logger: silent}, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if got := c.Lookup(t.Context(), question()); got.Reason.Answered() || got.Err == nil {
			t.Errorf("reason %s, error %v", got.Reason, got.Err)
		}
	})
	t.Run("a given connection stays open", func(t *testing.T) {
		conn := connect(t, &fakeIndex{lookup: func(context.Context, *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
			return &pb.LookupRouteResponse{}, nil
		}})
		if err := client.New(conn, client.Options{}).Close(); err != nil {
			t.Error(err)
		}
		got := client.New(conn, client.Options{Timeout: patient, Logger: silent}).Lookup(t.Context(), question())
		if got.Reason != client.NoHint {
			t.Errorf("reason %s, error %v", got.Reason, got.Err)
		}
	})
}

// Many lookups at once, of a server that answers, fails and refuses, are each
// counted once.
func TestLookupConcurrently(t *testing.T) {
	const routines, each = 8, 50
	var calls atomic.Int64
	conn := connect(t, &fakeIndex{lookup: func(context.Context, *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
		switch n := calls.Add(1); {
		case n%40 < 10:
			return nil, status.Error(codes.Unavailable, "gone")
		case n%3 == 0:
			return &pb.LookupRouteResponse{ReasonCode: "UNKNOWN_MODEL"}, nil
		default:
			return &pb.LookupRouteResponse{ReasonCode: "NO_HINT"}, nil
		}
	}})
	var counted tally
	c := client.New(conn, client.Options{Timeout: patient, BreakerOpenFor: time.Microsecond, Logger: silent, Metrics: &counted})
	var running sync.WaitGroup
	for range routines {
		running.Go(func() {
			for range each {
				c.Lookup(t.Context(), question())
			}
		})
	}
	running.Wait()
	sum := 0
	for reason, n := range counted.reasons {
		sum += n
		if !slices.Contains(client.Reasons(), reason) {
			t.Errorf("reason %q is not listed", reason)
		}
	}
	if sum != routines*each {
		t.Errorf("%d lookups counted, want %d", sum, routines*each)
	}
	if slices.Contains(counted.states, client.BreakerHalfOpen) {
		t.Errorf("a trial is told as a change: %v", counted.states)
	}
}
