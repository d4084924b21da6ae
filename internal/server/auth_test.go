// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/inferencecache/inference-cache/internal/auth"
	"github.com/inferencecache/inference-cache/internal/server"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

func heartbeat() *pb.PublisherFrame {
	return &pb.PublisherFrame{Frame: &pb.PublisherFrame_Heartbeat{Heartbeat: &pb.SyncHeartbeat{}}}
}

func stored(sequence, key uint64) *pb.PublisherFrame {
	run := &pb.StoredRun{Keys: []uint64{key}, FirstTokenCount: 16, BlockTokenCount: 16}
	return delta(sequence, &pb.SyncOp{Op: &pb.SyncOp_Stored{Stored: run}})
}

func cleared(sequence uint64) *pb.PublisherFrame {
	return delta(sequence, &pb.SyncOp{Op: &pb.SyncOp_Cleared{Cleared: &pb.ClearedAll{}}})
}

func delta(sequence uint64, op *pb.SyncOp) *pb.PublisherFrame {
	return &pb.PublisherFrame{Sequence: sequence, Frame: &pb.PublisherFrame_Delta{Delta: &pb.SyncDelta{Ops: []*pb.SyncOp{op}}}}
}

func renewal(token string) *pb.PublisherFrame {
	return &pb.PublisherFrame{Frame: &pb.PublisherFrame_TokenRenewal{
		TokenRenewal: &pb.SyncTokenRenewal{Authorization: "Bearer " + token},
	}}
}

// live opens a session of pod A that holds one block.
func (g *guarded) live(token string) *syncSession {
	g.t.Helper()
	s := g.openSync(token)
	s.send(helloOf("team", "pod-a", ""))
	s.snapshot(7)
	if got := s.await(3); got != ok {
		g.t.Fatalf("opening a session: %s", got)
	}
	return s
}

func TestSEC_02_ForgedAndReplayedMessagesChangeNothing(t *testing.T) {
	g := startGuarded(t, server.AuthRequired)
	unchanged := func(what string, do func()) {
		t.Helper()
		before := g.server.Dump()
		do()
		if g.server.Dump() != before {
			t.Errorf("%s changed the index", what)
		}
	}
	for _, kind := range []pb.CacheEvent_Type{pb.CacheEvent_ALL_CLEARED, pb.CacheEvent_PREFIX_EVICTED, pb.CacheEvent_REPLICA_UPDATED} {
		unchanged("a forged "+kind.String(), func() {
			if got := g.publishAs("tok-pod-a", &pb.CacheEvent{
				Type: kind, TenantId: "team", ModelId: "m", ReplicaId: "pod-b", PrefixHash: hash('a'),
			}); got != "DROPPED" {
				t.Errorf("%s: %s", kind, got)
			}
		})
	}
	unchanged("another pod's uid", func() {
		s := g.openSync("tok-pod-a")
		s.send(helloOf("team", "pod-a", "uid-b"))
		if got := s.await(1); got != "unauthorized" {
			t.Errorf("hello: %s", got)
		}
		s.end()
	})

	s := g.live("tok-pod-a")
	s.send(stored(4, 8), cleared(5), stored(6, 9))
	if got := s.await(6); got != ok {
		t.Fatal(got)
	}
	unchanged("a replayed clear", func() {
		s.send(cleared(5), heartbeat())
		if got := s.await(6); got != ok {
			t.Error(got)
		}
	})
	if got := g.metric("inferencecache_ingest_dropped_total", "reason", "stale_sequence", "source", "sync"); got != 1 {
		t.Errorf("%v replayed frames counted, want 1", got)
	}
	s.end()
}

func TestSEC_03_TenantOfOthersLooksAbsent(t *testing.T) {
	g := startGuarded(t, server.AuthRequired)
	g.server.SetPolicies(nil, nil)
	exact := &pb.LookupRouteRequest{ModelId: "m", HashScheme: "vllm", PrefixHash: hash('a'), PrefixTokenCount: 16}
	requests := map[string]*pb.LookupRouteRequest{
		"a chain":              chain("ab", 16),
		"a long chain":         chain(strings.Repeat("abcdefgh", 64), 16),
		"an exact prefix":      exact,
		"token ids":            {ModelId: "m", HashScheme: "vllm", TokenIds: make([]uint32, 64)},
		"nothing to look for":  {ModelId: "m", HashScheme: "vllm"},
		"an unknown model":     {ModelId: "other", HashScheme: "vllm", PrefixHash: hash('a'), PrefixTokenCount: 16},
		"no scheme":            {ModelId: "m", PrefixHash: hash('a'), PrefixTokenCount: 16},
		"an adapter":           {ModelId: "m", HashScheme: "vllm", AdapterId: "x", PrefixHash: hash('a'), PrefixTokenCount: 16},
		"chain and exact both": {ModelId: "m", HashScheme: "vllm", PrefixHash: hash('a'), BlockHashes: [][]byte{hash('b')}, BlockTokenCounts: []int32{16}},
	}
	for name, request := range requests {
		t.Run(name, func(t *testing.T) {
			compare := func(call func(token, tenant string) (proto.Message, error)) {
				t.Helper()
				barred, barredErr := call("tok-other-gw", "team")
				nothing, nothingErr := call("tok-gateway", "absent")
				if diff := cmp.Diff(wire(t, nothing), wire(t, barred)); diff != "" || status.Code(barredErr) != status.Code(nothingErr) {
					t.Errorf("authorised but absent (-) against not authorised (+):\n%s%v, %v", diff, nothingErr, barredErr)
				}
			}
			compare(func(token, tenant string) (proto.Message, error) {
				answer, err := g.client.LookupRoute(g.as(token), of(tenant, proto.Clone(request).(*pb.LookupRouteRequest)))
				if answer.GetReasonCode() == "" {
					t.Error("no answer")
				}
				answer.LookupLatencyUs = 0
				return answer, err
			})
			compare(func(token, tenant string) (proto.Message, error) {
				return g.client.GetCacheState(g.as(token), &pb.GetCacheStateRequest{TenantId: tenant, ModelId: request.GetModelId()})
			})
			compare(func(token, tenant string) (proto.Message, error) {
				return g.client.RenderTemplate(g.as(token), &pb.RenderTemplateRequest{TemplateRef: tenant + "/t", TenantId: tenant})
			})
			compare(func(token, tenant string) (proto.Message, error) {
				return g.client.LookupPDRoute(g.as(token), &pb.LookupPDRouteRequest{TenantId: tenant, ModelId: "m", PdTopologyRef: tenant + "/p"})
			})

			allocations := func(caller, tenant string) float64 {
				ctx := server.WithCaller(t.Context(), auth.Identity{Name: "system:serviceaccount:gw:" + caller})
				r := of(tenant, proto.Clone(request).(*pb.LookupRouteRequest))
				return fewest(func() {
					if _, err := g.server.LookupRoute(ctx, r); err != nil {
						t.Error(err)
					}
				})
			}
			if barred, nothing := allocations("other", "team"), allocations("team", "absent"); barred != nothing {
				t.Errorf("%v allocations for a tenant that is barred, %v for one that is absent", barred, nothing)
			}
		})
	}
}

// fewest is how many allocations a function needs at least: other goroutines
// and emptied pools may add some to a run.
func fewest(run func()) float64 {
	least := testing.AllocsPerRun(1, run)
	for range 50 {
		least = min(least, testing.AllocsPerRun(1, run))
	}
	return least
}

func wire(t *testing.T, m proto.Message) string {
	t.Helper()
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", text)
}

func TestSEC_03_EventsOfOthersAreSilent(t *testing.T) {
	g := startGuarded(t, server.AuthRequired)
	open := func(token string) pb.InferenceCache_StreamCacheEventsClient {
		stream, err := g.client.StreamCacheEvents(g.as(token), &pb.StreamEventsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Header(); err != nil {
			t.Fatal(err)
		}
		return stream
	}
	barred, allowed := open("tok-other-gw"), open("tok-gateway")
	for _, tenant := range []string{"team", "else"} {
		update := g.update("pod-b", "q", 16)
		update.TenantId = tenant
		g.server.Ingest().Update(t.Context(), update)
	}
	for stream, want := range map[pb.InferenceCache_StreamCacheEventsClient]string{barred: "else", allowed: "team"} {
		event, err := stream.Recv()
		if err != nil || event.GetTenantId() != want {
			t.Errorf("first event of %q, %v; want one of %q", event.GetTenantId(), err, want)
		}
	}
}

func TestSEC_13_TokensAreNeverShown(t *testing.T) {
	g := startGuarded(t, server.AuthPermissive)
	tokens := []string{"tok-never-issued"}
	for token := range clusterTokens() {
		tokens = append(tokens, token)
	}
	for _, token := range tokens {
		row := matrixRow{token: token, tenant: "team", replica: "pod-a"}
		for _, op := range operations {
			if answer := op.do(g, row); strings.Contains(answer, token) {
				t.Errorf("%s repeats the token: %s", op.name, answer)
			}
		}
	}
	s := g.live("tok-pod-a")
	s.send(renewal("tok-pod-a-new"), heartbeat(), renewal("tok-bad-renewal"))
	s.end()
	down(g)
	g.reportAs("tok-after-the-fall", g.update("pod-a", "z", 16))

	_, page := g.get("/metrics")
	for _, text := range []string{g.logs.String(), page} {
		if at := strings.Index(text, "tok-"); at >= 0 {
			t.Errorf("a token is shown: %s", text[max(at-100, 0):min(at+50, len(text))])
		}
	}
	if !strings.Contains(g.logs.String(), "is invalid for the target audiences") {
		t.Error("the reviewer's reasons are not in the log")
	}
}

func TestSEC_13_TokensNeedAPrivateTransport(t *testing.T) {
	far := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 4711}
	for name, tc := range map[string]struct {
		peer     net.Addr
		insecure bool
		want     codes.Code
	}{
		"from another machine":        {far, false, codes.Unauthenticated},
		"from another machine, meant": {far, true, codes.OK},
		"from this machine":           {&net.TCPAddr{IP: net.IPv6loopback}, false, codes.OK},
		"from this machine by IPv4":   {&net.TCPAddr{IP: net.IPv4(127, 8, 8, 8)}, false, codes.OK},
		"from nowhere":                {nil, false, codes.Unauthenticated},
	} {
		t.Run(name, func(t *testing.T) {
			g := startGuarded(t, server.AuthRequired, func(o *server.Options) { o.Auth.InsecureTokens = tc.insecure })
			ctx := metadata.NewIncomingContext(peer.NewContext(t.Context(), &peer.Peer{Addr: tc.peer}),
				metadata.Pairs("authorization", "Bearer tok-gateway"))
			err := g.server.Call(ctx, pb.InferenceCache_LookupRoute_FullMethodName)
			if status.Code(err) != tc.want {
				t.Errorf("error %v, want %s", err, tc.want)
			}
		})
	}
}

func TestSEC_18_NoDowngrade(t *testing.T) {
	g := startGuarded(t, server.AuthRequired)
	s := g.live("tok-pod-a")
	down(g)
	if got := g.reportAs("tok-pod-b", g.update("pod-b", "z", 16)); got != cannot {
		t.Errorf("a write while the API server is down: %s", got)
	}
	if got := g.lookupAs(matrixRow{token: "tok-gateway", tenant: "team"}); got != noHint {
		t.Errorf("a lookup while the API server is down: %s", got)
	}
	g.clock.Advance(10 * time.Minute)
	before := g.server.Dump()
	s.send(stored(4, 8))
	if got := s.await(4); got != cannot {
		t.Errorf("a stream whose review is due: %s", got)
	}
	if g.server.Dump() != before {
		t.Error("a frame took effect after the review was due")
	}
	g.cluster.change(func() { g.cluster.down = false })
	if got := g.reportAs("tok-pod-b", g.update("pod-b", "z", 16)); got != ok {
		t.Errorf("a write after the API server came back: %s", got)
	}
	if got := g.lookupAs(matrixRow{token: "tok-gateway", tenant: "team"}); got != ok {
		t.Errorf("a lookup after the API server came back: %s", got)
	}
}

func TestStreamsAreReviewed(t *testing.T) {
	tests := map[string]struct {
		during func(*guarded, *syncSession)
		want   string
	}{
		"a token that is still good": {func(*guarded, *syncSession) {}, ok},
		"a token that expired":       {func(g *guarded, _ *syncSession) { g.revoke("tok-pod-a") }, refused},
		"a renewal in time": {func(g *guarded, s *syncSession) {
			s.send(renewal("tok-pod-a-new"))
			g.revoke("tok-pod-a")
		}, ok},
		"the token of another pod": {func(_ *guarded, s *syncSession) { s.send(renewal("tok-pod-b")) }, refused},
		"a token nobody issued":    {func(_ *guarded, s *syncSession) { s.send(renewal("tok-none")) }, refused},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			g := startGuarded(t, server.AuthRequired)
			s := g.live("tok-pod-a")
			tc.during(g, s)
			g.clock.Advance(10*time.Minute - time.Second)
			s.send(heartbeat())
			g.clock.Advance(time.Second)
			s.send(stored(4, 8))
			if got := s.await(4); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
			s.end()
		})
	}
}

func (g *guarded) revoke(token string) {
	g.cluster.change(func() { delete(g.cluster.tokens, token) })
}

func TestReadersStreamsAreReviewed(t *testing.T) {
	g := startGuarded(t, server.AuthRequired, func(o *server.Options) { o.StreamMetricsInterval = time.Millisecond })
	stream, err := g.client.StreamMetrics(g.as("tok-gateway"), &pb.StreamMetricsRequest{Names: []string{"inferencecache_server_up"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	g.revoke("tok-gateway")
	g.clock.Advance(10 * time.Minute)
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("the stream ended with %v", err)
	}
}

func TestStreamWithoutCredentialsYieldsToTheOwner(t *testing.T) {
	g := startGuarded(t, server.AuthPermissive)
	s := g.live("")
	if got := g.reportAs("tok-pod-a", g.update("pod-a", "c", 16)); got != ok {
		t.Fatal(got)
	}
	before := g.server.Dump()
	s.send(cleared(4))
	if got := s.await(4); got != "PERMISSION_DENIED" {
		t.Errorf("the stream ended with %s", got)
	}
	if g.server.Dump() != before {
		t.Error("it changed what the owner reported")
	}
}

func TestProducersAreBoundInScope(t *testing.T) {
	g := startGuarded(t, server.AuthRequired)
	write := func(model, scheme string) string {
		update := g.update("pod-a", "z", 16)
		update.ModelId, update.HashScheme = model, scheme
		return g.reportAs("tok-pod-a", update)
	}
	for i := range 8 {
		if got := write(fmt.Sprint("model-", i), "vllm"); got != ok {
			t.Fatalf("model %d: %s", i, got)
		}
	}
	for what, got := range map[string]string{
		"a ninth model":   write("model-8", "vllm"),
		"a second scheme": write("model-0", "sglang"),
	} {
		if want := map[bool]string{true: ok, false: "DROPPED"}[what == "a second scheme"]; got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	if got := write("model-0", "third"); got != "DROPPED" {
		t.Errorf("a third scheme: %s", got)
	}
	if diff := cmp.Diff(map[string]float64{"scope": 2}, g.denied()); diff != "" {
		t.Error(diff)
	}
	g.clock.Advance(30 * time.Minute)
	if got := write("model-8", "third"); got != ok {
		t.Errorf("half an hour later: %s", got)
	}
}

func TestRefusedWritesAreAudited(t *testing.T) {
	g := startGuarded(t, server.AuthRequired)
	forge := func() {
		if got := g.reportAs("tok-pod-a", g.update("pod-b", "a", 16)); got != "DROPPED" {
			t.Fatal(got)
		}
	}
	lines := func() []string {
		var audit []string
		for line := range strings.Lines(g.logs.String()) {
			if strings.Contains(line, "audit=true") {
				audit = append(audit, line)
			}
		}
		return audit
	}
	forge()
	forge()
	forge()
	if got := lines(); len(got) != 1 || !strings.Contains(got[0],
		"caller=system:serviceaccount:team:engine reason=replica refusals=1 tenant=team replica=pod-b model=m") {
		t.Errorf("audit %q", got)
	}
	g.clock.Advance(time.Minute)
	forge()
	if got := lines(); len(got) != 2 || !strings.Contains(got[1], "refusals=3") {
		t.Errorf("audit %q", got)
	}
}

func TestStaticTokensOfCalls(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	text := server.AudienceIngest + " tok-w team pod-a\n" + server.AudienceLookup + " tok-r team *\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	g := startGuarded(t, server.AuthRequired, func(o *server.Options) {
		o.Auth.Reviewer, o.Auth.TokenFile, o.Auth.TenantMapFile = nil, file, ""
	})
	for name, tc := range map[string]struct{ got, want string }{
		"a writer":                  {g.reportAs("tok-w", g.update("pod-a", "z", 16)), ok},
		"a writer as another":       {g.reportAs("tok-w", g.update("pod-b", "z", 16)), "DROPPED"},
		"a reader":                  {g.lookupAs(matrixRow{token: "tok-r", tenant: "team"}), ok},
		"a reader elsewhere":        {g.lookupAs(matrixRow{token: "tok-r", tenant: "private"}), absent},
		"a reader that writes":      {g.reportAs("tok-r", g.update("pod-a", "z", 16)), refused},
		"a token of the API server": {g.reportAs("tok-pod-a", g.update("pod-a", "z", 16)), refused},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: %s, want %s", name, tc.got, tc.want)
		}
	}
}

func TestAuthOptionsAreChecked(t *testing.T) {
	for name, tc := range map[string]struct {
		options server.AuthOptions
		says    string
	}{
		"a mode of no meaning":              {server.AuthOptions{Mode: "some"}, "expected off, permissive or required"},
		"nothing to judge by":               {server.AuthOptions{Mode: server.AuthRequired}, "nothing to judge credentials by"},
		"client certificates without TLS":   {server.AuthOptions{ClientCAFile: "ca"}, "need TLS"},
		"permissive with nothing, likewise": {server.AuthOptions{Mode: server.AuthPermissive}, "nothing to judge credentials by"},
	} {
		if _, err := server.New(server.Options{Auth: tc.options}); !errors.Is(err, server.ErrOptions) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: error %v, want one that says %q", name, err, tc.says)
		}
	}
	for name, options := range map[string]server.AuthOptions{
		"a missing token file": {Mode: server.AuthRequired, TokenFile: "/none"},
		"a missing tenant map": {Mode: server.AuthRequired, Reviewer: new(apiServer), TenantMapFile: "/none"},
	} {
		if _, err := server.New(server.Options{Auth: options}); err == nil || errors.Is(err, server.ErrOptions) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestModeIsShown(t *testing.T) {
	for _, mode := range []server.AuthMode{server.AuthOff, server.AuthPermissive, server.AuthRequired} {
		g := startGuarded(t, mode)
		if got := g.metric("inferencecache_server_grpc_auth_mode", "mode", string(mode)); got != 1 {
			t.Errorf("%s: gauge %v", mode, got)
		}
		if warned := strings.Contains(g.logs.String(), "gRPC takes callers without credentials"); warned == (mode == server.AuthRequired) {
			t.Errorf("%s: warned %v", mode, warned)
		}
	}
}

func TestAnonymousCallsAreCounted(t *testing.T) {
	g := startGuarded(t, server.AuthPermissive)
	g.lookupAs(matrixRow{tenant: "team"})
	g.lookupAs(matrixRow{token: "tok-gateway", tenant: "team"})
	if got := g.metric("inferencecache_grpc_anonymous_calls_total"); got != 1 {
		t.Errorf("%v calls counted, want 1", got)
	}
}

// A call that came by gRPC past the guard is nobody's.
func TestRemoteContextsWithoutACallerAreNotTrusted(t *testing.T) {
	g := startGuarded(t, server.AuthRequired)
	remote := peer.NewContext(context.Background(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv6loopback}})
	if result := g.server.Ingest().Update(remote, g.update("pod-a", "z", 16)); !result.Unauthorized {
		t.Errorf("a write: %+v", result)
	}
	answer, err := g.server.LookupRoute(remote, of("team", chain("ab", 16)))
	if err != nil || answer.GetReasonCode() != "UNKNOWN_TENANT" {
		t.Errorf("a lookup: %v, %v", answer, err)
	}
}
