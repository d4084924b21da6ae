// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"context"

	"github.com/inferencecache/inference-cache/internal/publisher"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// renewingTarget sends a token that changed in the middle of a stream ahead of
// the next heartbeat, so that the server need not end the stream.
type renewingTarget struct {
	publisher.Target
	// authorization returns the value of the authorization metadata.
	authorization func() (string, error)
}

// Open starts a stream.
func (t renewingTarget) Open(ctx context.Context) (publisher.Stream, error) {
	sent, err := t.authorization()
	if err != nil {
		return nil, err
	}
	stream, err := t.Target.Open(ctx)
	if err != nil {
		return nil, err
	}
	return &renewingStream{Stream: stream, authorization: t.authorization, sent: sent}, nil
}

// renewingStream is used by one sender at a time.
type renewingStream struct {
	publisher.Stream
	authorization func() (string, error)
	sent          string
}

// Send sends a frame.
func (s *renewingStream) Send(frame *pb.PublisherFrame) error {
	if frame.GetHeartbeat() != nil {
		if err := s.renew(frame.GetSequence()); err != nil {
			return err
		}
	}
	return s.Stream.Send(frame)
}

// renew sends the token if it is a new one. While the file cannot be read the
// server goes by the old one.
func (s *renewingStream) renew(sequence uint64) error {
	current, err := s.authorization()
	if err != nil || current == s.sent {
		return nil
	}
	s.sent = current
	return s.Stream.Send(&pb.PublisherFrame{
		Sequence: sequence,
		Frame:    &pb.PublisherFrame_TokenRenewal{TokenRenewal: &pb.SyncTokenRenewal{Authorization: current}},
	})
}
