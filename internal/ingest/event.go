// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"context"
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// Event applies one message of PublishEvent. Removals are never refused
// because of their timestamp.
func (c *Contract) Event(ctx context.Context, e *pb.CacheEvent) Result {
	c.metrics.update("event")
	now := c.options.Now()
	if reason := c.checkEvent(ctx, e); reason != "" {
		c.metrics.drop(reason)
		return Result{Dropped: true, Unauthorized: reason == ReasonUnauthorized}
	}
	at, oddity := clampTime(e.GetTimestampUs(), now.UnixMilli())
	if oddity != "" {
		c.metrics.drop(oddity)
	}
	c.metrics.observeLag(e.GetTimestampUs(), now.UnixMicro())
	start := time.Now()
	c.applyEvent(e, at)
	c.index.Heard(e.GetTenantId(), e.GetModelId(), e.GetReplicaId(), now.UnixMilli())
	c.metrics.apply.Observe(time.Since(start).Seconds())
	return Result{Applied: true}
}

func (c *Contract) checkEvent(ctx context.Context, e *pb.CacheEvent) Reason {
	reason := c.rejects(ctx, Write{Tenant: e.GetTenantId(), Model: e.GetModelId(), Replica: e.GetReplicaId()})
	switch {
	case reason != "":
		return reason
	case e.GetTenantId() == "":
		return ReasonNoTenant
	case e.GetModelId() == "":
		return ReasonNoModel
	case e.GetType() == pb.CacheEvent_PREFIX_EVICTED:
		if reason := checkID(e.GetAdapterId()); reason != "" {
			return reason
		}
		return checkHash(e.GetPrefixHash())
	}
	return ""
}

func (c *Contract) applyEvent(e *pb.CacheEvent, at int64) {
	tenant, model, replica := e.GetTenantId(), e.GetModelId(), e.GetReplicaId()
	switch e.GetType() {
	case pb.CacheEvent_PREFIX_EVICTED:
		adapter := e.GetAdapterId()
		keys := index.Keys{Long: [][]byte{e.GetPrefixHash()}}
		removed := c.index.RemoveEverywhere(tenant, model, replica, adapter, adapter == "", keys)
		add(c.metrics.removed, removed)
	case pb.CacheEvent_ALL_CLEARED:
		add(c.metrics.clear, c.index.ClearReplica(tenant, model, replica))
	case pb.CacheEvent_REPLICA_UPDATED:
		c.index.Touch(tenant, model, replica, at)
	}
}
