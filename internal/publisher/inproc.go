// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// inProcFrames is how many frames may be on their way in each direction.
const inProcFrames = 64

// InProcTarget is a server in this process, called through the same handler
// that serves gRPC.
type InProcTarget struct {
	name   string
	server pb.CacheSyncServer
}

var _ Target = (*InProcTarget)(nil)

// NewInProcTarget returns a target that calls server directly.
func NewInProcTarget(name string, server pb.CacheSyncServer) *InProcTarget {
	return &InProcTarget{name: name, server: server}
}

// Name returns the name given to NewInProcTarget.
func (t *InProcTarget) Name() string { return t.name }

// Open runs the server's handler on a goroutine that ends with the call.
func (t *InProcTarget) Open(ctx context.Context) (Stream, error) {
	ctx, cancel := context.WithCancel(ctx)
	p := &pipe{
		ctx:      ctx,
		toServer: make(chan *pb.PublisherFrame, inProcFrames),
		toClient: make(chan *pb.ServerFrame, inProcFrames),
		done:     make(chan struct{}),
	}
	go func() {
		defer cancel()
		defer close(p.done)
		p.err = t.server.Sync(&pipeServer{pipe: p})
	}()
	return &pipeClient{pipe: p}, nil
}

// pipe is what the two ends of an in-process call share.
type pipe struct {
	ctx      context.Context
	toServer chan *pb.PublisherFrame
	toClient chan *pb.ServerFrame
	// done is closed after err was set, when the handler has returned.
	done chan struct{}
	err  error
}

type pipeClient struct{ *pipe }

// Send fails with io.EOF after the handler has returned, as in gRPC: Recv
// then tells why.
func (c *pipeClient) Send(frame *pb.PublisherFrame) error {
	select {
	case <-c.done:
		return io.EOF
	default:
	}
	select {
	case c.toServer <- frame:
		return nil
	case <-c.done:
		return io.EOF
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
}

// Recv delivers all frames sent before the handler returned, then its error.
func (c *pipeClient) Recv() (*pb.ServerFrame, error) {
	select {
	case frame := <-c.toClient:
		return frame, nil
	case <-c.done:
	}
	select {
	case frame := <-c.toClient:
		return frame, nil
	default:
	}
	if c.err != nil {
		return nil, c.err
	}
	return nil, io.EOF
}

// CloseSend is called once, by the sender.
func (c *pipeClient) CloseSend() error {
	close(c.toServer)
	return nil
}

var _ grpc.BidiStreamingServer[pb.PublisherFrame, pb.ServerFrame] = (*pipeServer)(nil)

type pipeServer struct{ *pipe }

func (s *pipeServer) Recv() (*pb.PublisherFrame, error) {
	select {
	case frame, open := <-s.toServer:
		if !open {
			return nil, io.EOF
		}
		return frame, nil
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

func (s *pipeServer) Send(frame *pb.ServerFrame) error {
	select {
	case s.toClient <- frame:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

func (s *pipeServer) Context() context.Context { return s.ctx }

// Metadata has no meaning without a wire.
func (s *pipeServer) SetHeader(metadata.MD) error  { return nil }
func (s *pipeServer) SendHeader(metadata.MD) error { return nil }
func (s *pipeServer) SetTrailer(metadata.MD)       {}

var errTypedOnly = errors.New("in-process sync stream carries typed frames only")

func (s *pipeServer) SendMsg(any) error { return errTypedOnly }
func (s *pipeServer) RecvMsg(any) error { return errTypedOnly }
