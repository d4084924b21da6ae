// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/inferencecache/inference-cache/pkg/client"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeIndex is the service with its answers written out. Nil functions are
// unimplemented methods.
type fakeIndex struct {
	pb.UnimplementedInferenceCacheServer
	lookup func(context.Context, *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error)
	report func(pb.InferenceCache_ReportCacheStateServer) error
	event  func(context.Context, *pb.CacheEvent) (*pb.Ack, error)
}

func (f *fakeIndex) LookupRoute(ctx context.Context, in *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
	if f.lookup == nil {
		return f.UnimplementedInferenceCacheServer.LookupRoute(ctx, in)
	}
	return f.lookup(ctx, in)
}

func (f *fakeIndex) ReportCacheState(stream pb.InferenceCache_ReportCacheStateServer) error {
	if f.report == nil {
		return f.UnimplementedInferenceCacheServer.ReportCacheState(stream)
	}
	return f.report(stream)
}

func (f *fakeIndex) PublishEvent(ctx context.Context, in *pb.CacheEvent) (*pb.Ack, error) {
	if f.event == nil {
		return f.UnimplementedInferenceCacheServer.PublishEvent(ctx, in)
	}
	return f.event(ctx, in)
}

// serve runs a service in memory and returns the options to dial it.
func serve(service pb.InferenceCacheServer) (dial []grpc.DialOption, stop func()) {
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer()
	pb.RegisterInferenceCacheServer(server, service)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	dial = []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
	}
	return dial, func() {
		server.Stop()
		<-done
	}
}

// connect runs a service until the test ends and returns a connection to it.
func connect(t *testing.T, service pb.InferenceCacheServer) *grpc.ClientConn {
	t.Helper()
	dial, stop := serve(service)
	t.Cleanup(stop)
	conn, err := grpc.NewClient("passthrough:index", dial...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// direct is a connection whose calls are a function's: no network, no
// goroutine.
type direct func(ctx context.Context, in *pb.LookupRouteRequest, out *pb.LookupRouteResponse) error

func (d direct) Invoke(ctx context.Context, _ string, in, out any, _ ...grpc.CallOption) error {
	return d(ctx, in.(*pb.LookupRouteRequest), out.(*pb.LookupRouteResponse))
}

func (direct) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	panic("lookups open no streams")
}

// says answers every lookup with one reason code.
func says(code string) direct {
	return func(_ context.Context, _ *pb.LookupRouteRequest, out *pb.LookupRouteResponse) error {
		out.ReasonCode = code
		return nil
	}
}

// patient is long enough for any machine.
const patient = time.Minute

var silent = slog.New(slog.DiscardHandler)

// tokensUpTo returns the tokens 1 to n.
func tokensUpTo(n uint32) (tokens []uint32) {
	for token := uint32(1); token <= n; token++ {
		tokens = append(tokens, token)
	}
	return tokens
}

// question is a valid request.
func question() client.Request {
	return client.Request{
		Tenant: "team-a", Model: "llama", HashScheme: "vllm",
		Chain: client.ChainFromTokens(tokensUpTo(32), 16, ""),
	}
}

// logBuffer collects log lines without their time.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// take returns what was logged since the last take.
func (b *logBuffer) take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.text.Reset()
	return b.text.String()
}

func (b *logBuffer) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
}

// tally counts what a Client tells its Metrics.
type tally struct {
	mu      sync.Mutex
	reasons map[client.Reason]int
	states  []client.BreakerState
}

func (t *tally) ObserveLookup(reason client.Reason, _ time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reasons == nil {
		t.reasons = map[client.Reason]int{}
	}
	t.reasons[reason]++
}

func (t *tally) ObserveBreaker(state client.BreakerState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.states = append(t.states, state)
}
