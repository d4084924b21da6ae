// SPDX-License-Identifier: Apache-2.0

package index_test

import (
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/index"
)

// script is what one replica does to one scope, for the model afterwards. No
// other goroutine writes for the replica, so that the order of the others does
// not matter to the end state.
type script struct {
	scope   index.Scope
	replica string
	random  *rand.Rand
	steps   []func(*model)
}

func (s *script) keys() index.Keys {
	from, n := s.random.IntN(20), 1+s.random.IntN(80)
	chain := uint64(s.random.IntN(12)) << 32
	var k index.Keys
	for i := range n {
		k.Short = append(k.Short, chain|uint64(from+i))
	}
	if s.random.IntN(8) == 0 {
		for _, w := range k.Short[:min(n, 10)] {
			k.Long = append(k.Long, []byte("long-"+strconv.FormatUint(w, 10)))
		}
		k.Short = nil
	}
	return k
}

func (s *script) store() index.Op {
	return index.Op{Adapter: adapters[s.random.IntN(2)], Tier: index.Tier(1 + s.random.IntN(3)), Keys: s.keys(), Tokens: index.Tokens{First: 16, Step: 16}}
}

// step does one change to the index and notes it for the model.
func (s *script) step(x *index.Index, now int64) {
	switch kind := s.random.IntN(40); kind {
	case 0:
		x.ClearReplica(s.scope.Tenant, s.scope.Model, s.replica)
		s.steps = append(s.steps, func(m *model) { m.clearReplica(s.scope.Tenant, s.scope.Model, s.replica) })
	case 1, 2:
		snapshot := x.BeginSnapshot(s.scope, s.replica)
		var ops []index.Op
		var times []int64
		for range 1 + s.random.IntN(20) {
			ops, times = append(ops, s.store()), append(times, now)
			snapshot.Store(now, ops[len(ops)-1])
		}
		if kind == 2 {
			snapshot.Abort()
			return
		}
		snapshot.Commit(now)
		s.steps = append(s.steps, func(m *model) { m.commit(s.scope, s.replica, now, times, ops) })
	case 3:
		x.SessionUp(s.scope, s.replica, now)
		x.Heartbeat(s.scope, s.replica, now)
		s.steps = append(s.steps, func(m *model) { m.sessionUp(s.scope, s.replica, now); m.heartbeat(s.scope, s.replica, now) })
	case 4:
		x.SetStats(s.scope.Tenant, s.scope.Model, s.replica, index.Stats{LivenessMillis: now, ReportedMillis: now})
	default:
		b := &index.Batch{Scope: s.scope, Replica: s.replica, AtMillis: now, NowMillis: now, Ops: []index.Op{s.store()}}
		if kind%2 == 0 {
			b.Ops = append(b.Ops, index.Op{Kind: index.OpRemove, Adapter: adapters[s.random.IntN(2)], Keys: s.keys()})
		}
		if kind == 5 {
			b.Ops = append([]index.Op{{Kind: index.OpClear}}, b.Ops...)
		}
		x.Apply(b)
		s.steps = append(s.steps, func(m *model) { m.apply(b) })
	}
}

// TestConcurrentUse runs writers, readers, reports and maintenance beside each
// other and compares the end state with the model.
func TestConcurrentUse(t *testing.T) {
	length := 2 * time.Second
	if os.Getenv(longTests) != "" {
		length = 30 * time.Second
	}
	cfg := index.Config{DefaultRules: index.TenantRules{TTLMillis: 1 << 40}}
	x := index.New(cfg)
	const now = 1_000_000
	var scripts []*script
	for i := range 8 {
		scripts = append(scripts, &script{
			scope:   index.Scope{Tenant: "a", Model: "m", Scheme: schemes[i%2]},
			replica: "replica-" + strconv.Itoa(i/2), random: rand.New(rand.NewPCG(uint64(i), 3)),
		})
	}
	// Replicas are not shared by scripts: a clear is for all schemes.
	for i, s := range scripts {
		s.replica += "-" + strconv.Itoa(i%2)
	}
	var done atomic.Bool
	var writers, others sync.WaitGroup
	for i := range 2 {
		writers.Go(func() {
			for !done.Load() {
				for j := i; j < len(scripts); j += 2 {
					scripts[j].step(x, now)
				}
			}
		})
		others.Go(func() { readUntil(t, x, &done, now, uint64(i)) })
	}
	others.Go(func() {
		for !done.Load() {
			x.Maintain(now)
			x.Counters(now)
			x.EachReplica(func(index.ReplicaRow) {})
			x.EachTenant(func(index.TenantRow) {})
			x.CacheState("a", "m")
			time.Sleep(time.Millisecond)
		}
	})
	time.Sleep(length)
	done.Store(true)
	writers.Wait()
	others.Wait()

	if err := x.Check(); err != nil {
		t.Fatalf("broken invariant: %v", err)
	}
	m := newModel(index.Config{DefaultRules: cfg.DefaultRules, MaxTenants: 9, MaxPartitions: 9})
	for _, s := range scripts {
		for _, step := range s.steps {
			step(m)
		}
	}
	want, got := m.dump(), x.Dump()
	slices.SortFunc(want, byPlace)
	slices.SortFunc(got, byPlace)
	if diff := cmp.Diff(len(want), len(got)); diff != "" {
		t.Errorf("memberships differ (-want +got):\n%s", diff)
	}
	if !slices.Equal(want, got) {
		t.Errorf("memberships differ in more than their number")
	}
}

// readUntil matches chains and checks what must hold in any state: a batch is
// seen whole or not at all, so runs are never out of order or too long.
func readUntil(t *testing.T, x *index.Index, done *atomic.Bool, now int64, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 4))
	var matches []index.Match
	var candidates []index.Candidate
	for !done.Load() {
		s := index.Scope{Tenant: "a", Model: "m", Scheme: schemes[random.IntN(2)]}
		var keys index.Keys
		chain := uint64(random.IntN(12)) << 32
		for i := range uint64(90) {
			keys.Short = append(keys.Short, chain|i)
		}
		v := x.Acquire(s, adapters[random.IntN(2)], now, 1<<40)
		matches = v.MatchChain(matches[:0], keys, index.Tokens{Step: 16})
		candidates = v.Candidates(candidates[:0], true, false)
		first := v.MatchExact(nil, keys)
		if len(first) != len(matches) || len(matches) > len(candidates) || len(candidates) > v.Serving() {
			t.Errorf("a view shows %d runs, %d holders of their first key, %d candidates, %d serving",
				len(matches), len(first), len(candidates), v.Serving())
		}
		for i, m := range matches {
			if m.Tokens != 16*m.Blocks || i > 0 && matches[i-1].Slot >= m.Slot {
				t.Errorf("match %d is %+v", i, m)
			}
		}
		v.Release()
	}
}
