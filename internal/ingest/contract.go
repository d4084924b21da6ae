// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"context"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// DefaultMaxKeys is the default bound of Options.MaxKeys.
const DefaultMaxKeys = 65_536

// Options configures a Contract and, as part of SyncOptions, a SyncServer. Its
// zero value works.
type Options struct {
	// MaxKeys bounds the block keys of one update or data frame. Default
	// 65536.
	MaxKeys int
	// ReservedTenant is the tenant nobody may write to. Default none.
	ReservedTenant string
	// Authorizer decides who may write; nil allows everything.
	Authorizer Authorizer
	// Limits bound what one replica may write; nil bounds nothing.
	Limits *Limits
	// Metrics is shared between a Contract and a SyncServer; nil counts
	// nowhere.
	Metrics *Metrics
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

func (o Options) withDefaults() Options {
	if o.MaxKeys <= 0 {
		o.MaxKeys = DefaultMaxKeys
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics(nil)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Acknowledgement codes of updates and events.
const (
	AckPartial = "PARTIAL"
	AckDropped = "DROPPED"
)

// Result says what became of a message.
type Result struct {
	// Applied is set when a part of it took effect, Dropped when a part was
	// dropped.
	Applied, Dropped bool
	// Unauthorized is set when the caller may not write this.
	Unauthorized bool
}

// Code returns the Ack's reason code: "" when all was applied.
func (r Result) Code() string {
	switch {
	case r.Dropped && r.Applied:
		return AckPartial
	case r.Dropped:
		return AckDropped
	}
	return ""
}

func (r Result) merge(other Result) Result {
	return Result{
		Applied:      r.Applied || other.Applied,
		Dropped:      r.Dropped || other.Dropped,
		Unauthorized: r.Unauthorized || other.Unauthorized,
	}
}

// Contract takes in the messages of ReportCacheState and PublishEvent. It is
// safe for concurrent use.
type Contract struct {
	index   *index.Index
	options Options
	metrics *sourceMetrics

	drainOnce sync.Once
	draining  chan struct{}
}

// NewContract returns a Contract that writes to x.
func NewContract(x *index.Index, options Options) *Contract {
	options = options.withDefaults()
	return &Contract{
		index:    x,
		options:  options,
		metrics:  options.Metrics.of(sourceContract),
		draining: make(chan struct{}),
	}
}

// Drain makes open Report streams end with their Ack, and later ones at once.
func (c *Contract) Drain() { c.drainOnce.Do(func() { close(c.draining) }) }

// Update applies one message of ReportCacheState.
func (c *Contract) Update(ctx context.Context, u *pb.CacheStateUpdate) Result {
	w := updateWriter{
		contract: c,
		update:   u,
		scope:    index.Scope{Tenant: u.GetTenantId(), Model: u.GetModelId(), Scheme: u.GetHashScheme()},
		replica:  u.GetReplicaId(),
		now:      c.options.Now(),
	}
	w.bounded = c.options.Limits.bounds(ctx)
	return w.run(ctx)
}

// rejects reports why a message to tenant and replica has no effect at all,
// or "".
func (c *Contract) rejects(ctx context.Context, w Write) Reason {
	if c.options.ReservedTenant != "" && w.Tenant == c.options.ReservedTenant {
		return ReasonReservedTenant
	}
	if w.Replica == "" {
		return ReasonNoReplica
	}
	for _, id := range []string{w.Replica, w.Tenant, w.Model} {
		if reason := checkID(id); reason != "" {
			return reason
		}
	}
	if authorize(ctx, c.options.Authorizer, c.options.Metrics, w) != nil {
		return ReasonUnauthorized
	}
	return ""
}
