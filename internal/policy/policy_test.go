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
		"extensions are kept": {
			Declared{Extensions: Extensions{Hash: HashRendezvous, SeedBlocks: 4, MaxPressure: .5, EqualHolders: EqualHoldersLoad}}, 0,
			changed(func(e *Effective) {
				e.Extensions = Extensions{Hash: HashRendezvous, SeedBlocks: 4, MaxPressure: .5, EqualHolders: EqualHoldersLoad}
			}),
		},
	} {
		t.Run(name, func(t *testing.T) {
			tc.declared.Namespace = "team"
			view := NewView(tc.serverTTL, []Declared{tc.declared}, nil)
			if diff := cmp.Diff(tc.want, *view.For("team")); diff != "" {
				t.Errorf("effective policy (-want +got):\n%s", diff)
			}
		})
	}
}

func TestViewKeys(t *testing.T) {
	view := NewView(0, []Declared{
		{Namespace: "", MinimumPrefixTokens: 9},
		{Namespace: "a", MinimumPrefixTokens: 1},
		{Namespace: "a", MinimumPrefixTokens: 2},
	}, []Quota{{Tenant: "", MaxKeys: 9}, {Tenant: "q", MaxKeys: 1}, {Tenant: "q", MaxKeys: -5}})

	for tenant, want := range map[string]int32{"a": 2, "": 0, "b": 0} {
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
	view := NewView(time.Minute,
		[]Declared{{Namespace: "a", Eviction: "lfu"}, {Namespace: "b", EvictionTTL: time.Second}},
		[]Quota{{Tenant: "b", MaxKeys: 7}, {Tenant: "c", MaxKeys: 0}})
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
				store.Replace([]Declared{{Namespace: "a", MinimumPrefixTokens: n}}, []Quota{{Tenant: "a", MaxKeys: int64(n)}})
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
