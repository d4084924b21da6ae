// SPDX-License-Identifier: Apache-2.0

package server

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

const (
	maxGRPCHeaderBytes = 16 << 10
	// minPingInterval is how often a client may ping.
	minPingInterval = 5 * time.Second
	pingTimeout     = 10 * time.Second
)

func (s *Server) newGRPCServer(transport credentials.TransportCredentials) {
	options := []grpc.ServerOption{
		grpc.Creds(transport),
		grpc.MaxRecvMsgSize(s.options.MaxRecvBytes),
		grpc.MaxHeaderListSize(maxGRPCHeaderBytes),
		grpc.MaxConcurrentStreams(uint32(s.options.MaxStreams)),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: s.options.KeepaliveTime, Timeout: pingTimeout, MaxConnectionIdle: s.options.IdleTimeout,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPingInterval, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	}
	unary, stream := []grpc.UnaryServerInterceptor{s.interceptUnary}, []grpc.StreamServerInterceptor{s.interceptStream}
	if s.guard != nil {
		unary, stream = append(unary, s.guard.unary), append(stream, s.guard.stream)
	}
	unary, stream = append(unary, s.callers.unary), append(stream, s.callers.stream)
	s.grpc = grpc.NewServer(append(options, grpc.ChainUnaryInterceptor(unary...), grpc.ChainStreamInterceptor(stream...))...)
	pb.RegisterInferenceCacheServer(s.grpc, &contract{server: s})
	pb.RegisterCacheSyncServer(s.grpc, s.sync)
	s.health = health.NewServer()
	for _, service := range []string{pb.InferenceCache_ServiceDesc.ServiceName, pb.CacheSync_ServiceDesc.ServiceName} {
		s.health.SetServingStatus(service, healthpb.HealthCheckResponse_SERVING)
	}
	healthpb.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
}
