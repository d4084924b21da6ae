// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

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

func TestLookupSendsTheRequest(t *testing.T) {
	chain := client.ChainFromTokens(tokensUpTo(32), 16, "")
	base := func(change func(*client.Request)) client.Request {
		request := client.Request{Tenant: "team-a", Model: "llama", HashScheme: "vllm"}
		change(&request)
		return request
	}
	wire := func(change func(*pb.LookupRouteRequest)) *pb.LookupRouteRequest {
		message := &pb.LookupRouteRequest{TenantId: "team-a", ModelId: "llama", HashScheme: "vllm"}
		change(message)
		return message
	}
	ttft := func(d time.Duration, millis int32) (client.Request, *pb.LookupRouteRequest) {
		return base(func(r *client.Request) { r.TTFT = d }),
			wire(func(m *pb.LookupRouteRequest) { m.Slo = &pb.SLO{TtftMs: millis} })
	}
	type row struct {
		request client.Request
		want    *pb.LookupRouteRequest
	}
	rows := map[string]row{
		"a chain of an adapter": {
			base(func(r *client.Request) { r.Chain, r.Adapter = chain, "sql" }),
			wire(func(m *pb.LookupRouteRequest) {
				m.AdapterId = "sql"
				m.BlockHashes = [][]byte{{0xea, 0x06, 0xfc, 0x71, 0xa5, 0xee, 0x6e, 0x88}, {0xad, 0x01, 0x83, 0x5a, 0x37, 0xdd, 0x29, 0x4c}}
				m.BlockTokenCounts = []int32{16, 16}
			}),
		},
		"an exact prefix": {
			base(func(r *client.Request) { r.PrefixHash, r.PrefixTokens = []byte("p"), 100 }),
			wire(func(m *pb.LookupRouteRequest) { m.PrefixHash, m.PrefixTokenCount = []byte("p"), 100 }),
		},
		"tokens": {
			base(func(r *client.Request) { r.TokenIDs = []uint32{7, 8} }),
			wire(func(m *pb.LookupRouteRequest) { m.TokenIds = []uint32{7, 8} }),
		},
		"text": {
			base(func(r *client.Request) { r.PromptText = "hello" }),
			wire(func(m *pb.LookupRouteRequest) { m.PromptText = "hello" }),
		},
	}
	for name, objective := range map[string]struct {
		ttft   time.Duration
		millis int32
	}{
		"an objective is sent in whole milliseconds":     {199*time.Millisecond + 999*time.Microsecond, 199},
		"an objective below a millisecond stays one":     {time.Microsecond, 1},
		"an objective beyond 32 bits is the largest one": {math.MaxInt64, math.MaxInt32},
	} {
		request, want := ttft(objective.ttft, objective.millis)
		rows[name] = row{request, want}
	}
	for name, tc := range rows {
		t.Run(name, func(t *testing.T) {
			got := make(chan *pb.LookupRouteRequest, 1)
			conn := connect(t, &fakeIndex{lookup: func(_ context.Context, in *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
				got <- in
				return &pb.LookupRouteResponse{}, nil
			}})
			result := client.New(conn, client.Options{Timeout: patient, Logger: silent}).Lookup(t.Context(), tc.request)
			if result.Err != nil {
				t.Fatal(result.Err)
			}
			if diff := cmp.Diff(tc.want, <-got, protocmp.Transform()); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
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

func TestLookupOfARequestWithoutAnAnswer(t *testing.T) {
	long := strings.Repeat("x", 257)
	for name, tc := range map[string]struct {
		change func(*client.Request)
		want   string
	}{
		"no tenant":              {func(r *client.Request) { r.Tenant = "" }, "tenant is empty"},
		"no model":               {func(r *client.Request) { r.Model = "" }, "model is empty"},
		"no hash scheme":         {func(r *client.Request) { r.HashScheme = "" }, "hash scheme is empty"},
		"a tenant too long":      {func(r *client.Request) { r.Tenant = long }, "tenant is longer than 256 bytes"},
		"a model too long":       {func(r *client.Request) { r.Model = long }, "model is longer than 256 bytes"},
		"a hash scheme too long": {func(r *client.Request) { r.HashScheme = long }, "hash scheme is longer than 256 bytes"},
		"an adapter too long":    {func(r *client.Request) { r.Adapter = long }, "adapter is longer than 256 bytes"},
		"a count missing":        {func(r *client.Request) { r.Chain.TokenCounts = r.Chain.TokenCounts[:1] }, "chain has not one token count for each hash"},
	} {
		t.Run(name, func(t *testing.T) {
			var logged logBuffer
			conn := direct(func(context.Context, *pb.LookupRouteRequest, *pb.LookupRouteResponse) error {
				t.Error("the request was sent")
				return nil
			})
			c := client.New(conn, client.Options{Logger: logged.logger()})
			request := question()
			tc.change(&request)
			got := c.Lookup(t.Context(), request)
			if got.Reason != client.InvalidRequest || !errors.Is(got.Err, client.ErrInvalidRequest) || !strings.Contains(got.Err.Error(), tc.want) {
				t.Errorf("reason %s, error %v, want %q", got.Reason, got.Err, tc.want)
			}
			if line := logged.take(); !strings.Contains(line, tc.want) || strings.Contains(line, long) {
				t.Errorf("logged %q", line)
			}
			c.Lookup(t.Context(), request)
			if line := logged.take(); line != "" {
				t.Errorf("logged again: %q", line)
			}
		})
	}
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

func TestParseTTFT(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"200": 200 * time.Millisecond, " 1 ": time.Millisecond, "2147483647": math.MaxInt32 * time.Millisecond,
		"": 0, "0": 0, "-1": 0, "1.5": 0, "200ms": 0, "2147483648": 0, "0x10": 0, "1_000": 0, "+5": 0,
	} {
		if got, ok := client.ParseTTFT(value); got != want || ok != (want > 0) {
			t.Errorf("ParseTTFT(%q) = %s, %v, want %s", value, got, ok, want)
		}
	}
}

func FuzzParseTTFT(f *testing.F) {
	f.Add("200")
	f.Add("99999999999999999999")
	f.Fuzz(func(t *testing.T, value string) {
		ttft, ok := client.ParseTTFT(value)
		inRange := ttft >= time.Millisecond && ttft <= math.MaxInt32*time.Millisecond
		if ok != inRange {
			t.Errorf("ParseTTFT(%q) = %s, %v", value, ttft, ok)
		}
	})
}
