// SPDX-License-Identifier: Apache-2.0

package lookup_test

import (
	"testing"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/lookup"
	"github.com/inferencecache/inference-cache/internal/policy"
)

func TestEvidenceKnowsNoPolicy(t *testing.T) {
	reserved := index.Scope{Tenant: policy.ReservedTenant, Model: "m", Scheme: "vllm"}
	f := newFleet().
		hold("a", holding{Chain: "pq", Block: 4}).stats("a", .9, 0, 0).
		hold("p", holding{Scope: reserved, Chain: "x", Block: 4}).
		policy(policy.Declared{
			MinimumPrefixTokens: 1000, MinimumMatchedTokens: 1000, RoutingFloorScore: ptr(float32(1000)),
			EnableTenantHot: ptr(false), RequireChain: ptr(true), LookupTimeoutMillis: 1,
		})
	for name, tc := range map[string]struct {
		request lookup.Request
		want    lookup.Reason
		scores  string
	}{
		"a match below every floor":          {chain("pq", 4), lookup.PrefixMatch, "a"},
		"a chain nobody holds gets no hint":  {chain("xy", 4), lookup.NoHint, ""},
		"a hot replica, though switched off": {in(testScope), lookup.TenantHot, "a"},
		"the reserved tenant":                {with(chain("x", 4), func(r *lookup.Request) { r.Tenant = policy.ReservedTenant }), lookup.PrefixMatch, "p"},
		"another model": {
			with(chain("pq", 4), func(r *lookup.Request) { r.Model = "other" }), lookup.UnknownModel, "",
		},
		"a malformed chain": {
			with(chain("pq", 4), func(r *lookup.Request) { r.BlockTokenCounts = nil }), lookup.NoHint, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got lookup.Decision
			f.decider.Evidence(t.Context(), &tc.request, &got)
			if got.Reason != tc.want || names(got.Scores) != tc.scores {
				t.Errorf("%s %q, want %s %q", got.Reason, names(got.Scores), tc.want, tc.scores)
			}
		})
	}
}
