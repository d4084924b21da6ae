// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/index"
)

const halfHourMillis = 30 * 60 * 1000

func withoutPolicy() Effective {
	return Effective{
		TTLMillis:            halfHourMillis,
		MinimumMatchedTokens: 64,
		RoutingFloorScore:    0.1,
		ChainMatching:        true,
		TenantHot:            true,
		Affinity:             true,
	}
}

func emptyPolicy() Effective {
	effective := withoutPolicy()
	effective.MinimumMatchedTokens = 0
	return effective
}

func TestResolve(t *testing.T) {
	yes, no := true, false
	float := func(f float32) *float32 { return &f }
	changed := func(change func(*Effective)) Effective {
		effective := emptyPolicy()
		change(&effective)
		return effective
	}
	for name, tc := range map[string]struct {
		declared  Declared
		serverTTL time.Duration
		want      Effective
	}{
		"a policy that says nothing has no matched floor": {Declared{}, 0, emptyPolicy()},
		"explicit defaults": {
			Declared{
				EvictionTTL: 30 * time.Minute, Eviction: "lru", RoutingFloorScore: float(0.1),
				EnableChainMatching: &yes, RequireChain: &no, EnableTenantHot: &yes, AffinityRouting: &yes,
			}, 0, emptyPolicy(),
		},
		"everything off": {
			Declared{RoutingFloorScore: float(0), EnableChainMatching: &no, EnableTenantHot: &no, AffinityRouting: &no}, 0,
			changed(func(e *Effective) {
				e.RoutingFloorScore, e.ChainMatching, e.TenantHot, e.Affinity = 0, false, false, false
			}),
		},
		"values are taken": {
			Declared{EvictionTTL: time.Second, Eviction: "LFU", MinimumPrefixTokens: 1, MinimumMatchedTokens: 2, LookupTimeoutMillis: 3, RoutingFloorScore: float(4), RequireChain: &yes}, 0,
			changed(func(e *Effective) {
				e.TTLMillis, e.LFU, e.MinimumPrefixTokens, e.MinimumMatchedTokens = 1000, true, 1, 2
				e.LookupTimeoutMillis, e.RoutingFloorScore, e.RequireChain = 3, 4, true
			}),
		},
		"negative values mean none": {
			Declared{EvictionTTL: -1, MinimumPrefixTokens: -1, MinimumMatchedTokens: -1, LookupTimeoutMillis: -1, RoutingFloorScore: float(-1)}, 0,
			changed(func(e *Effective) { e.RoutingFloorScore = 0 }),
		},
		"an unknown eviction is lru":             {Declared{Eviction: "arc"}, 0, emptyPolicy()},
		"the server's TTL":                       {Declared{}, time.Minute, changed(func(e *Effective) { e.TTLMillis = 60_000 })},
		"a server TTL below zero is the default": {Declared{}, -time.Minute, emptyPolicy()},
		"a TTL below a millisecond is one":       {Declared{EvictionTTL: 1}, 0, changed(func(e *Effective) { e.TTLMillis = 1 })},
		"the longest TTL":                        {Declared{EvictionTTL: math.MaxInt64}, 0, changed(func(e *Effective) { e.TTLMillis = 9223372036854 })},
	} {
		t.Run(name, func(t *testing.T) {
			tc.declared.Namespace = "team"
			view := NewView(tc.serverTTL, &Snapshot{Policies: []Declared{tc.declared}}, new(ExtensionSet))
			if diff := cmp.Diff(tc.want, *view.For("team")); diff != "" {
				t.Errorf("effective policy (-want +got):\n%s", diff)
			}
		})
	}
}

func TestViewKeys(t *testing.T) {
	view := NewView(0, &Snapshot{
		Policies: []Declared{
			{Namespace: "", MinimumPrefixTokens: 9},
			{Namespace: ReservedTenant, MinimumPrefixTokens: 9},
			{Namespace: "a", MinimumPrefixTokens: 1},
			{Namespace: "a", MinimumPrefixTokens: 2},
		},
		Quotas: []Quota{
			{Tenant: "", MaxKeys: 9},
			{Tenant: ReservedTenant, MaxKeys: 9},
			{Tenant: "q", MaxKeys: 1},
			{Tenant: "q", MaxKeys: -5},
		},
	}, new(ExtensionSet))

	for tenant, want := range map[string]int32{"a": 2, "": 0, "b": 0, ReservedTenant: 0} {
		if got := view.For(tenant).MinimumPrefixTokens; got != want {
			t.Errorf("For(%q).MinimumPrefixTokens = %d, want %d", tenant, got, want)
		}
	}
	if diff := cmp.Diff(withoutPolicy(), *view.For("b")); diff != "" {
		t.Errorf("no policy (-want +got):\n%s", diff)
	}
	if view.Policies() != 1 || view.Quotas() != 1 {
		t.Errorf("view has %d policies and %d quotas, want 1 and 1", view.Policies(), view.Quotas())
	}
}

func TestRules(t *testing.T) {
	view := NewView(time.Minute, &Snapshot{
		Policies: []Declared{{Namespace: "a", Eviction: "lfu"}, {Namespace: "b", EvictionTTL: time.Second}},
		Quotas:   []Quota{{Tenant: "b", MaxKeys: 7}, {Tenant: "c", MaxKeys: 0}},
	}, new(ExtensionSet))
	defaults, byTenant := view.Rules()
	if diff := cmp.Diff(index.TenantRules{TTLMillis: 60_000}, defaults); diff != "" {
		t.Errorf("default rules (-want +got):\n%s", diff)
	}
	want := map[string]index.TenantRules{
		"a": {TTLMillis: 60_000, LFU: true},
		"b": {TTLMillis: 1000, Limited: true, MaxKeys: 7},
		"c": {TTLMillis: 60_000, Limited: true, MaxKeys: 0},
	}
	if diff := cmp.Diff(want, byTenant); diff != "" {
		t.Errorf("rules by tenant (-want +got):\n%s", diff)
	}
}

func TestStoreNeverMixesTwoSets(t *testing.T) {
	store := NewStore(0)
	var writers sync.WaitGroup
	for n := int32(1); n <= 2; n++ {
		writers.Go(func() {
			for range 500 {
				store.Replace(&Snapshot{
					Policies: []Declared{{Namespace: "a", MinimumPrefixTokens: n}},
					Quotas:   []Quota{{Tenant: "a", MaxKeys: int64(n)}},
				})
			}
		})
	}
	for range 500 {
		view := store.View()
		_, byTenant := view.Rules()
		if got, want := int64(view.For("a").MinimumPrefixTokens), byTenant["a"].MaxKeys; got != want {
			t.Errorf("policy of set %d with quota of set %d", got, want)
			break
		}
	}
	writers.Wait()
}

func TestExtensionsAndPoliciesLeaveEachOtherAlone(t *testing.T) {
	store := NewStore(0)
	byLoad := Extensions{Hash: HashRendezvous, SeedBlocks: 4, MaxPressure: .5, EqualHolders: EqualHoldersLoad}
	store.ReplaceExtensions(&ExtensionSet{
		Origin:   Origin{Revision: "e1"},
		Policies: []NamespaceExtensions{{"a", byLoad}, {"b", byLoad}, {"", byLoad}, {ReservedTenant, byLoad}},
	})
	store.Replace(&Snapshot{Origin: Origin{Revision: "p1"}, Policies: []Declared{{Namespace: "a"}}})

	want := emptyPolicy()
	want.Extensions = byLoad
	if diff := cmp.Diff(want, *store.View().For("a")); diff != "" {
		t.Errorf("policy with extensions (-want +got):\n%s", diff)
	}
	want = withoutPolicy()
	want.Extensions = byLoad
	if diff := cmp.Diff(want, *store.View().For("b")); diff != "" {
		t.Errorf("extensions alone (-want +got):\n%s", diff)
	}
	for _, tenant := range []string{"", ReservedTenant, "c"} {
		if diff := cmp.Diff(withoutPolicy(), *store.View().For(tenant)); diff != "" {
			t.Errorf("tenant %q (-want +got):\n%s", tenant, diff)
		}
	}
	if n := store.View().Policies(); n != 1 {
		t.Errorf("%d policies, want 1", n)
	}

	before, after := store.ReplaceExtensions(new(ExtensionSet))
	if diff := cmp.Diff(emptyPolicy(), *after.For("a")); diff != "" {
		t.Errorf("after the extensions went (-want +got):\n%s", diff)
	}
	if before.ExtensionsOrigin().Revision != "e1" || after.ExtensionsOrigin().Revision != "" || after.Origin().Revision != "p1" {
		t.Errorf("origins %v, %v, %v", before.ExtensionsOrigin(), after.ExtensionsOrigin(), after.Origin())
	}
}

func TestRemovedCountsPoliciesThatVanish(t *testing.T) {
	store := NewStore(0)
	store.Replace(&Snapshot{Policies: []Declared{{Namespace: "a"}, {Namespace: "b"}, {Namespace: "c"}}})
	store.ReplaceExtensions(&ExtensionSet{Policies: []NamespaceExtensions{{"a", Extensions{SeedBlocks: 1}}}})
	before, after := store.Replace(&Snapshot{Policies: []Declared{{Namespace: "b"}, {Namespace: "d"}}})
	if n := before.Removed(after); n != 2 {
		t.Errorf("%d policies vanished, want 2", n)
	}
}

// TestEnforceSeesViewsInOrder has the follower look at each view while others
// replace it.
func TestEnforceSeesViewsInOrder(t *testing.T) {
	store := NewStore(0)
	var last *View
	store.Enforce(func(v *View) { last = v })
	if last != store.View() {
		t.Fatal("the view in force was not handed over")
	}
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for range 100 {
				store.Replace(new(Snapshot))
				store.ReplaceExtensions(new(ExtensionSet))
			}
		})
	}
	writers.Wait()
	if last != store.View() {
		t.Error("the last view enforced is not the view in force")
	}
}
