// SPDX-License-Identifier: Apache-2.0

package index_test

import (
	"encoding/binary"
	"fmt"
	"sync"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/inferencecache/inference-cache/internal/index"
)

// place is a membership without what may change in it.
type place struct {
	Scope                 index.Scope
	Adapter, Key, Replica string
}

// follower keeps what an index holds from nothing but its feed.
type follower struct {
	deaf bool

	mu       sync.Mutex
	held     map[place]bool
	reported int
	cleared  int
	wrong    []string
}

func (f *follower) Listening() bool { return !f.deaf }

func (f *follower) Changed(scope index.Scope, changes []index.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range changes {
		at := place{Scope: scope, Adapter: c.Adapter, Replica: c.Replica, Key: string(c.Long)}
		if c.Long == nil {
			at.Key = string(binary.BigEndian.AppendUint64(nil, c.Short))
		}
		switch c.Kind {
		case index.ChangeAdded:
			f.expect(!f.held[at], "added twice: %+v", at)
			f.held[at] = true
		case index.ChangeRemoved:
			f.expect(f.held[at], "removed without being held: %+v", at)
			delete(f.held, at)
		case index.ChangeCleared:
			f.cleared++
			for p := range f.held {
				if p.Scope == scope && p.Replica == c.Replica {
					delete(f.held, p)
				}
			}
		case index.ChangeReported:
			f.reported++
		}
	}
}

func (f *follower) expect(ok bool, format string, args ...any) {
	if !ok {
		f.wrong = append(f.wrong, fmt.Sprintf(format, args...))
	}
}

func (f *follower) compare(x *index.Index) error {
	if len(f.wrong) > 0 {
		return fmt.Errorf("impossible changes: %q", f.wrong)
	}
	want := map[place]bool{}
	for _, h := range x.Dump() {
		if h.Scope.Tenant != reserved {
			want[place{h.Scope, h.Adapter, h.Key, h.Replica}] = true
		}
	}
	if diff := gocmp.Diff(want, f.held); diff != "" {
		return fmt.Errorf("the feed leads elsewhere (-index +feed):\n%s", diff)
	}
	return nil
}

func TestFeedTellsEveryChangeOnce(t *testing.T) {
	configs := map[string]index.Config{
		"without bounds": {},
		"with a cap":     {MaxMemberships: 15},
		"with a quota":   {DefaultRules: index.TenantRules{TTLMillis: 20_000, MaxKeys: 8, Limited: true}},
	}
	for name, cfg := range configs {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				f := &follower{held: map[place]bool{}}
				cfg := cfg
				cfg.Feed = f
				w := newWorld(cfg)
				t.Repeat(map[string]func(*rapid.T){
					"apply": w.apply, "apply again": w.apply, "remove everywhere": w.removeEverywhere,
					"clear": w.clearReplica, "begin snapshot": w.beginSnapshot, "feed snapshot": w.feedSnapshot,
					"end snapshot": w.endSnapshot, "stats": w.stats, "sign of life": w.signOfLife,
					"rules": w.rules, "advance": w.advance, "credit": w.credit,
					"": func(t *rapid.T) {
						if err := f.compare(w.x); err != nil {
							t.Fatal(err)
						}
					},
				})
			})
		})
	}
}

func TestFeedOfConcurrentWriters(t *testing.T) {
	f := &follower{held: map[place]bool{}}
	x := index.New(index.Config{Feed: f, MaxMemberships: 3000})
	scope := index.Scope{Tenant: "a", Model: "m", Scheme: "s"}
	var writers sync.WaitGroup
	for n := range 3 {
		writers.Go(func() {
			replica := fmt.Sprintf("r%d", n)
			for round := range uint64(12) {
				op := index.Op{Kind: index.OpStore, Tier: index.TierT1, Tokens: index.Tokens{Step: 16}}
				for key := range uint64(1500) {
					op.Keys.Short = append(op.Keys.Short, round*700+key+1)
				}
				switch round % 4 {
				case 3:
					snapshot := x.BeginSnapshot(scope, replica)
					snapshot.Store(1000, op)
					snapshot.Commit(1000)
				case 2:
					x.ClearReplica("a", "m", replica)
				default:
					x.Apply(&index.Batch{Scope: scope, Replica: replica, AtMillis: 1000, NowMillis: 1000, Ops: []index.Op{op}})
				}
			}
		})
	}
	writers.Wait()
	if err := f.compare(x); err != nil {
		t.Error(err)
	}
}

func TestFeedTellsOfStatsAndClears(t *testing.T) {
	f := &follower{held: map[place]bool{}}
	x := index.New(index.Config{Feed: f, ReservedTenant: reserved})
	x.SetStats("a", "m", "r", index.Stats{ReportedMillis: 2})
	x.SetStats("a", "m", "r", index.Stats{ReportedMillis: 1})
	x.SetStats(reserved, "m", "r", index.Stats{ReportedMillis: 1})
	x.Touch("a", "m", "r", 3)
	x.Touch("a", "m", "other", 3)
	if f.reported != 2 {
		t.Errorf("%d reports, want the newer payload and the touch", f.reported)
	}
	x.ClearReplica("a", "m", "r")
	x.ClearReplica("a", "m", "other")
	if f.cleared != 1 {
		t.Errorf("%d clears, want one for the stats row", f.cleared)
	}
	f.deaf = true
	x.SetStats("a", "m", "r", index.Stats{ReportedMillis: 5})
	if f.reported != 2 {
		t.Error("told of a change while nobody listened")
	}
}
