// SPDX-License-Identifier: Apache-2.0

package publisher_test

import (
	"context"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/publisher"
	"github.com/inferencecache/inference-cache/internal/zmtp"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// deltaTarget is a server that acknowledges everything and tells of deltas.
type deltaTarget struct{ deltas chan struct{} }

func (t *deltaTarget) Name() string { return "server" }

func (t *deltaTarget) Open(ctx context.Context) (publisher.Stream, error) {
	return &deltaStream{ctx: ctx, deltas: t.deltas, answers: make(chan *pb.ServerFrame, 1024)}, nil
}

type deltaStream struct {
	ctx     context.Context
	deltas  chan struct{}
	answers chan *pb.ServerFrame
}

func (s *deltaStream) Send(frame *pb.PublisherFrame) error {
	switch frame.GetFrame().(type) {
	case *pb.PublisherFrame_Hello:
		s.answers <- &pb.ServerFrame{Frame: &pb.ServerFrame_Welcome{Welcome: &pb.SyncWelcome{
			ProtocolVersion: 1, ServerEpoch: "e", NeedSnapshot: true, WindowFrames: 1024, MaxBlocksPerFrame: 4096,
		}}}
		return nil
	case *pb.PublisherFrame_Delta:
		s.deltas <- struct{}{}
	}
	s.answers <- &pb.ServerFrame{Frame: &pb.ServerFrame_Ack{Ack: &pb.SyncAck{Sequence: frame.GetSequence(), WindowFrames: 1024}}}
	return nil
}

func (s *deltaStream) Recv() (*pb.ServerFrame, error) {
	select {
	case frame := <-s.answers:
		return frame, nil
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

func (s *deltaStream) CloseSend() error {
	return context.Canceled
}

// BenchmarkForwarding measures one batch from the engine's socket over
// loopback TCP until its delta is handed to a server's stream.
func BenchmarkForwarding(b *testing.B) {
	l, err := zmtp.Listen("tcp://127.0.0.1:*", zmtp.Options{Type: zmtp.PUB})
	if err != nil {
		b.Fatal(err)
	}
	pub := zmtp.NewPub(l, zmtp.PubOptions{HighWaterMark: 100_000})
	defer pub.Close()
	target := &deltaTarget{deltas: make(chan struct{}, 1)}
	p, err := publisher.New(quick(publisher.Config{Events: l.Endpoint()}), []publisher.Target{target}, publisher.Deps{})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	defer func() {
		cancel()
		<-ended
	}()
	for !p.Status().Ready() || pub.Subscribers() == 0 {
		if ctx.Err() != nil {
			b.Fatal("not ready")
		}
	}
	// Each of the two undoes the other, so that each makes a delta.
	batches := [2][]byte{storeBatch(noRank, 0, 1, 0, 1), removeBatch(noRank, 0, 1, 0)}
	sequence := uint64(0)
	for b.Loop() {
		pub.Send(nil, be(sequence), batches[sequence%2])
		select {
		case <-target.deltas:
		case <-time.After(10 * time.Second):
			b.Fatalf("no delta for batch %d", sequence)
		}
		sequence++
	}
}
