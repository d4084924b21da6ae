// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/inferencecache/inference-cache/internal/controller"
	"github.com/inferencecache/inference-cache/internal/server"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// brokenIndex answers every lookup in the same way.
type brokenIndex struct {
	pb.UnimplementedInferenceCacheServer
	reason string
	hang   bool
}

func (b *brokenIndex) LookupRoute(ctx context.Context, _ *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
	if b.hang {
		<-ctx.Done()
	}
	return &pb.LookupRouteResponse{ReasonCode: b.reason}, ctx.Err()
}

func serveGRPC(t *testing.T, index pb.InferenceCacheServer, state healthpb.HealthCheckResponse_ServingStatus) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serving := grpc.NewServer()
	healthy := health.NewServer()
	healthy.SetServingStatus("", state)
	healthpb.RegisterHealthServer(serving, healthy)
	pb.RegisterInferenceCacheServer(serving, index)
	done := make(chan struct{})
	go func() { defer close(done); _ = serving.Serve(listener) }()
	t.Cleanup(func() { serving.Stop(); <-done })
	return listener.Addr().String()
}

func TestFaceCheck(t *testing.T) {
	const serving, not = healthpb.HealthCheckResponse_SERVING, healthpb.HealthCheckResponse_NOT_SERVING
	for name, tc := range map[string]struct {
		index *brokenIndex
		state healthpb.HealthCheckResponse_ServingStatus
		want  string
	}{
		"a server that serves":               {&brokenIndex{reason: "NO_HINT"}, serving, ""},
		"one that does not":                  {&brokenIndex{reason: "NO_HINT"}, not, "health is NOT_SERVING"},
		"one that hints at the reserved one": {&brokenIndex{reason: "PREFIX_MATCH"}, serving, `the reserved tenant got "PREFIX_MATCH"`},
		"one that hangs":                     {&brokenIndex{hang: true}, serving, "lookup: "},
	} {
		t.Run(name, func(t *testing.T) {
			face := &controller.GRPCFace{Address: serveGRPC(t, tc.index, tc.state)}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if tc.index.hang {
				ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
				defer cancel()
			}
			err := face.Check(ctx, controller.Server{}, "m", "vllm")
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// With several servers each is called at its own address.
func TestFaceOfEachServer(t *testing.T) {
	address := serveGRPC(t, &brokenIndex{reason: "NO_HINT"}, healthpb.HealthCheckResponse_SERVING)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	face := &controller.GRPCFace{Address: "no-such-host.invalid:" + port, EachServer: true}
	if err := face.Check(t.Context(), controller.Server{Name: "s", Address: "127.0.0.1:1"}, "m", "vllm"); err != nil {
		t.Error(err)
	}
	if err := face.Check(t.Context(), controller.Server{Name: "s", Address: "nonsense"}, "m", "vllm"); err == nil {
		t.Error("an address without a port is called")
	}
}

// The check passes against the program's own server.
func TestFaceOfARealServer(t *testing.T) {
	index, err := server.New(server.Options{GRPCAddress: "127.0.0.1:0", WithoutHTTP: true, ReadyMaxWait: -1})
	if err != nil {
		t.Fatal(err)
	}
	if err := index.Start(); err != nil {
		t.Fatal(err)
	}
	run(t, index.Run)
	face := &controller.GRPCFace{Address: index.Addresses().GRPC.String()}
	eventually(t, "the server serves", func() bool { return face.Check(t.Context(), controller.Server{}, "m", "vllm") == nil })
}
