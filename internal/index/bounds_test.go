// SPDX-License-Identifier: Apache-2.0

package index_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/index"
)

// spread returns n keys that no other call with another base returns.
func spread(base, n int) []uint64 {
	keys := make([]uint64, n)
	for i := range keys {
		keys[i] = uint64(base*n+i+1) * 0x9e3779b97f4a7c15
	}
	return keys
}

func TestMemoryBoundHolds(t *testing.T) {
	const bound = 4 << 20
	x := index.New(index.Config{MaxMemoryBytes: bound})
	names := []string{"p", "q", "r"}
	most := int64(0)
	for i := range 6_000 {
		at := minute + int64(i)
		x.Apply(store(names[i%3], at, spread(i, 64)...))
		most = max(most, x.Counters(at).Bytes.Total())
	}
	c := x.Counters(minute)
	if most > bound+bound/10 {
		t.Errorf("the index took %d bytes, bound %d", most, bound)
	}
	if c.Bytes.Total() < bound/2 || c.Memberships < 20_000 {
		t.Errorf("the bound is wasted: %d bytes for %d memberships", c.Bytes.Total(), c.Memberships)
	}
	if c.Evictions.CapLRU == 0 {
		t.Error("nothing was evicted")
	}
	if got := chain(x, minute+6_000, spread(5_999, 64)...); len(got) != 1 || got[0].Blocks != 64 {
		t.Errorf("the newest chain matches %+v", got)
	}
	if got := chain(x, minute+6_000, spread(0, 64)...); len(got) != 0 {
		t.Errorf("the oldest chain matches %+v", got)
	}
}

func TestChurnLeavesNothingBehind(t *testing.T) {
	x := index.New(index.Config{DefaultRules: index.TenantRules{TTLMillis: 10_000}})
	empty := x.Counters(0).Bytes.Total()
	now := minute
	for i := range 300 {
		now += 1_000
		b := store(fmt.Sprintf("replica-%d", i), now, spread(i%7, 200)...)
		b.Scope.Scheme = fmt.Sprintf("scheme-%d", i%50)
		b.Ops[0].Adapter = fmt.Sprintf("adapter-%d", i%20)
		x.Apply(b)
		x.SessionUp(b.Scope, b.Replica, now)
		x.SetStats(b.Scope.Tenant, b.Scope.Model, b.Replica, index.Stats{LivenessMillis: now, ReportedMillis: now})
		switch i % 3 {
		case 0:
			x.ClearReplica(b.Scope.Tenant, b.Scope.Model, b.Replica)
		case 1:
			x.BeginSnapshot(b.Scope, b.Replica).Commit(now)
		}
		x.SessionDown(b.Scope, b.Replica, now)
		for x.Maintain(now) {
		}
	}
	for range 3 {
		now += minute
		for x.Maintain(now) {
		}
	}
	if err := x.Check(); err != nil {
		t.Fatalf("broken invariant: %v", err)
	}
	c := x.Counters(now)
	c.Evictions = index.Evictions{}
	if left := c.Bytes.Total() - empty; left > 16<<10 {
		t.Errorf("%d bytes are left", left)
	}
	c.Bytes = index.Bytes{}
	if diff := cmp.Diff(index.Counters{}, c); diff != "" {
		t.Errorf("something is left (-want +got):\n%s", diff)
	}
	if got := x.Names(); got != 0 {
		t.Errorf("%d names are left", got)
	}
}

func TestResyncIsDueOnceThereIsRoom(t *testing.T) {
	x := index.New(index.Config{MaxMemberships: 100})
	x.SessionUp(scope, "p", minute)
	x.Apply(store("p", minute, spread(0, 100)...))
	x.Apply(store("q", minute+2_000, spread(1, 50)...))
	if got := x.ResyncDue(); got != nil {
		t.Errorf("ResyncDue() = %v at the bound", got)
	}
	x.ClearReplica(scope.Tenant, scope.Model, "q")
	want := []index.SessionRef{{Scope: scope, Replica: "p"}}
	if diff := cmp.Diff(want, x.ResyncDue()); diff != "" {
		t.Errorf("below the bound (-want +got):\n%s", diff)
	}
	if got := x.ResyncDue(); got != nil {
		t.Errorf("ResyncDue() = %v a second time", got)
	}
}

func TestResyncIsDueOnceTheQuotaHasRoom(t *testing.T) {
	quota := func(keys int64) map[string]index.TenantRules {
		return map[string]index.TenantRules{scope.Tenant: {Limited: true, MaxKeys: keys}}
	}
	for name, makeRoom := range map[string]func(x *index.Index){
		"the quota is raised":       func(x *index.Index) { x.SetRules(index.TenantRules{}, quota(20)) },
		"the quota is taken away":   func(x *index.Index) { x.SetRules(index.TenantRules{}, nil) },
		"another replica goes away": func(x *index.Index) { x.ClearReplica(scope.Tenant, scope.Model, "q") },
	} {
		t.Run(name, func(t *testing.T) {
			x := index.New(index.Config{})
			x.SetRules(index.TenantRules{}, quota(10))
			x.SessionUp(scope, "p", minute)
			x.Apply(store("p", minute, spread(0, 10)...))
			x.Apply(store("q", minute+2_000, spread(2, 5)...))
			for range 2 {
				if got := x.ResyncDue(); got != nil {
					t.Fatalf("ResyncDue() = %v at the quota", got)
				}
			}
			makeRoom(x)
			want := []index.SessionRef{{Scope: scope, Replica: "p"}}
			if diff := cmp.Diff(want, x.ResyncDue()); diff != "" {
				t.Errorf("below the quota (-want +got):\n%s", diff)
			}
			if got := x.ResyncDue(); got != nil {
				t.Errorf("ResyncDue() = %v a second time", got)
			}
		})
	}
}

func TestQuotaTakesTheOldestKeys(t *testing.T) {
	x := index.New(index.Config{})
	x.SetRules(index.TenantRules{}, map[string]index.TenantRules{scope.Tenant: {Limited: true, MaxKeys: 4}})
	x.Apply(store("p", minute, 5, 3, 9))
	x.Apply(store("q", minute+1, 3))       // makes 3 younger than 5 and 9
	x.Apply(store("p", minute+2, 11, 2))   // one key too many: 5 goes before 9
	x.Apply(store("p", minute+2, 7, 8, 1)) // then 9, 3, and 1 of those equally old
	var got []uint64
	for _, key := range []uint64{1, 2, 3, 5, 7, 8, 9, 11} {
		if len(exact(x, minute+2, key)) > 0 {
			got = append(got, key)
		}
	}
	if diff := cmp.Diff([]uint64{2, 7, 8, 11}, got); diff != "" {
		t.Errorf("keys left (-want +got):\n%s", diff)
	}
	x.EachQuota(func(r index.TenantRow) {
		if r.Keys != 4 || r.QuotaEvicted != 4 {
			t.Errorf("the quota's row is %+v", r)
		}
	})
}

func TestHiddenCountersOfClassification(t *testing.T) {
	x := index.New(index.Config{SilenceTimeoutMillis: minute})
	x.Apply(store("p", minute, 1))
	x.SessionUp(scope, "p", minute)
	v := x.Acquire(scope, "", 10*minute, 30*minute)
	defer v.Release()
	if v.Serving() != 0 {
		t.Error("a silent replica serves")
	}
	want := index.ViewCounts{Memberships: 1, TenantKeys: 1, ModelKeys: 1, ScopeMemberships: 1, PartitionMemberships: 1}
	if diff := cmp.Diff(want, v.Counts()); diff != "" {
		t.Errorf("a silent replica still counts for the classifier (-want +got):\n%s", diff)
	}
}

func TestObserveSeesEachKindOfSection(t *testing.T) {
	seen, ran := map[string]bool{}, map[string]bool{}
	x := index.New(index.Config{
		MaxMemberships: 10, DefaultRules: index.TenantRules{TTLMillis: 10_000},
		Observe:    func(op string, _ time.Duration) { seen[op] = true },
		ObserveRun: func(task string, _ time.Duration) { ran[task] = true },
	})
	x.Apply(store("p", minute, 1))
	if len(ran) > 0 {
		t.Errorf("runs of %v were seen although nothing was over a bound", ran)
	}
	x.Apply(store("p", minute, spread(0, 20)...))
	x.RemoveEverywhere(scope.Tenant, scope.Model, "p", "", true, index.Keys{Short: spread(0, 20)})
	x.Apply(store("p", minute, 1))
	s := x.BeginSnapshot(scope, "p")
	s.Store(minute, store("p", minute, 1, 2).Ops[0])
	s.Commit(minute)
	x.SetRules(index.TenantRules{TTLMillis: 10_000, Limited: true, MaxKeys: 1}, nil)
	x.Apply(store("q", minute, 5))
	x.ClearReplica(scope.Tenant, scope.Model, "p")
	for x.Maintain(2 * minute) {
	}
	for _, op := range []string{"apply", "cap", "evict", "snapshot", "quota", "clear", "expire"} {
		if !seen[op] {
			t.Errorf("no section of %q was seen", op)
		}
	}
	for _, task := range []string{"cap", "quota", "snapshot"} {
		if !ran[task] {
			t.Errorf("no run of %q was seen", task)
		}
	}
}
