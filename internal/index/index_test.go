// SPDX-License-Identifier: Apache-2.0

package index_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/index"
)

const minute = int64(60_000)

var scope = index.Scope{Tenant: "team-a", Model: "m", Scheme: "vllm"}

// store returns a batch that stores 64-token blocks of the base model.
func store(replica string, at int64, keys ...uint64) *index.Batch {
	return &index.Batch{
		Scope: scope, Replica: replica, AtMillis: at, NowMillis: at,
		Ops: []index.Op{{
			Kind: index.OpStore, Tier: index.TierT1,
			Keys:   index.Keys{Short: keys},
			Tokens: index.Tokens{First: 64, Step: 64},
		}},
	}
}

// chain matches a chain of 64-token blocks; slots are left out.
func chain(x *index.Index, now int64, keys ...uint64) []index.Match {
	v := x.Acquire(scope, "", now, 30*minute)
	defer v.Release()
	return withoutSlots(v.MatchChain(nil, index.Keys{Short: keys}, index.Tokens{Step: 64}))
}

func exact(x *index.Index, now int64, key uint64) []index.Match {
	v := x.Acquire(scope, "", now, 30*minute)
	defer v.Release()
	return withoutSlots(v.MatchExact(nil, index.Keys{Short: []uint64{key}}))
}

func withoutSlots(ms []index.Match) []index.Match {
	for i := range ms {
		ms[i].Slot = 0
	}
	return ms
}

func TestMatch(t *testing.T) {
	const a, b, c, d = 1, 2, 3, 4
	hour := 60 * minute
	fleet := func() *index.Index {
		x := index.New(index.Config{})
		x.Apply(store("p", hour-minute, a, b, c, d))
		x.Apply(store("q", hour-2*minute, a, b))
		x.Apply(store("r", hour-3*minute, a))
		return x
	}
	tests := map[string]struct {
		change func(*index.Index)
		got    func(*index.Index) []index.Match
		want   []index.Match
	}{
		"a chain gives each holder its leading run": {
			got: func(x *index.Index) []index.Match { return chain(x, hour, a, b, c, d) },
			want: []index.Match{
				{Replica: "p", Blocks: 4, Tokens: 256, LastSeenMillis: hour - minute, Tier: index.TierT1},
				{Replica: "q", Blocks: 2, Tokens: 128, LastSeenMillis: hour - 2*minute, Tier: index.TierT1},
				{Replica: "r", Blocks: 1, Tokens: 64, LastSeenMillis: hour - 3*minute, Tier: index.TierT1},
			},
		},
		"a hole ends a run for good": {
			change: func(x *index.Index) {
				x.RemoveEverywhere("team-a", "m", "p", "", true, index.Keys{Short: []uint64{b}})
			},
			got: func(x *index.Index) []index.Match { return chain(x, hour, a, b, c, d)[:1] },
			want: []index.Match{
				{Replica: "p", Blocks: 1, Tokens: 64, LastSeenMillis: hour - minute, Tier: index.TierT1},
			},
		},
		"equal neighbours end the run before the second": {
			got: func(x *index.Index) []index.Match { return chain(x, hour, a, a, a)[:1] },
			want: []index.Match{
				{Replica: "p", Blocks: 1, Tokens: 64, LastSeenMillis: hour - minute, Tier: index.TierT1},
			},
		},
		"an exact match gives the stored count": {
			got: func(x *index.Index) []index.Match { return exact(x, hour, c) },
			want: []index.Match{
				{Replica: "p", Blocks: 1, Tokens: 192, LastSeenMillis: hour - minute, Tier: index.TierT1},
			},
		},
		"a membership as old as the TTL is no match": {
			got: func(x *index.Index) []index.Match { return chain(x, hour+29*minute, a) },
		},
		"a heartbeat keeps what a session reported": {
			change: func(x *index.Index) {
				x.SessionUp(scope, "r", hour)
				x.Heartbeat(scope, "r", hour+10*minute)
			},
			got: func(x *index.Index) []index.Match { return chain(x, hour+29*minute, a) },
			want: []index.Match{
				{Replica: "r", Blocks: 1, Tokens: 64, LastSeenMillis: hour + 10*minute, Tier: index.TierT1},
			},
		},
		"a cleared replica holds nothing": {
			change: func(x *index.Index) { x.ClearReplica("team-a", "m", "p") },
			got:    func(x *index.Index) []index.Match { return chain(x, hour, c) },
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			x := fleet()
			if tc.change != nil {
				tc.change(x)
			}
			got := tc.got(x)
			sortMatches(got)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("matches differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSnapshotIsInvisibleUntilCommit(t *testing.T) {
	x := index.New(index.Config{})
	x.Apply(store("p", minute, 1, 2))
	s := x.BeginSnapshot(scope, "p")
	s.Store(minute, store("p", minute, 3).Ops[0])
	if got := len(chain(x, minute, 1)) + len(chain(x, minute, 3)); got != 1 {
		t.Errorf("before commit %d chains match, want only the old one", got)
	}
	if got, want := s.Commit(minute), (index.Applied{Stored: 1, Cleared: 2}); got != want {
		t.Errorf("Commit() = %+v, want %+v", got, want)
	}
	if got := len(chain(x, minute, 1)); got != 0 {
		t.Errorf("after commit the old chain has %d holders, want none", got)
	}
	if got := len(chain(x, minute, 3)); got != 1 {
		t.Errorf("after commit the new chain has %d holders, want 1", got)
	}
}

func TestServingRows(t *testing.T) {
	x := index.New(index.Config{ReservedTenant: reserved, SilenceTimeoutMillis: 1000})
	for _, tenant := range []string{"a", reserved} {
		x.Apply(&index.Batch{
			Scope: index.Scope{Tenant: tenant, Model: "m", Scheme: "s"}, Replica: "r", AtMillis: 5, NowMillis: 7,
			Ops: []index.Op{{Kind: index.OpStore, Tier: index.TierT1, Keys: index.Keys{Short: []uint64{1, 2}}}},
		})
	}
	x.SessionUp(index.Scope{Tenant: "a", Model: "m", Scheme: "s"}, "r", 9)
	x.SetStats("a", "m", "r", index.Stats{Pressure: .5, ReportedMillis: 10, LivenessMillis: 10})
	var rows []index.ServingRow
	x.EachServing(func(row index.ServingRow) { rows = append(rows, row) })
	want := []index.ServingRow{{Tenant: "a", Model: "m", Replica: "r", Memberships: 2, LastEventMillis: 7}}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	if s := x.Replica("a", "m", "r", 1009); s.Silent || !s.HasStats || s.Stats.Pressure != .5 {
		t.Errorf("heard of 999 ms ago: %+v", s)
	}
	if s := x.Replica("a", "m", "r", 1010); !s.Silent {
		t.Errorf("silent for a second: %+v", s)
	}
	if diff := cmp.Diff(index.ReplicaState{}, x.Replica("a", "m", "other", 0)); diff != "" {
		t.Errorf("unknown replica (-want +got):\n%s", diff)
	}
}
