// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
	"testing"

	"github.com/inferencecache/inference-cache/internal/policy"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// maxSeries is what a whole server may show with default bounds.
const maxSeries = 60_000

// Producers and callers that make up thousands of tenants, models and replicas
// keep a server's page within its default bounds.
func TestHostileProducersStayWithinTheBounds(t *testing.T) {
	const names = 3000
	h := start(t)
	quotas := make([]policy.Quota, names)
	updates := make([]*pb.CacheStateUpdate, names)
	for i := range names {
		updates[i] = h.update(fmt.Sprintf("replica-%d", i), "ab", 64)
		updates[i].TenantId, updates[i].ModelId = fmt.Sprintf("tenant-%d", i), fmt.Sprintf("model-%d", i)
		updates[i].Stats = &pb.ReplicaStats{HitRate: .5}
		quotas[i] = policy.Quota{Tenant: updates[i].TenantId, MaxKeys: 1}
	}
	h.server.SetPolicies(nil, quotas)
	h.report(updates...)
	for i := range names {
		for _, scheme := range []string{"vllm", "other"} {
			request := chain("ab", 64)
			request.TenantId, request.ModelId, request.HashScheme = updates[i].TenantId, updates[i].ModelId, scheme
			if _, err := h.server.LookupRoute(t.Context(), request); err != nil {
				t.Fatal(err)
			}
		}
	}
	families, err := h.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	values := map[string]map[string]bool{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			total++
			if buckets := len(m.GetHistogram().GetBucket()); buckets > 0 {
				total += buckets + 2 // the last bucket, sum and count
			}
			for _, label := range m.GetLabel() {
				if values[label.GetName()] == nil {
					values[label.GetName()] = map[string]bool{}
				}
				values[label.GetName()][label.GetValue()] = true
			}
		}
	}
	if total >= maxSeries {
		t.Errorf("%d series, want fewer than %d", total, maxSeries)
	}
	for label, limit := range map[string]int{"model": 512 + 1, "tenant": 1000 + 1, "tenant_id": 1000 + 1, "replica_id": 2000} {
		if n := len(values[label]); n > limit || n < 2 {
			t.Errorf("%d values of the label %s, want 2 to %d", n, label, limit)
		}
	}
	for _, label := range []string{"model", "tenant", "tenant_id"} {
		if !values[label]["__other__"] {
			t.Errorf("nothing counts under %s=__other__", label)
		}
	}
	t.Logf("%d series", total)
}
