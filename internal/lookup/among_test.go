// SPDX-License-Identifier: Apache-2.0

package lookup_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/lookup"
	"github.com/inferencecache/inference-cache/internal/policy"
)

// TestAmong asks a fleet as if only some of its replicas served.
func TestAmong(t *testing.T) {
	split := func() *fleet {
		return newFleet().
			hold("p1", holding{Chain: "ab", Block: 64}).stats("p1", .5, 0, 0).
			hold("p2", holding{Chain: "x", Block: 64}).
			hold("d1", holding{Chain: "ab", Block: 64}).stats("d1", .9, 0, 0).
			hold("d2", holding{Chain: "ab", Block: 64})
	}
	for name, tc := range map[string]struct {
		fleet   *fleet
		request lookup.Request
		among   []string
		reason  lookup.Reason
		want    string
	}{
		"everyone serves": {
			split(), exact('b', 128), nil, lookup.PrefixMatch, "d1 32/128, d2 32/128, p1 32/128",
		},
		"others neither match nor lower the power of a match": {
			split(), exact('b', 128), []string{"p1", "p2"}, lookup.PrefixMatch, "p1 64/128",
		},
		"a replica that serves nothing does not count": {
			split(), exact('b', 128), []string{"p1", "p9"}, lookup.PrefixMatch, "p1 128/128",
		},
		"a chain is restricted alike": {
			split(), chain("ab", 64), []string{"d2", "p2"}, lookup.PrefixMatch, "d2 64/128",
		},
		"others are not hot": {
			split(), exact('z', 128), []string{"p1", "p2"}, lookup.TenantHot, "p1 0.5/0",
		},
		"others are no affinity candidates": {
			split(), exact('z', 128), []string{"p2"}, lookup.AffinityHint, "p2 0/0",
		},
		"nobody": {
			split(), exact('b', 128), []string{}, lookup.NoHint, "",
		},
		"a miss is explained by the whole index": {
			newFleet().hold("d1", holding{Chain: "ab", Block: 64}),
			with(exact('b', 128), func(r *lookup.Request) { r.Model = "other" }), []string{"p1"}, lookup.UnknownModel, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			tc.request.Among = tc.among
			got := tc.fleet.ask(tc.request)
			if got.Reason != tc.reason || brief(got.Scores) != tc.want {
				t.Errorf("got %s %s, want %s %s", got.Reason, brief(got.Scores), tc.reason, tc.want)
			}
		})
	}
}

func TestDecideScheme(t *testing.T) {
	sglang := testScope
	sglang.Scheme = "sglang"
	other := index.Scope{Tenant: "other", Model: "m", Scheme: "vllm"}
	mine := func() *fleet { return newFleet().hold("p", holding{Chain: "a", Block: 64}) }
	for name, tc := range map[string]struct {
		fleet  *fleet
		tenant string
		want   string
	}{
		"the one scheme":             {mine(), "team", "PREFIX_MATCH p"},
		"two schemes":                {mine().hold("q", holding{Scope: sglang, Chain: "a", Block: 64}), "team", "NO_HINT "},
		"an empty index":             {newFleet(), "team", "NO_HINT "},
		"an unknown tenant":          {mine(), "stranger", "UNKNOWN_TENANT "},
		"another tenant's keys":      {newFleet().hold("p", holding{Scope: other, Chain: "a", Block: 64}), "team", "UNKNOWN_TENANT "},
		"the reserved tenant":        {mine(), policy.ReservedTenant, "NO_HINT "},
		"a tenant that is not named": {mine(), "", "NO_HINT "},
	} {
		t.Run(name, func(t *testing.T) {
			request := exact('a', 64)
			request.Tenant, request.Scheme = tc.tenant, ""
			var got lookup.Decision
			tc.fleet.decider.DecideScheme(context.Background(), &request, &got)
			if got := string(got.Reason) + " " + names(got.Scores); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestDeepestKey(t *testing.T) {
	f := newFleet().
		hold("p", holding{Chain: "abc", Block: 64}).hold("q", holding{Chain: "ab", Block: 64}).hold("r", holding{Chain: "x", Block: 64})
	long := []byte("a key of another length")
	f.index.Apply(&index.Batch{
		Scope: testScope, Replica: "p", AtMillis: testNow.UnixMilli(), NowMillis: testNow.UnixMilli(),
		Ops: []index.Op{{Tier: index.TierT1, Keys: index.Keys{Long: [][]byte{long}}, Tokens: index.Tokens{First: 64}}},
	})
	for name, tc := range map[string]struct {
		request lookup.Request
		want    []byte
	}{
		"the best replica's run": {chain("abcd", 64), hash('c')},
		"an exact key":           {exact('b', 128), hash('b')},
		"a long key":             {with(exact('a', 64), func(r *lookup.Request) { r.PrefixHash = long }), long},
		"no match":               {chain("z", 64), nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(string(tc.want), string(f.ask(tc.request).DeepestKey)); diff != "" {
				t.Errorf("deepest key (-want +got):\n%s", diff)
			}
		})
	}
}
