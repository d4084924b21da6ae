// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"cmp"
	"math"
	"slices"
	"testing"
	"time"
	"unsafe"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/kvevents"
	"github.com/inferencecache/inference-cache/pkg/fingerprint"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// A child inherits what its chain started from, also in a later event.
func TestSessionKeys(t *testing.T) {
	image := []fingerprint.Identifier{{ID: "image", Offset: -2}}
	embeds := []fingerprint.Identifier{{ID: "embeds", Offset: math.MinInt64}}
	tests := map[string]struct {
		root, child map[string]any // extra fields
		salt        string
		identifiers [2][]fingerprint.Identifier
	}{
		"plain": {},
		"a salt among the extra keys": {
			root: map[string]any{"extra_keys": []any{[]any{"s"}}}, salt: "s",
		},
		"a salt stated on every event": {
			root: map[string]any{"cache_salt": "s"}, child: map[string]any{"cache_salt": "s"}, salt: "s",
		},
		"an image in the first block": {
			root:        map[string]any{"extra_keys": []any{[]any{[]any{"image", -2}}}},
			identifiers: [2][]fingerprint.Identifier{image, nil},
		},
		"an image in the second block": {
			child:       map[string]any{"extra_keys": []any{[]any{[]any{"image", -2}}}},
			identifiers: [2][]fingerprint.Identifier{nil, image},
		},
		"prompt embeddings and a salt": {
			root: map[string]any{"extra_keys": []any{[]any{"s", []byte("embeds")}}}, salt: "s",
			identifiers: [2][]fingerprint.Identifier{embeds, nil},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			parent := fingerprint.SaltParent(tc.salt)
			want := replica{}
			for i := range 2 {
				parent = fingerprint.MultimodalParent(parent, tc.identifiers[i])
				key := fingerprint.Next(parent, fingerprint.Content(blockTokens("a", i+1)))
				want[holder{"", key}] = holding{pb.CacheTier_CACHE_TIER_T1, int32((i + 1) * testBlockSize)}
				parent = fingerprint.Child(key)
			}
			for order, events := range map[string][]map[string]any{
				"in order":     {storeEvent("a", "a", 1, 1, tc.root), storeEvent("a", "a", 2, 2, tc.child)},
				"parked first": {storeEvent("a", "a", 2, 2, tc.child), storeEvent("a", "a", 1, 1, tc.root)},
			} {
				s, got := NewSession(SessionConfig{}), replica{}
				for i, event := range events {
					got.apply(s.Live(uint64(i), payload(t, testStart, event), testStart).Deltas)
				}
				if diff := gocmp.Diff(want, got, gocmp.AllowUnexported(holder{}, holding{})); diff != "" {
					t.Errorf("%s (-want +got):\n%s", order, diff)
				}
				checkSession(t, s, got)
			}
		})
	}
}

func TestSessionTimestamps(t *testing.T) {
	tests := map[string]struct {
		batch, want time.Duration // relative to the session's clock
	}{
		"the engine's clock":              {batch: -time.Minute, want: -time.Minute},
		"a clock five minutes ahead":      {batch: 5 * time.Minute, want: 5 * time.Minute},
		"a clock more than that ahead":    {batch: 5*time.Minute + time.Second},
		"a batch older than five minutes": {batch: -6 * time.Minute},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := NewSession(SessionConfig{})
			step := s.Live(0, payload(t, testStart.Add(tc.batch), storeEvent("a", "a", 1, 1, nil)), testStart)
			if got := time.UnixMicro(step.Deltas[0].TimestampUs).Sub(testStart); got != tc.want {
				t.Errorf("delta at %v, want %v", got, tc.want)
			}
		})
	}
	t.Run("time does not go back", func(t *testing.T) {
		s := NewSession(SessionConfig{})
		s.Live(0, payload(t, testStart.Add(time.Minute), storeEvent("a", "a", 1, 1, nil)), testStart)
		step := s.Live(1, payload(t, testStart, storeEvent("b", "b", 1, 1, nil)), testStart)
		if got := time.UnixMicro(step.Deltas[0].TimestampUs).Sub(testStart); got != time.Minute {
			t.Errorf("delta at %v, want a minute", got)
		}
	})
}

func TestSessionStatus(t *testing.T) {
	s := NewSession(SessionConfig{Rank: 1, HasRank: true})
	s.Connected(testStart)
	now := testStart.Add(time.Second)
	s.Live(0, payload(t, testStart,
		storeEvent("a", "a", 1, 3, map[string]any{"event_version": 2}),
		storeEvent("a", "a", 1, 1, map[string]any{"medium": "CPU", "token_ids": nil}),
		map[string]any{"type": "TierBlocksCleared"},
		removeEvent("z", 1, 1, nil),
	), now)
	want := Status{
		Connected: true, HasSequence: true, LastEventAt: testStart, LastReceivedAt: now,
		View: ViewComplete, Batches: 1,
		Events: map[kvevents.Kind]uint64{
			kvevents.KindStored: 2, kvevents.KindRemoved: 1, kvevents.KindUnknown: 1,
		},
		Received: 4, Applied: 2, NoOps: 1,
		Skipped:       map[kvevents.Reason]uint64{kvevents.ReasonUnknownType: 1},
		UnknownFields: map[string]uint64{"event_version": 1},
		Resets:        map[ResetCause]uint64{}, Replays: map[ReplayResult]uint64{},
		BlockSize: testBlockSize, HashForm: "int", TierBlocks: [3]int{3, 1, 0},
	}
	if diff := gocmp.Diff(want, s.Status()); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
}

// Live batches that wait for a replay are bounded; the oldest go and are
// missed in the end, not silently.
func TestSessionHoldsBoundedly(t *testing.T) {
	s := NewSession(SessionConfig{HasReplay: true, OnGap: GapKeep})
	s.Connected(testStart)
	empty := payload(t, testStart)
	const extra = 10
	for sequence := range uint64(maxHeldBatches + extra) {
		s.Live(sequence, empty, testStart)
	}
	if len(s.held) != maxHeldBatches {
		t.Fatalf("%d batches held, want %d", len(s.held), maxHeldBatches)
	}
	step := s.Replayed(0, empty, testStart)
	if step.Replay {
		t.Fatal("a replay was asked for before the last one ended")
	}
	step = s.ReplayDone(ReplayOK, testStart)
	if !step.Replay || step.ReplayFrom != 1 {
		t.Fatalf("step %+v, want a replay from 1", step)
	}
	s.ReplayDone(ReplayOK, testStart)
	if status := s.Status(); status.MissedBatches != extra-1 || status.LastSequence != maxHeldBatches+extra-1 {
		t.Errorf("%d missed, last %d", status.MissedBatches, status.LastSequence)
	}
	s.Connected(testStart)
	large := make([]byte, maxHeldBytes/2+1)
	s.Live(1, large, testStart)
	s.Live(2, large, testStart)
	if len(s.held) != 1 || s.heldBytes > maxHeldBytes {
		t.Errorf("%d batches of %d bytes held", len(s.held), s.heldBytes)
	}
}

// The mirror does not allocate for removals and second copies.
func TestMirrorSteadyStateDoesNotAllocate(t *testing.T) {
	m := newMirror(&opList{}, false, 1<<20)
	adapter, _ := m.adapterID("")
	id := identity{hash: 7, adapter: adapter}
	at := place{key: 9, tokens: 4}
	m.add(id, at, kvevents.TierT1, false)
	if n := testing.AllocsPerRun(100, func() {
		m.add(id, at, kvevents.TierT1, false)
		m.remove(id.hash, 0, true, kvevents.TierT1, false)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Capacity plans count with the memory of a block.
func TestBlockFitsCacheLine(t *testing.T) {
	if size := unsafe.Sizeof(block{}); size > 64 {
		t.Errorf("a block takes %d bytes, want at most 64", size)
	}
}

func TestSessionHashSamples(t *testing.T) {
	sample := func(chains ...string) []HashSample {
		s := NewSession(SessionConfig{})
		for i, chain := range chains {
			s.Live(uint64(i), payload(t, testStart, storeEvent(chain, chain, 1, 4, nil)), testStart)
		}
		s.Live(uint64(len(chains)), payload(t, testStart,
			storeEvent("l", "l", 1, 4, map[string]any{"lora_name": "adapter"})), testStart)
		return s.HashSamples(5)
	}
	var want []HashSample
	for _, chain := range []string{"a", "b"} {
		for i, key := range blockKeys(chain, "", 4) {
			want = append(want, HashSample{Key: key, EngineHash: blockHash(chain, i+1)})
		}
	}
	slices.SortFunc(want, func(a, b HashSample) int { return cmp.Compare(a.Key, b.Key) })
	want = want[:5]
	if diff := gocmp.Diff(want, sample("a", "b")); diff != "" {
		t.Errorf("samples (-want +got):\n%s", diff)
	}
	if diff := gocmp.Diff(want, sample("b", "a")); diff != "" {
		t.Errorf("samples in another order (-want +got):\n%s", diff)
	}
}
