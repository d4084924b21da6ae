// SPDX-License-Identifier: Apache-2.0

package index_test

import (
	"cmp"
	"encoding/binary"
	"reflect"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/inferencecache/inference-cache/internal/index"
)

const reserved = "reserved"

// world drives an index and its model with the same operations.
type world struct {
	x    *index.Index
	m    *model
	now  int64
	open []*openSnapshot
}

// openSnapshot is a snapshot with what it was given.
type openSnapshot struct {
	s       *index.Snapshot
	scope   index.Scope
	replica string
	times   []int64
	ops     []index.Op
}

func newWorld(cfg index.Config) *world {
	if cfg.DefaultRules.TTLMillis == 0 {
		cfg.DefaultRules.TTLMillis = 20_000
	}
	cfg.ReservedTenant = reserved
	cfg.SilenceTimeoutMillis, cfg.AffinitySilenceTimeoutMillis = 12_000, 3_000
	x := index.New(cfg)
	if cfg.MaxTenants == 0 {
		cfg.MaxTenants = index.DefaultMaxTenants
	}
	if cfg.MaxPartitions == 0 {
		cfg.MaxPartitions = index.DefaultMaxPartitions
	}
	return &world{x: x, m: newModel(cfg), now: 1_000_000}
}

var (
	tenants  = []string{"a", "b", reserved}
	models   = []string{"m", "n"}
	schemes  = []string{"s", "t"}
	adapters = []string{"", "lora"}
	names    = []string{"p", "q", "r", "u"}
)

// Two chains of keys of eight bytes, and keys of every other length.
const chainLength = 10

func shortKey(chain, i int) uint64 { return uint64(chain+1)<<40 | uint64(i+1) }

// longKey is the form of a key as bytes: odd places have odd lengths.
func longKey(chain, i int) []byte {
	if i%2 == 0 {
		return binary.BigEndian.AppendUint64(nil, shortKey(chain, i))
	}
	b := make([]byte, (i*7+chain*13)%index.MaxKeyBytes+1)
	for j := range b {
		b[j] = byte(chain*16 + i)
	}
	return b
}

func drawScope(t *rapid.T) index.Scope {
	return index.Scope{
		Tenant: rapid.SampledFrom(tenants).Draw(t, "tenant"),
		Model:  rapid.SampledFrom(models).Draw(t, "model"),
		Scheme: rapid.SampledFrom(schemes).Draw(t, "scheme"),
	}
}

func drawName(t *rapid.T) string { return rapid.SampledFrom(names).Draw(t, "replica") }

func drawKeys(t *rapid.T) index.Keys {
	chain := rapid.IntRange(0, 1).Draw(t, "chain")
	from := rapid.IntRange(0, chainLength-1).Draw(t, "from")
	to := rapid.IntRange(from, chainLength).Draw(t, "to")
	var k index.Keys
	if long := rapid.Bool().Draw(t, "long"); long {
		k.Long = [][]byte{}
		for i := from; i < to; i++ {
			k.Long = append(k.Long, longKey(chain, i))
		}
		if rapid.IntRange(0, 9).Draw(t, "hostile") == 0 {
			k.Long = append(k.Long, nil, make([]byte, index.MaxKeyBytes+1))
		}
		return k
	}
	for i := from; i < to; i++ {
		k.Short = append(k.Short, shortKey(chain, i))
	}
	if rapid.IntRange(0, 9).Draw(t, "twice") == 0 && len(k.Short) > 0 {
		k.Short = append(k.Short, k.Short[0])
	}
	return k
}

func drawStore(t *rapid.T) index.Op {
	op := index.Op{
		Kind:    index.OpStore,
		Adapter: rapid.SampledFrom(adapters).Draw(t, "adapter"),
		Tier:    index.Tier(rapid.IntRange(1, 4).Draw(t, "tier")),
		Keys:    drawKeys(t),
		Tokens:  index.Tokens{First: 16, Step: int32(rapid.SampledFrom([]int{16, 16, 16, 8}).Draw(t, "step"))},
	}
	if rapid.IntRange(0, 9).Draw(t, "counted") == 0 {
		for i := range op.Keys.Len() {
			op.Tokens.Counts = append(op.Tokens.Counts, int32(i))
		}
	}
	return op
}

func drawOp(t *rapid.T) index.Op {
	op := drawStore(t)
	switch rapid.IntRange(0, 9).Draw(t, "kind") {
	case 0, 1, 2:
		op.Kind = index.OpRemove
	case 3:
		op.Kind = index.OpClear
	}
	return op
}

// drawTime is mostly now, sometimes late, so late as to be expired.
func (w *world) drawTime(t *rapid.T) int64 {
	return w.now - rapid.SampledFrom([]int64{0, 0, 0, 1, 700, 5_000, 19_000, 25_000}).Draw(t, "late")
}

func (w *world) apply(t *rapid.T) {
	b := &index.Batch{Scope: drawScope(t), Replica: drawName(t), AtMillis: w.drawTime(t), NowMillis: w.now}
	for range rapid.IntRange(1, 3).Draw(t, "ops") {
		b.Ops = append(b.Ops, drawOp(t))
	}
	if got, want := w.x.Apply(b), w.m.apply(b); got != want {
		t.Fatalf("Apply() = %+v, want %+v", got, want)
	}
	w.enforced(t, b.Scope.Tenant)
}

// enforced brings the model to what bounds must have done to the index.
func (w *world) enforced(t *rapid.T, tenant string) {
	w.m.enforceQuota(tenant)
	over := w.m.memberships() - w.m.cfg.MaxMemberships
	if w.m.cfg.MaxMemberships == 0 || over <= 0 {
		return
	}
	kept := map[index.Held]bool{}
	for _, h := range w.x.Dump() {
		kept[h] = true
	}
	var order, victims []int64
	for _, h := range w.m.dump() {
		if h.Scope.Tenant == reserved {
			continue
		}
		rank := h.SeenMillis / 1000
		lfu := w.m.rulesOf(h.Scope.Tenant).LFU
		if lfu {
			rank += h.Count << 40
		}
		order = append(order, rank)
		if kept[h] {
			continue
		}
		victims = append(victims, rank)
		w.m.scopes[h.Scope].remove(h.Adapter, h.Key, h.Replica)
		if lfu {
			w.m.evictions.CapLFU++
		} else {
			w.m.evictions.CapLRU++
		}
	}
	slices.Sort(order)
	slices.Sort(victims)
	if diff := gocmp.Diff(order[:over], victims); diff != "" {
		t.Fatalf("the cap took other ranks (-want +got):\n%s", diff)
	}
}

func (w *world) removeEverywhere(t *rapid.T) {
	s, replica, keys := drawScope(t), drawName(t), drawKeys(t)
	adapter, anyAdapter := rapid.SampledFrom(adapters).Draw(t, "adapter"), rapid.Bool().Draw(t, "any")
	got := w.x.RemoveEverywhere(s.Tenant, s.Model, replica, adapter, anyAdapter, keys)
	if want := w.m.removeEverywhere(s.Tenant, s.Model, replica, adapter, anyAdapter, keys); got != want {
		t.Fatalf("RemoveEverywhere() = %d, want %d", got, want)
	}
}

func (w *world) clearReplica(t *rapid.T) {
	s, replica := drawScope(t), drawName(t)
	if got, want := w.x.ClearReplica(s.Tenant, s.Model, replica), w.m.clearReplica(s.Tenant, s.Model, replica); got != want {
		t.Fatalf("ClearReplica() = %d, want %d", got, want)
	}
}

func (w *world) beginSnapshot(t *rapid.T) {
	s, replica := drawScope(t), drawName(t)
	w.open = append(w.open, &openSnapshot{s: w.x.BeginSnapshot(s, replica), scope: s, replica: replica})
}

func (w *world) feedSnapshot(t *rapid.T) {
	if len(w.open) == 0 {
		t.Skip("no snapshot is open")
	}
	o := rapid.SampledFrom(w.open).Draw(t, "snapshot")
	o.times, o.ops = append(o.times, w.drawTime(t)), append(o.ops, drawStore(t))
	o.s.Store(o.times[len(o.times)-1], o.ops[len(o.ops)-1])
}

func (w *world) endSnapshot(t *rapid.T) {
	if len(w.open) == 0 {
		t.Skip("no snapshot is open")
	}
	i := rapid.IntRange(0, len(w.open)-1).Draw(t, "snapshot")
	o := w.open[i]
	w.open = slices.Delete(w.open, i, i+1)
	if rapid.IntRange(0, 4).Draw(t, "abort") == 0 {
		o.s.Abort()
		return
	}
	if got, want := o.s.Commit(w.now), w.m.commit(o.scope, o.replica, w.now, o.times, o.ops); got != want {
		t.Fatalf("Commit() = %+v, want %+v", got, want)
	}
	w.enforced(t, o.scope.Tenant)
}

func (w *world) stats(t *rapid.T) {
	s, replica := drawScope(t), drawName(t)
	at := w.now - rapid.SampledFrom([]int64{0, 0, 900}).Draw(t, "late")
	row := index.Stats{HitRate: rapid.Float32Range(0, 1).Draw(t, "hit rate"), LivenessMillis: at, ReportedMillis: at}
	got := w.x.SetStats(s.Tenant, s.Model, replica, row)
	if want := w.m.setStats(identity{s.Tenant, s.Model, replica}, row); got != want {
		t.Fatalf("SetStats() = %v, want %v", got, want)
	}
}

func (w *world) signOfLife(t *rapid.T) {
	s, replica := drawScope(t), drawName(t)
	id := identity{s.Tenant, s.Model, replica}
	switch rapid.IntRange(0, 4).Draw(t, "sign") {
	case 0:
		w.x.Touch(s.Tenant, s.Model, replica, w.now)
		w.m.touch(id, w.now)
	case 1:
		w.x.Heard(s.Tenant, s.Model, replica, w.now)
		w.m.hear(id, w.now)
	case 2:
		w.x.SessionUp(s, replica, w.now)
		w.m.sessionUp(s, replica, w.now)
	case 3:
		w.x.Heartbeat(s, replica, w.now)
		w.m.heartbeat(s, replica, w.now)
	case 4:
		w.x.SessionDown(s, replica, w.now)
		w.m.sessionDown(s, replica, w.now)
	}
}

func drawRules(t *rapid.T) index.TenantRules {
	r := index.TenantRules{
		TTLMillis: rapid.SampledFrom([]int64{20_000, 20_000, 6_000, 40_000}).Draw(t, "ttl"),
		LFU:       rapid.Bool().Draw(t, "lfu"),
	}
	if rapid.IntRange(0, 2).Draw(t, "limited") == 0 {
		r.Limited, r.MaxKeys = true, int64(rapid.IntRange(0, 12).Draw(t, "quota"))
	}
	return r
}

func (w *world) rules(t *rapid.T) {
	defaults, byTenant := drawRules(t), map[string]index.TenantRules{}
	if rapid.Bool().Draw(t, "own rules") {
		byTenant["a"] = drawRules(t)
	}
	w.x.SetRules(defaults, byTenant)
	w.m.defaults, w.m.rules = defaults, byTenant
	w.maintain()
}

func (w *world) advance(t *rapid.T) {
	w.now += rapid.SampledFrom([]int64{1, 400, 1_500, 4_000, 9_000, 30_000}).Draw(t, "millis")
	w.maintain()
}

func (w *world) maintain() {
	for w.x.Maintain(w.now) {
	}
	w.m.maintain(w.now)
}

func (w *world) credit(t *rapid.T) {
	v := at{scope: drawScope(t), adapter: rapid.SampledFrom(adapters).Draw(t, "adapter"), now: w.now}
	v.ttl = w.m.rulesOf(v.scope.Tenant).TTLMillis
	keys := drawKeys(t)
	view := w.x.Acquire(v.scope, v.adapter, v.now, v.ttl)
	got := view.MatchChain(nil, keys, index.Tokens{Step: 16})
	if len(got) > 1 && rapid.Bool().Draw(t, "prune") {
		got = got[1:]
	}
	view.Credit(got)
	view.Release()
	w.m.credit(v, keys, got)
}

func TestIndexEqualsModel(t *testing.T) {
	configs := map[string]index.Config{
		"without bounds":            {},
		"with a cap":                {MaxMemberships: 15},
		"with a cap of LFU tenants": {MaxMemberships: 15, DefaultRules: index.TenantRules{TTLMillis: 20_000, LFU: true}},
		"with few names":            {MaxTenants: 1, MaxPartitions: 3},
		"with a quota":              {DefaultRules: index.TenantRules{TTLMillis: 20_000, MaxKeys: 8, Limited: true}},
	}
	for name, cfg := range configs {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := newWorld(cfg)
				t.Repeat(map[string]func(*rapid.T){
					"apply": w.apply, "apply again": w.apply, "apply more": w.apply,
					"remove everywhere": w.removeEverywhere, "clear": w.clearReplica,
					"begin snapshot": w.beginSnapshot, "feed snapshot": w.feedSnapshot, "end snapshot": w.endSnapshot,
					"stats": w.stats, "sign of life": w.signOfLife, "more signs of life": w.signOfLife,
					"rules": w.rules, "advance": w.advance, "credit": w.credit,
					"": w.compare,
				})
			})
		})
	}
}

// dump returns all memberships of the model.
func (m *model) dump() (out []index.Held) {
	for s, st := range m.scopes {
		for adapter, part := range st.parts {
			for key, h := range part {
				for replica, held := range h {
					out = append(out, index.Held{Scope: s, Adapter: adapter, Key: key, Replica: replica,
						SeenMillis: held.seen, Tokens: held.tokens, Tier: held.tier, Count: held.count})
				}
			}
		}
	}
	return out
}

func byPlace(a, b index.Held) int {
	return cmp.Or(cmp.Compare(a.Scope.Tenant, b.Scope.Tenant), cmp.Compare(a.Scope.Model, b.Scope.Model),
		cmp.Compare(a.Scope.Scheme, b.Scope.Scheme), cmp.Compare(a.Adapter, b.Adapter),
		cmp.Compare(a.Key, b.Key), cmp.Compare(a.Replica, b.Replica))
}

// same compares; the slow explanation is only made when something differs.
func same(t *rapid.T, what string, want, got any) {
	t.Helper()
	if reflect.DeepEqual(want, got) {
		return
	}
	if diff := gocmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("%s differ (-want +got):\n%s", what, diff)
	}
}

// compare checks every observable of the index against the model.
func (w *world) compare(t *rapid.T) {
	if err := w.x.Check(); err != nil {
		t.Fatalf("broken invariant: %v", err)
	}
	want, got := w.m.dump(), w.x.Dump()
	slices.SortFunc(want, byPlace)
	slices.SortFunc(got, byPlace)
	same(t, "memberships", want, got)
	counters := w.x.Counters(w.now)
	counters.Bytes, counters.OldestExpiredMillis = index.Bytes{}, 0
	same(t, "counters", w.m.counters(w.now), counters)
	modelKeys := map[string]int64{}
	w.x.EachModel(func(model string, keys int64) { modelKeys[model] = keys })
	same(t, "keys by model", w.m.modelKeys(), modelKeys)
	var tenantRows []index.TenantRow
	w.x.EachTenant(func(r index.TenantRow) { tenantRows = append(tenantRows, r) })
	same(t, "tenants", w.m.tenantRows(), tenantRows)
	var rows []index.ReplicaRow
	w.x.EachReplica(func(r index.ReplicaRow) { rows = append(rows, r) })
	same(t, "replicas", w.m.replicaRows(), rows)
	for _, tenant := range tenants {
		for _, model := range models {
			wantRows, wantKeys := w.m.cacheState(tenant, model)
			gotRows, gotKeys := w.x.CacheState(tenant, model)
			same(t, "stats rows", wantRows, gotRows)
			same(t, "distinct keys", wantKeys, gotKeys)
			for _, scheme := range schemes {
				for _, adapter := range adapters {
					w.compareView(t, index.Scope{Tenant: tenant, Model: model, Scheme: scheme}, adapter)
				}
			}
		}
	}
}

func (w *world) compareView(t *rapid.T, s index.Scope, adapter string) {
	v := at{scope: s, adapter: adapter, now: w.now, ttl: w.m.rulesOf(s.Tenant).TTLMillis}
	view := w.x.Acquire(s, adapter, v.now, v.ttl)
	defer view.Release()
	same(t, "counts", w.m.counts(v), view.Counts())
	same(t, "serving", len(w.m.candidates(v, false, false)), view.Serving())
	for i := range 4 {
		inPartition, forAffinity := i&1 != 0, i&2 != 0
		var got []string
		for _, c := range view.Candidates(nil, inPartition, forAffinity) {
			got = append(got, c.Replica)
			stats, ok := view.Stats(c.Slot)
			if p := w.m.replicas[identity{s.Tenant, s.Model, c.Replica}]; ok != (p.stats != nil) || ok && stats != *p.stats {
				t.Fatalf("Stats() = %+v, %v for %s", stats, ok, c.Replica)
			}
		}
		same(t, "candidates", w.m.candidates(v, inPartition, forAffinity), got)
	}
	for c := range 2 {
		var short, long index.Keys
		for i := range chainLength {
			short.Short, long.Long = append(short.Short, shortKey(c, i)), append(long.Long, longKey(c, i))
		}
		for _, keys := range []index.Keys{short, long} {
			got := withoutSlots(view.MatchChain(nil, keys, index.Tokens{Step: 16}))
			sortMatches(got)
			same(t, "chain", w.m.chain(v, keys, index.Tokens{Step: 16}), got)
		}
		for i := range chainLength {
			one := index.Keys{Long: [][]byte{longKey(c, i)}}
			got := withoutSlots(view.MatchExact(nil, one))
			sortMatches(got)
			same(t, "exact", w.m.exact(v, string(longKey(c, i))), got)
		}
	}
}
