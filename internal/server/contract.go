// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"

	"github.com/inferencecache/inference-cache/internal/index"
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
	return c.server.ingest.Event(ctx, event).Ack(), nil
}

// GetCacheState implements pb.InferenceCacheServer.
func (c *contract) GetCacheState(ctx context.Context, in *pb.GetCacheStateRequest) (*pb.GetCacheStateResponse, error) {
	s, model := c.server, in.GetModelId()
	tenant := s.guard.visibleTenant(ctx, in.GetTenantId())
	rows, keys := s.index.CacheState(tenant, model)
	response := &pb.GetCacheStateResponse{Summary: &pb.CacheSummary{
		TotalPrefixes: keys,
		HotPrefixes:   s.hot.of(tenant, model, s.options.Now().UnixMilli()),
	}}
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
