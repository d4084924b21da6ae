// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/inferencecache/inference-cache/internal/ingest"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// overflowLinger is how long the event that is being sent when a stream
// overflows may take.
const overflowLinger = time.Second

// observers are the streams that watch a server.
type observers struct {
	events *eventHub
	// streams counts open streams by call.
	streams   *ingest.Metrics
	overflows prometheus.Counter
	// metricStreams is how many are open.
	metricStreams atomic.Int32
}

func newObservers(f family, now func() time.Time) *observers {
	return &observers{
		events: newEventHub(now),
		overflows: f.counters("observer_overflows_total", "Observer streams ended because they were slow.", "rpc").
			WithLabelValues(ingest.StreamEvents),
	}
}

// StreamCacheEvents implements pb.InferenceCacheServer: events of changes from
// now on, after they took effect. The headers come once the stream listens.
func (c *contract) StreamCacheEvents(in *pb.StreamEventsRequest, stream pb.InferenceCache_StreamCacheEventsServer) error {
	s, ctx := c.server, stream.Context()
	l := newListener(in)
	if !s.observers.events.join(l) {
		return status.Errorf(codes.ResourceExhausted, "%d event streams are open, no more are served", maxEventStreams)
	}
	defer s.observers.events.leave(l)
	defer s.observers.streams.StreamOpened(ingest.StreamEvents)()
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	sending, stop := context.WithCancel(ctx)
	defer stop()
	var pending atomic.Int64 // 1 while an event was taken and not sent
	sent := s.detached(func() error { return s.sendEvents(sending, l, stream, &pending) })
	select {
	case err := <-sent:
		return err
	case <-s.stopping:
		return errStopping
	case <-l.overflowed:
	}
	stop()
	linger := time.NewTimer(overflowLinger)
	defer linger.Stop()
	select {
	case <-sent:
	case <-linger.C:
	}
	s.observers.overflows.Inc()
	return status.Errorf(codes.ResourceExhausted, "the stream was read too slowly and missed %d events", l.lost()+pending.Load())
}

// sendEvents sends what is buffered, as far as the caller may see it, until
// ctx ends.
func (s *Server) sendEvents(ctx context.Context, l *listener, stream pb.InferenceCache_StreamCacheEventsServer, pending *atomic.Int64) error {
	for {
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-l.ready:
		}
		for event := l.next(); event != nil; event = l.next() {
			if s.guard.visibleTenant(ctx, event.GetTenantId()) != event.GetTenantId() {
				l.bar(event.GetTenantId(), s.options.Now().UnixMicro())
				continue
			}
			pending.Store(1)
			if err := stream.Send(event); err != nil {
				return err
			}
			pending.Store(0)
		}
	}
}

// detached runs what a client may keep waiting on a goroutine of its own and
// returns where its error goes. It must end with the call's context.
func (s *Server) detached(run func() error) <-chan error {
	ended := make(chan error, 1)
	go func() {
		defer func() {
			if cause := recover(); cause != nil {
				s.panicked(componentGRPC, cause, debug.Stack())
				ended <- status.Error(codes.Internal, "internal error")
			}
		}()
		ended <- run()
	}()
	return ended
}
