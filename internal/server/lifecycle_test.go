// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/inferencecache/inference-cache/internal/server"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

func TestHealthIsServingUntilShutdown(t *testing.T) {
	h := start(t)
	health := healthpb.NewHealthClient(h.conn)
	for _, name := range []string{"", "inferencecache.v1alpha1.InferenceCache", "inferencecache.v1alpha1.CacheSync"} {
		got, err := health.Check(h.ctx(), &healthpb.HealthCheckRequest{Service: name})
		if err != nil || got.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("health of %q: %v, %v", name, got, err)
		}
	}
	watch, err := health.Watch(h.ctx(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if first, err := watch.Recv(); err != nil || first.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("first of watch: %v, %v", first, err)
	}
	h.stop()
	if next, err := watch.Recv(); err != nil || next.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("watch at shutdown: %v, %v", next, err)
	}
	if _, err := watch.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("end of watch: %v, want unavailable", err)
	}
}

// TestServesOnWhileLoadBalancersLearnOfTheShutdown connects and reports after the
// signal.
func TestServesOnWhileLoadBalancersLearnOfTheShutdown(t *testing.T) {
	t.Parallel()
	h := start(t, func(o *server.Options) { o.ShutdownDelay = 3 * time.Second })
	report, err := h.client.ReportCacheState(h.ctx())
	if err != nil {
		t.Fatal(err)
	}
	h.stop()
	ctx, ready := h.ctx(), http.StatusOK
	for ready == http.StatusOK && ctx.Err() == nil {
		ready, _ = h.get("/readyz")
	}
	if ready != http.StatusServiceUnavailable {
		t.Fatalf("/readyz answers %d after the signal", ready)
	}
	if err := report.Send(h.update("w", "abcd", 64)); err != nil {
		t.Fatal(err)
	}
	h.wantVisible("abcd")
	conn := h.dial()
	defer conn.Close()
	late := healthpb.NewHealthClient(conn)
	if got, err := late.Check(h.ctx(), &healthpb.HealthCheckRequest{}); err != nil || got.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health on a new connection: %v, %v", got, err)
	}
	answer, err := pb.NewInferenceCacheClient(conn).LookupRoute(h.ctx(), chain("abcd", 64))
	if err != nil || answer.GetReasonCode() != "PREFIX_MATCH" {
		t.Errorf("lookup on a new connection: %v, %v", answer.GetReasonCode(), err)
	}
	h.shutDown()
	if _, err := report.CloseAndRecv(); err != nil {
		t.Errorf("report stream ended with %v, want an Ack", err)
	}
}

// TestShutdownEndsOpenStreams leaves one stream of each kind open. The grace
// period is longer than the test may take, so nothing waits for its end.
func TestShutdownEndsOpenStreams(t *testing.T) {
	h := start(t, func(o *server.Options) { o.ShutdownGrace = time.Hour })
	report, err := h.client.ReportCacheState(h.ctx())
	if err != nil {
		t.Fatal(err)
	}
	if err := report.Send(h.update("w", "abcd", 64)); err != nil {
		t.Fatal(err)
	}
	session := h.openSession()
	reflection, err := reflectionpb.NewServerReflectionClient(h.conn).ServerReflectionInfo(h.ctx())
	if err != nil {
		t.Fatal(err)
	}
	request := &reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{},
	}
	if err := reflection.Send(request); err != nil {
		t.Fatal(err)
	}
	services, err := reflection.Recv()
	if err != nil {
		t.Fatal(err)
	}
	h.wantVisible("abcd")

	h.shutDown()

	var names []string
	for _, service := range services.GetListServicesResponse().GetService() {
		names = append(names, service.GetName())
	}
	if got := strings.Join(names, " "); !strings.Contains(got, "InferenceCache") || !strings.Contains(got, "CacheSync") {
		t.Errorf("reflection shows %q", got)
	}
	var ack pb.Ack
	if err := report.RecvMsg(&ack); err != nil || !ack.GetAccepted() {
		t.Errorf("report stream ended with %v, %v; want an Ack", &ack, err)
	}
	for {
		if _, err = session.Recv(); err != nil {
			break
		}
	}
	if status.Code(err) != codes.Unavailable {
		t.Errorf("session ended with %v, want unavailable", err)
	}
	if _, err := reflection.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("reflection ended with %v, want unavailable", err)
	}
}

// openSession opens a CacheSync session and waits for its welcome.
func (h *harness) openSession() grpc.BidiStreamingClient[pb.PublisherFrame, pb.ServerFrame] {
	h.t.Helper()
	session, err := pb.NewCacheSyncClient(h.conn).Sync(h.ctx())
	if err != nil {
		h.t.Fatal(err)
	}
	hello := &pb.SyncHello{
		ProtocolVersion: 1, TenantId: "team", ModelId: "m", HashScheme: "vllm", ReplicaId: "s",
		BlockSize: 32, RankCount: 1, Incarnation: &pb.SyncIncarnation{Epoch: 1, StartedUs: 1},
	}
	if err := session.Send(&pb.PublisherFrame{Frame: &pb.PublisherFrame_Hello{Hello: hello}}); err != nil {
		h.t.Fatal(err)
	}
	frame, err := session.Recv()
	if err != nil || frame.GetWelcome() == nil {
		h.t.Fatalf("answer to hello: %v, %v", frame, err)
	}
	return session
}

// wantVisible waits until a chain of 64-token blocks is known to the server.
func (h *harness) wantVisible(letters string) {
	h.t.Helper()
	for ctx := h.ctx(); ctx.Err() == nil; {
		response, err := h.client.LookupRoute(ctx, chain(letters, 64))
		if err == nil && response.GetReasonCode() == "PREFIX_MATCH" {
			return
		}
	}
	h.t.Fatalf("chain %q never became visible", letters)
}

// TestShutdownGraceBoundsUnaryCalls holds a lookup in the tokenizer.
func TestShutdownGraceBoundsUnaryCalls(t *testing.T) {
	entered := make(chan struct{})
	h := start(t, func(o *server.Options) {
		o.ShutdownGrace = 10 * time.Millisecond
		o.Tokenizer = tokenizerFunc(func(ctx context.Context) ([]uint32, error) {
			close(entered)
			<-ctx.Done()
			return nil, ctx.Err()
		})
	})
	answered := make(chan error)
	go func() {
		_, err := h.client.LookupRoute(h.ctx(), &pb.LookupRouteRequest{TenantId: "team", ModelId: "m", HashScheme: "vllm", PromptText: "hi"})
		answered <- err
	}()
	<-entered
	h.shutDown()
	if err := <-answered; status.Code(err) != codes.Unavailable {
		t.Errorf("held lookup ended with %v, want unavailable", err)
	}
}

// TestShutdownLeavesAStuckCallBehind holds a lookup in a tokenizer that obeys
// no context.
func TestShutdownLeavesAStuckCallBehind(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	h := start(t, func(o *server.Options) {
		o.ShutdownGrace = time.Millisecond
		o.Tokenizer = tokenizerFunc(func(context.Context) ([]uint32, error) {
			close(entered)
			<-leave
			return nil, nil
		})
	})
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		_, _ = h.client.LookupRoute(h.ctx(), &pb.LookupRouteRequest{TenantId: "team", ModelId: "m", HashScheme: "vllm", PromptText: "hi"})
	}()
	<-entered
	h.shutDown()
	close(leave)
	<-answered
}

type tokenizerFunc func(ctx context.Context) ([]uint32, error)

func (f tokenizerFunc) Tokenize(ctx context.Context, _, _ string) ([]uint32, error) { return f(ctx) }

func TestPanicIsAnsweredAndCounted(t *testing.T) {
	h := start(t, func(o *server.Options) {
		o.Tokenizer = tokenizerFunc(func(context.Context) ([]uint32, error) { panic("tokenizer") })
	})
	text := &pb.LookupRouteRequest{TenantId: "team", ModelId: "m", HashScheme: "vllm", PromptText: "hi"}
	for range 2 {
		h.wantAnswer(text, "NO_HINT")
	}
	h.wantMetric(`inferencecache_panics_total{component="lookup"}`, 2)
	h.wantMetric(`inferencecache_lookup_route_calls_total{hint_used="false",model="m",reason_code="NO_HINT"}`, 2)
	h.wantMetric(`inferencecache_lookup_route_latency_seconds{model="m"}`, 2)
	h.report(h.update("w", "abcd", 64))
	h.wantAnswer(chain("abcd", 64), "PREFIX_MATCH w 256/256")
}

func TestReadiness(t *testing.T) {
	waiting := "an engine"
	h := start(t, func(o *server.Options) {
		o.ReadyMaxWait = 10 * time.Second
		o.Waiting = func() string { return waiting }
	})
	steps := []struct {
		what    string
		advance time.Duration
		change  func()
		want    int
	}{
		{"publishers have had no time yet", 0, nil, http.StatusServiceUnavailable},
		{"the engine is not reached", 4 * time.Second, nil, http.StatusServiceUnavailable},
		{"the engine is reached", 0, func() { waiting = "" }, http.StatusOK},
		{"the engine is lost within the wait", 0, func() { waiting = "an engine" }, http.StatusServiceUnavailable},
		{"the longest wait is over", 6 * time.Second, nil, http.StatusOK},
	}
	for _, step := range steps {
		h.clock.Advance(step.advance)
		if step.change != nil {
			step.change()
		}
		if got, body := h.get("/readyz"); got != step.want {
			t.Errorf("%s: %d %q, want %d", step.what, got, body, step.want)
		}
	}
}

func TestReadinessWaitsForSnapshots(t *testing.T) {
	h := start(t, func(o *server.Options) { o.ReadyMaxWait = time.Minute })
	session := h.openSession()
	h.clock.Advance(30 * time.Second)
	if code, body := h.get("/readyz?verbose"); code != http.StatusServiceUnavailable || !strings.Contains(body, "1 in snapshot") {
		t.Errorf("while a snapshot is due: %d %q", code, body)
	}
	h.clock.Advance(30 * time.Second)
	if code, body := h.get("/readyz"); code != http.StatusOK {
		t.Errorf("after the longest wait: %d %q", code, body)
	}
	_ = session.CloseSend() // the server may have ended it
}

func TestPublicHTTPPaths(t *testing.T) {
	h := start(t)
	for path, want := range map[string]int{
		"/healthz": http.StatusOK, "/readyz": http.StatusOK, "/metrics": http.StatusOK,
		"/snapshot": http.StatusNotFound, "/policy": http.StatusNotFound, "/probe": http.StatusNotFound,
		"/status": http.StatusNotFound, "/debug/pprof/": http.StatusNotFound, "/": http.StatusNotFound,
	} {
		if got, _ := h.get(path); got != want {
			t.Errorf("%s: %d, want %d", path, got, want)
		}
	}
	if _, body := h.get("/healthz"); body != "ok\n" {
		t.Errorf("/healthz says %q", body)
	}
}

func TestStartLeavesNothingOpenOnError(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	s, err := server.New(server.Options{GRPCAddress: address, HTTPAddress: taken.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context()); err == nil {
		t.Fatal("Run succeeded on a port in use")
	}
	again, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatalf("gRPC port is still open: %v", err)
	}
	again.Close()
}

func TestInvalidOptions(t *testing.T) {
	for name, options := range map[string]server.Options{
		"a certificate without a key": {TLSCertFile: "cert"},
		"a negative message limit":    {MaxRecvBytes: -1},
		"a negative block size":       {BlockSize: -1},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := server.New(options); !errors.Is(err, server.ErrOptions) {
				t.Errorf("New: %v, want ErrOptions", err)
			}
		})
	}
	if _, err := server.New(server.Options{TLSCertFile: "/none", TLSKeyFile: "/none"}); err == nil || errors.Is(err, server.ErrOptions) {
		t.Errorf("New with unreadable TLS files: %v, want another error", err)
	}
}

func TestMessageLimit(t *testing.T) {
	h := start(t, func(o *server.Options) { o.MaxRecvBytes = 1024 })
	_, err := h.client.LookupRoute(h.ctx(), chain(strings.Repeat("ab", 200), 16))
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("oversized lookup: %v, want resource exhausted", err)
	}
	h.wantAnswer(chain("ab", 16), "NO_HINT")
}

func TestBlockSizeOfASession(t *testing.T) {
	h := start(t)
	session := h.openSession()
	tokens := sequence(1, 128)
	h.report(tokenUpdate("w", "", tokens, 32), h.update("v", "x", 16))
	h.wantAnswer(tokenLookup(tokens), "PREFIX_MATCH w 64/128")
	_ = session.CloseSend() // ends the session
	for ctx := h.ctx(); ; {
		if _, err := session.Recv(); err != nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("session did not end")
		}
	}
}
