// SPDX-License-Identifier: Apache-2.0

package publisher_test

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/ingest"
	"github.com/inferencecache/inference-cache/internal/publisher"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// serveSync serves s over loopback until the benchmark ends.
func serveSync(b *testing.B, s *server) *grpc.ClientConn {
	b.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	grpcServer := grpc.NewServer()
	pb.RegisterCacheSyncServer(grpcServer, s.sync)
	go func() { _ = grpcServer.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		conn.Close()
		grpcServer.Stop()
	})
	return conn
}

// ackObserver passes on the end of each delta and snapshot.
type ackObserver struct{ acked, snapshots chan struct{} }

func (o ackObserver) DeltaAcked(time.Duration)                      { o.acked <- struct{}{} }
func (o ackObserver) QueueOverflowed()                              {}
func (o ackObserver) SnapshotEnded(result publisher.SnapshotResult) { o.snapshots <- struct{}{} }

func benchHub(b *testing.B, mirror *fakeMirror) (*publisher.Hub, *server, ackObserver) {
	b.Helper()
	s := newServer(ingest.SyncOptions{})
	target := publisher.NewGRPCTarget("s", serveSync(b, s))
	observer := ackObserver{make(chan struct{}, 1), make(chan struct{}, 1)}
	hub := publisher.NewHub(testIdentity(), mirror, []publisher.Target{target}, publisher.HubOptions{Observer: observer})
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- hub.Run(ctx) }()
	b.Cleanup(func() { cancel(); <-ended })
	<-observer.snapshots
	return hub, s, observer
}

// BenchmarkDeltaOverGRPC is the time from Publish to the acknowledgement,
// which follows visibility.
func BenchmarkDeltaOverGRPC(b *testing.B) {
	mirror := newFakeMirror()
	hub, _, observer := benchHub(b, mirror)
	for i := 0; b.Loop(); i++ {
		hub.Publish(func() []*pb.SyncDelta { return mirror.store("", index.TierT1, uint64(i%64), 4) })
		<-observer.acked
	}
}

// BenchmarkSnapshotOverGRPC is the time from a resync request until 100,000
// blocks are visible again.
func BenchmarkSnapshotOverGRPC(b *testing.B) {
	const blocks = 100_000
	for b.Loop() {
		b.StopTimer()
		mirror := newFakeMirror()
		mirror.store("", index.TierT1, 1, blocks)
		b.StartTimer()
		benchHub(b, mirror)
	}
	b.ReportMetric(blocks*float64(b.N)/b.Elapsed().Seconds(), "blocks/s")
}
