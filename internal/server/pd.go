// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"slices"

	"github.com/inferencecache/inference-cache/internal/lookup"
	"github.com/inferencecache/inference-cache/internal/policy"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// unknownPDTopology answers a reference to a topology nobody delivered.
const unknownPDTopology = "UNKNOWN_PD_TOPOLOGY"

// LookupPDRoute implements pb.InferenceCacheServer.
func (c *contract) LookupPDRoute(ctx context.Context, in *pb.LookupPDRouteRequest) (*pb.LookupPDRouteResponse, error) {
	s := c.server
	view := s.policies.View()
	tenant := s.guard.visibleTenant(ctx, in.GetTenantId())
	if in.GetPdTopologyRef() == "" || tenant == "" || tenant == policy.ReservedTenant || len(view.Topologies()) == 0 {
		return &pb.LookupPDRouteResponse{ReasonCode: string(lookup.NoHint)}, nil
	}
	topology := topologyOf(view, tenant, in.GetModelId(), in.GetPdTopologyRef())
	if topology == nil {
		return &pb.LookupPDRouteResponse{ReasonCode: unknownPDTopology}, nil
	}
	return s.routePD(ctx, tenant, in, topology), nil
}

// topologyOf returns the topology of a reference "namespace/name" if it is the
// tenant's own and for its model.
func topologyOf(view *policy.View, tenant, model, ref string) *policy.PDTopology {
	topologies := view.Topologies()
	at := slices.IndexFunc(topologies, func(t policy.PDTopology) bool {
		return t.Namespace == tenant && t.Namespace+"/"+t.Name == ref && (t.Model == "" || t.Model == model)
	})
	if at < 0 {
		return nil
	}
	return &topologies[at]
}

// routePD picks the prefill replica as a lookup among the prefill replicas
// does, and the decode replica by its load.
func (s *Server) routePD(ctx context.Context, tenant string, in *pb.LookupPDRouteRequest, topology *policy.PDTopology) *pb.LookupPDRouteResponse {
	request := lookup.Request{
		Tenant: tenant, Model: in.GetModelId(),
		PrefixHash: in.GetPrefixHash(), PrefixTokens: in.GetPrefixTokenCount(),
		Among: sortedIDs(topology.Prefill),
	}
	var decision lookup.Decision
	s.decider.DecideScheme(ctx, &request, &decision)
	s.lookups.decided(tenant, &decision)
	s.noteHot(&request, &decision)
	response := &pb.LookupPDRouteResponse{
		DecodeReplicaId: s.leastLoaded(tenant, in.GetModelId(), topology.Decode),
		TransportHint:   string(topology.Transport),
		ReasonCode:      string(decision.Reason),
	}
	if decision.HintUsed() {
		response.PrefillReplicaId = decision.Scores[0].Replica
	}
	return response
}

func sortedIDs(replicas []string) []string {
	sorted := append(make([]string, 0, len(replicas)), replicas...)
	slices.Sort(sorted)
	return sorted
}

// leastLoaded returns the replica with the lowest pressure, silent ones left
// out; of equals the first by id. A pressure that is not fresh counts as 0.
func (s *Server) leastLoaded(tenant, model string, replicas []string) (best string) {
	now, ttl := s.options.Now().UnixMilli(), s.policies.View().For(tenant).TTLMillis
	lowest := float32(0)
	for _, replica := range replicas {
		state := s.index.Replica(tenant, model, replica, now)
		if replica == "" || state.Silent {
			continue
		}
		pressure := float32(0)
		if state.HasStats && now-state.Stats.ReportedMillis < ttl {
			pressure = state.Stats.Pressure
		}
		if best == "" || pressure < lowest || pressure == lowest && replica < best {
			best, lowest = replica, pressure
		}
	}
	return best
}
