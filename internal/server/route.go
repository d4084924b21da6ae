// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"runtime/debug"
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/lookup"
	"github.com/inferencecache/inference-cache/internal/policy"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// routeCall holds what one LookupRoute call works in.
type routeCall struct {
	request  lookup.Request
	decision lookup.Decision
}

// LookupRoute answers a lookup in this process, exactly as gRPC does. The
// error is always nil.
func (s *Server) LookupRoute(ctx context.Context, in *pb.LookupRouteRequest) (response *pb.LookupRouteResponse, _ error) {
	start := s.options.Now()
	call := s.routeCalls.Get().(*routeCall)
	defer func() {
		if cause := recover(); cause != nil {
			s.panicked(componentLookup, cause, debug.Stack())
			response = &pb.LookupRouteResponse{ReasonCode: string(lookup.NoHint)}
			s.lookups.answered(in.GetModelId(), false, lookup.NoHint, false, s.options.Now().Sub(start))
		}
	}()
	fillRequest(&call.request, in)
	call.request.Tenant = s.guard.visibleTenant(ctx, call.request.Tenant)
	decision := &call.decision
	s.decider.Decide(ctx, &call.request, decision)
	response = renderDecision(decision)
	if tenant := call.request.Tenant; tenant != policy.ReservedTenant {
		s.lookups.decided(tenant, decision)
	}
	s.noteHot(&call.request, decision)
	known := decision.ModelKnown || s.policies.View().NamesModel(in.GetModelId())
	s.lookups.answered(in.GetModelId(), known, decision.Reason, decision.HintUsed(), decision.Timings.Total)
	call.request = lookup.Request{}
	decision.TokenIDs = nil
	s.routeCalls.Put(call)
	return response, nil
}

func fillRequest(request *lookup.Request, in *pb.LookupRouteRequest) {
	*request = lookup.Request{
		Tenant:           in.GetTenantId(),
		Model:            in.GetModelId(),
		Scheme:           in.GetHashScheme(),
		Adapter:          in.GetAdapterId(),
		BlockHashes:      in.GetBlockHashes(),
		BlockTokenCounts: in.GetBlockTokenCounts(),
		PrefixHash:       in.GetPrefixHash(),
		PrefixTokens:     in.GetPrefixTokenCount(),
		TokenIDs:         in.GetTokenIds(),
		Prompt:           in.GetPromptText(),
		TTFTMillis:       in.GetSlo().GetTtftMs(),
	}
}

func renderDecision(d *lookup.Decision) *pb.LookupRouteResponse {
	response := &pb.LookupRouteResponse{
		ReasonCode:      string(d.Reason),
		LookupLatencyUs: int64(d.Timings.Total / time.Microsecond),
		TokenIds:        d.TokenIDs,
		AdapterId:       d.Adapter,
	}
	if len(d.Scores) == 0 {
		return response
	}
	scores := make([]pb.ReplicaScore, len(d.Scores))
	response.ReplicaScores = make([]*pb.ReplicaScore, len(d.Scores))
	for i := range d.Scores {
		score := &scores[i]
		score.ReplicaId = d.Scores[i].Replica
		score.Score = d.Scores[i].Score
		score.MatchedTokens = d.Scores[i].MatchedTokens
		score.EstimatedCacheHitProb = d.Scores[i].HitProbability
		score.Tier = wireTier(d.Scores[i].Tier)
		response.ReplicaScores[i] = score
	}
	return response
}

func wireTier(tier index.Tier) pb.CacheTier {
	switch tier {
	case index.TierT1:
		return pb.CacheTier_CACHE_TIER_T1
	case index.TierT2:
		return pb.CacheTier_CACHE_TIER_T2
	case index.TierT3:
		return pb.CacheTier_CACHE_TIER_T3
	default:
		return pb.CacheTier_CACHE_TIER_UNSPECIFIED
	}
}
