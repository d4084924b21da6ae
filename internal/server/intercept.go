// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"path"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// methods are the short names of all calls that are counted by name.
var methods = []string{
	"RenderTemplate", "LookupRoute", "LookupPDRoute", "GetCacheState", "PublishEvent",
	"ReportCacheState", "StreamCacheEvents", "StreamMetrics", "Sync", otherValue,
}

func methodName(fullMethod string) string {
	name := path.Base(fullMethod)
	for _, known := range methods {
		if name == known {
			return known
		}
	}
	return otherValue
}

func (s *Server) interceptUnary(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (response any, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			s.panicked(componentGRPC, cause, debug.Stack())
			response, err = nil, status.Error(codes.Internal, "internal error")
		}
		s.process.finished(methodName(info.FullMethod), status.Code(err))
	}()
	return next(ctx, request)
}

func (s *Server) interceptStream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	method := methodName(info.FullMethod)
	defer func() {
		if cause := recover(); cause != nil {
			s.panicked(componentGRPC, cause, debug.Stack())
			err = status.Error(codes.Internal, "internal error")
		}
		s.process.finished(method, status.Code(err))
	}()
	if s.isStopping() {
		return errStopping
	}
	if method == otherValue {
		return s.untilStopping(server, stream, next)
	}
	return next(server, stream)
}

// untilStopping runs a handler that knows nothing of shutdown, such as health
// watching and reflection. The handler ends with the call's context.
func (s *Server) untilStopping(server any, stream grpc.ServerStream, next grpc.StreamHandler) error {
	finished := s.detached(func() error { return next(server, stream) })
	select {
	case err := <-finished:
		return err
	case <-s.stopping:
	}
	linger := time.NewTimer(watchLinger)
	defer linger.Stop()
	select {
	case err := <-finished:
		return err
	case <-linger.C:
		return errStopping
	}
}

var errStopping = status.Error(codes.Unavailable, "the server is shutting down")

// panicked counts and logs a recovered panic. Only its type is logged: a
// message may hold what a caller sent.
func (s *Server) panicked(component string, cause any, stack []byte) {
	s.process.panics.WithLabelValues(component).Inc()
	s.logger.Error("recovered from a panic", "component", component, "type", fmt.Sprintf("%T", cause), "stack", string(stack))
}
