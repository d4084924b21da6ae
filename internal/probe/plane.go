// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/lookup"
)

// IndexPlane probes an index and the decider over it. All fields are required.
type IndexPlane struct {
	Index   *index.Index
	Decider *lookup.Decider
	Now     func() time.Time
}

var _ Plane = IndexPlane{}

// ttlMillis is how long a probe's block counts when it is looked up directly.
const ttlMillis = 60_000

// Store implements Plane.
func (p IndexPlane) Store(b Block) {
	now := p.Now().UnixMilli()
	p.Index.Apply(&index.Batch{
		Scope: b.Scope, Replica: b.Replica, AtMillis: now, NowMillis: now,
		Ops: []index.Op{{Kind: index.OpStore, Tier: index.TierT1, Keys: b.keys(), Tokens: b.counts()}},
	})
	p.Index.SetStats(b.Scope.Tenant, b.Scope.Model, b.Replica, index.Stats{
		HitRate: 1, LivenessMillis: now, ReportedMillis: now,
	})
}

// Holders implements Plane.
func (p IndexPlane) Holders(b Block) []string {
	view := p.Index.Acquire(b.Scope, "", p.Now().UnixMilli(), ttlMillis)
	defer view.Release()
	var replicas []string
	for _, match := range view.MatchChain(nil, b.keys(), b.counts()) {
		replicas = append(replicas, match.Replica)
	}
	return replicas
}

// Decide implements Plane.
func (p IndexPlane) Decide(ctx context.Context, b Block) (lookup.Reason, []string) {
	request := lookup.Request{
		Tenant: b.Scope.Tenant, Model: b.Scope.Model, Scheme: b.Scope.Scheme,
		BlockHashes: [][]byte{b.Hash}, BlockTokenCounts: []int32{b.Tokens},
	}
	var decision lookup.Decision
	p.Decider.Evidence(ctx, &request, &decision)
	replicas := make([]string, len(decision.Scores))
	for i := range decision.Scores {
		replicas[i] = decision.Scores[i].Replica
	}
	return decision.Reason, replicas
}

// Clear implements Plane.
func (p IndexPlane) Clear(b Block) {
	p.Index.ClearReplica(b.Scope.Tenant, b.Scope.Model, b.Replica)
}

func (b Block) keys() index.Keys { return index.Keys{Long: [][]byte{b.Hash}} }

func (b Block) counts() index.Tokens { return index.Tokens{Counts: []int32{b.Tokens}} }
