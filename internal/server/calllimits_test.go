// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/inferencecache/inference-cache/internal/server"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// flood makes calls and returns how many were not refused for their number.
func (g *guarded) flood(token string, calls int) (served int) {
	g.t.Helper()
	for range calls {
		_, err := g.client.GetCacheState(g.as(token), &pb.GetCacheStateRequest{TenantId: "team", ModelId: "m"})
		switch status.Code(err) {
		case codes.OK:
			served++
		case codes.ResourceExhausted:
		default:
			g.t.Fatal(err)
		}
	}
	return served
}

func TestCallersAreBounded(t *testing.T) {
	g := startGuarded(t, server.AuthRequired, func(o *server.Options) { o.Calls = server.CallLimits{PerSecond: 10, Concurrent: 2} })
	if got := g.flood("tok-gateway", 30); got != 10 {
		t.Errorf("%d calls of a burst were served, want 10", got)
	}
	if got := g.flood("tok-other-gw", 5); got != 5 {
		t.Errorf("%d of 5 calls of another caller were served", got)
	}
	g.clock.Advance(time.Second / 2)
	if got := g.flood("tok-gateway", 30); got != 5 {
		t.Errorf("%d calls were served half a second later, want 5", got)
	}
	if got := g.reportAs("tok-pod-a", g.update("pod-a", "z", 16)); got != ok {
		t.Errorf("a report: %s", got)
	}
	if got := g.metric("inferencecache_grpc_limited_total", "limit", "rate"); got != 45 {
		t.Errorf("%v refusals counted, want 45", got)
	}
	g.clock.Advance(time.Second)
	var streams []pb.InferenceCache_StreamCacheEventsClient
	for range 3 {
		stream, err := g.client.StreamCacheEvents(g.as("tok-gateway"), &pb.StreamEventsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, stream)
		if _, err := stream.Header(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := streams[2].Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a third stream at once: %v", err)
	}
	if got := g.metric("inferencecache_grpc_limited_total", "limit", "concurrency"); got != 1 {
		t.Errorf("%v refusals counted, want 1", got)
	}
}

// Callers without credentials are told apart by their address.
func TestStrangersAreBounded(t *testing.T) {
	h := start(t, func(o *server.Options) { o.Calls = server.CallLimits{PerSecond: 10} })
	from := func(addr net.Addr, method string, calls int) (served int) {
		for range calls {
			if h.server.Limited(peer.NewContext(t.Context(), &peer.Peer{Addr: addr}), method) == nil {
				served++
			}
		}
		return served
	}
	const lookup, report = pb.InferenceCache_LookupRoute_FullMethodName, pb.InferenceCache_PublishEvent_FullMethodName
	far := func(last int) net.Addr {
		return &net.TCPAddr{IP: net.IPv4(192, 0, byte(last>>8), byte(last)), Port: last}
	}
	for _, tc := range []struct {
		what   string
		addr   net.Addr
		method string
		want   int
	}{
		{"another machine", far(1), lookup, 10},
		{"the same once more", far(1), lookup, 0},
		{"its reports", far(1), report, 20},
		{"a second machine", far(2), lookup, 10},
		{"this machine", &net.TCPAddr{IP: net.IPv6loopback}, lookup, 20},
	} {
		if got := from(tc.addr, tc.method, 20); got != tc.want {
			t.Errorf("%s: %d calls served, want %d", tc.what, got, tc.want)
		}
	}
	for i := range 5000 {
		from(far(i), lookup, 1)
	}
	if got := from(far(9000), lookup, 20); got != 0 {
		t.Errorf("%d calls of a caller without room were served, want 0 beside the others", got)
	}
	h.clock.Advance(2 * time.Second)
	if got := from(far(9000), lookup, 20); got != 10 {
		t.Errorf("%d calls were served once the others fell silent, want 10", got)
	}
}

func TestCallersWithoutBounds(t *testing.T) {
	g := startGuarded(t, server.AuthRequired, func(o *server.Options) { o.Calls = server.CallLimits{PerSecond: -1, Concurrent: -1} })
	if got := g.flood("tok-gateway", 50); got != 50 {
		t.Errorf("%d of 50 calls were served", got)
	}
}

func TestConnectionsAndStreamsAreBounded(t *testing.T) {
	h := start(t, func(o *server.Options) { o.MaxConnections, o.MaxStreams = 1, 2 })
	h.lookup(chain("a", 16)) // holds the one connection
	second := h.dial()
	defer second.Close()
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error, 1)
	go func() {
		_, err := pb.NewInferenceCacheClient(second).LookupRoute(ctx, chain("a", 16))
		waiting <- err
	}()
	streams := map[int]context.CancelFunc{}
	for i := range 2 {
		ctx, end := context.WithCancel(t.Context())
		streams[i] = end
		stream, err := h.client.StreamCacheEvents(ctx, &pb.StreamEventsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Header(); err != nil {
			t.Fatal(fmt.Errorf("stream %d: %w", i, err))
		}
	}
	held, release := context.WithCancel(t.Context())
	third := make(chan error, 1)
	go func() {
		_, err := h.client.LookupRoute(held, chain("a", 16))
		third <- err
	}()
	select {
	case err := <-waiting:
		t.Errorf("a second connection was served: %v", err)
	case err := <-third:
		t.Errorf("a third call at once was served: %v", err)
	default:
	}
	streams[0]()
	if err := <-third; err != nil {
		t.Errorf("a call after a stream ended: %v", err)
	}
	streams[1]()
	release()
	if err := h.conn.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; err != nil {
		t.Errorf("a connection after another ended: %v", err)
	}
	cancel()
}
