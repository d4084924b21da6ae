// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/publisher"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// recordingTarget opens streams that write down what is sent.
type recordingTarget struct{ sent []string }

func (*recordingTarget) Name() string { return "recording" }

func (t *recordingTarget) Open(context.Context) (publisher.Stream, error) {
	return recordingStream{t}, nil
}

type recordingStream struct{ target *recordingTarget }

func (s recordingStream) Send(frame *pb.PublisherFrame) error {
	what := "other"
	switch f := frame.GetFrame().(type) {
	case *pb.PublisherFrame_Heartbeat:
		what = "heartbeat"
	case *pb.PublisherFrame_TokenRenewal:
		what = f.TokenRenewal.GetAuthorization()
		if frame.GetSequence() != 7 {
			what += " out of sequence"
		}
	}
	s.target.sent = append(s.target.sent, what)
	return nil
}

func (recordingStream) Recv() (*pb.ServerFrame, error) { return nil, nil }
func (recordingStream) CloseSend() error               { return nil }

func TestRenewedTokenGoesAheadOfHeartbeats(t *testing.T) {
	current, fault := "Bearer 1", error(nil)
	recorded := new(recordingTarget)
	target := renewingTarget{recorded, func() (string, error) { return current, fault }}
	stream, err := target.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send := func(frame *pb.PublisherFrame) {
		t.Helper()
		frame.Sequence = 7
		if err := stream.Send(frame); err != nil {
			t.Fatal(err)
		}
	}
	heartbeat := func() {
		t.Helper()
		send(&pb.PublisherFrame{Frame: &pb.PublisherFrame_Heartbeat{Heartbeat: &pb.SyncHeartbeat{}}})
	}
	heartbeat()
	current = "Bearer 2"
	send(&pb.PublisherFrame{Frame: &pb.PublisherFrame_Delta{}})
	heartbeat()
	heartbeat()
	current, fault = "", errors.New("unreadable")
	heartbeat()
	want := []string{"heartbeat", "other", "Bearer 2", "heartbeat", "heartbeat", "heartbeat"}
	if diff := cmp.Diff(want, recorded.sent); diff != "" {
		t.Errorf("frames (-want +got):\n%s", diff)
	}
	if _, err := target.Open(t.Context()); !errors.Is(err, fault) {
		t.Errorf("opened without a readable token: %v", err)
	}
}
