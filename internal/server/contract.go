// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/lookup"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// contract serves the InferenceCache service.
type contract struct {
	pb.UnimplementedInferenceCacheServer
	server *Server
}

// LookupRoute implements pb.InferenceCacheServer.
func (c *contract) LookupRoute(ctx context.Context, in *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
	return c.server.LookupRoute(ctx, in)
}

// ReportCacheState implements pb.InferenceCacheServer.
func (c *contract) ReportCacheState(stream pb.InferenceCache_ReportCacheStateServer) error {
	return c.server.ingest.Report(stream)
}

// PublishEvent implements pb.InferenceCacheServer.
func (c *contract) PublishEvent(ctx context.Context, event *pb.CacheEvent) (*pb.Ack, error) {
	result := c.server.ingest.Event(ctx, event)
	if result.Unauthorized {
		return nil, status.Error(codes.PermissionDenied, "the event is for a tenant or replica that is not the caller's")
	}
	return result.Ack(), nil
}

// GetCacheState implements pb.InferenceCacheServer.
func (c *contract) GetCacheState(ctx context.Context, in *pb.GetCacheStateRequest) (*pb.GetCacheStateResponse, error) {
	rows, keys := c.server.index.CacheState(c.server.guard.visibleTenant(ctx, in.GetTenantId()), in.GetModelId())
	response := &pb.GetCacheStateResponse{Summary: &pb.CacheSummary{TotalPrefixes: keys}}
	for _, row := range rows {
		response.Replicas = append(response.Replicas, renderStats(row))
	}
	return response, nil
}

func renderStats(row index.ReplicaStatsRow) *pb.ReplicaStats {
	return &pb.ReplicaStats{
		ReplicaId:        row.Replica,
		CacheMemoryBytes: row.Stats.CacheMemoryBytes,
		HitRate:          row.Stats.HitRate,
		Pressure:         row.Stats.Pressure,
		ClientVersion:    row.Stats.ClientVersion,
		T2HitTokens:      row.Stats.T2HitTokens,
		T2QueryTokens:    row.Stats.T2QueryTokens,
	}
}

// RenderTemplate implements pb.InferenceCacheServer. No templates are ever
// delivered, so the answer is OK and empty.
func (c *contract) RenderTemplate(context.Context, *pb.RenderTemplateRequest) (*pb.RenderTemplateResponse, error) {
	return &pb.RenderTemplateResponse{ReasonCode: "OK"}, nil
}

// LookupPDRoute implements pb.InferenceCacheServer. No topologies are ever
// delivered, so there is never a hint.
func (c *contract) LookupPDRoute(context.Context, *pb.LookupPDRouteRequest) (*pb.LookupPDRouteResponse, error) {
	return &pb.LookupPDRouteResponse{ReasonCode: string(lookup.NoHint)}, nil
}

// StreamCacheEvents implements pb.InferenceCacheServer. It ends at once.
func (c *contract) StreamCacheEvents(*pb.StreamEventsRequest, pb.InferenceCache_StreamCacheEventsServer) error {
	return nil
}

// StreamMetrics implements pb.InferenceCacheServer. It ends at once.
func (c *contract) StreamMetrics(*pb.StreamMetricsRequest, pb.InferenceCache_StreamMetricsServer) error {
	return nil
}
