// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tinylib/msgp/msgp"

	"github.com/inferencecache/inference-cache/internal/kvevents"
	"github.com/inferencecache/inference-cache/pkg/fingerprint"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

const testBlockSize = 4

var testStart = time.Unix(1700000000, 0)

// blockTokens are the tokens of block n (from 1) of a named chain.
func blockTokens(chain string, n int) []uint32 {
	h := fnv.New32a()
	h.Write([]byte(chain))
	return []uint32{h.Sum32(), uint32(n), 300, 70000}
}

// blockHash is a hash an engine could have for it.
func blockHash(chain string, n int) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%d", chain, n)
	return h.Sum64()
}

// blockKeys are the keys of the first n blocks.
func blockKeys(chain, salt string, n int) []uint64 {
	var tokens []uint32
	for i := 1; i <= n; i++ {
		tokens = append(tokens, blockTokens(chain, i)...)
	}
	return fingerprint.Append(nil, fingerprint.SaltParent(salt), tokens, testBlockSize)
}

// payload encodes a batch of raw events, keys in alphabetical order.
func payload(t testing.TB, at time.Time, events ...map[string]any) []byte {
	t.Helper()
	b := msgp.AppendArrayHeader(nil, 3)
	b = msgp.AppendFloat64(b, float64(at.UnixMicro())/1e6)
	b = msgp.AppendArrayHeader(b, uint32(len(events)))
	for _, event := range events {
		b = msgp.AppendMapHeader(b, uint32(len(event)))
		for _, key := range slices.Sorted(maps.Keys(event)) {
			var err error
			if b, err = msgp.AppendIntf(msgp.AppendString(b, key), event[key]); err != nil {
				t.Fatal(err)
			}
		}
	}
	return msgp.AppendNil(b)
}

// storeEvent stores blocks from..to of a chain, with more fields over it.
func storeEvent(chain, hashes string, from, to int, more map[string]any) map[string]any {
	event := map[string]any{
		"type": "BlockStored", "parent_block_hash": nil,
		"block_size": testBlockSize, "lora_id": nil, "medium": "GPU",
	}
	if from > 1 {
		event["parent_block_hash"] = blockHash(hashes, from-1)
	}
	var names, tokens []any
	for n := from; n <= to; n++ {
		names = append(names, blockHash(hashes, n))
		size := testBlockSize
		if other, ok := more["block_size"].(int); ok && other > 0 {
			size = other
		}
		for i := range size {
			tokens = append(tokens, blockTokens(chain, n)[i%testBlockSize])
		}
	}
	event["block_hashes"], event["token_ids"] = names, tokens
	for key, value := range more {
		event[key] = value
	}
	return event
}

func removeEvent(hashes string, from, to int, more map[string]any) map[string]any {
	event := map[string]any{"type": "BlockRemoved", "medium": "GPU"}
	var names []any
	for n := from; n <= to; n++ {
		names = append(names, blockHash(hashes, n))
	}
	event["block_hashes"] = names
	for key, value := range more {
		event[key] = value
	}
	return event
}

func clearEvent() map[string]any { return map[string]any{"type": "AllBlocksCleared"} }

// holder is a key of an adapter, as a server sees it.
type holder struct {
	adapter string
	key     uint64
}

type holding struct {
	tier   pb.CacheTier
	tokens int32
}

// replica is what a server would know: deltas applied to a plain set.
type replica map[holder]holding

func (r replica) apply(deltas []*pb.SyncDelta) {
	for _, delta := range deltas {
		for _, op := range delta.Ops {
			if stored := op.GetStored(); stored != nil {
				r.store(stored)
			}
			for _, key := range op.GetRemoved().GetKeys() {
				delete(r, holder{op.GetRemoved().AdapterId, key})
			}
			if op.GetCleared() != nil {
				clear(r)
			}
		}
	}
}

func (r replica) store(run *pb.StoredRun) {
	for i, key := range run.Keys {
		tokens := run.FirstTokenCount + int32(i)*run.BlockTokenCount
		if len(run.TokenCounts) > 0 {
			tokens = run.TokenCounts[i]
		}
		r[holder{run.AdapterId, key}] = holding{run.Tier, tokens}
	}
}

// checkSession asserts what must hold after every step.
func checkSession(t testing.TB, s *Session, seen replica) {
	t.Helper()
	status := s.Status()
	accounted := status.Applied + status.NoOps + uint64(status.ParkedEvents)
	for _, n := range status.Skipped {
		accounted += n
	}
	if status.Received != accounted {
		t.Fatalf("received %d events, accounted for %d: %+v", status.Received, accounted, status)
	}
	snapshot := replica{}
	blocks := 0
	s.Snapshot(func(run *pb.StoredRun) bool {
		blocks += len(run.Keys)
		snapshot.store(run)
		return true
	})
	if blocks != len(snapshot) || blocks != s.ResidentBlocks() {
		t.Fatalf("snapshot of %d blocks, %d distinct, %d resident", blocks, len(snapshot), s.ResidentBlocks())
	}
	if diff := cmp.Diff(snapshot, seen, cmp.AllowUnexported(holder{}, holding{})); diff != "" {
		t.Fatalf("deltas do not add up to the mirror (-mirror +deltas):\n%s", diff)
	}
	checkOrder(t, s)
	checkMirror(t, s.mirror)
}

// checkOrder asserts that a snapshot yields parents before children.
func checkOrder(t testing.TB, s *Session) {
	t.Helper()
	parents := map[holder]uint64{}
	s.mirror.each(func(_ uint32, b *block) {
		if b.flags&flagParent != 0 {
			parents[holder{s.mirror.adapters[b.adapter], b.key}] = b.parentKey
		}
	})
	missing := map[holder]bool{}
	s.Snapshot(func(run *pb.StoredRun) bool {
		for _, key := range run.Keys {
			if missing[holder{run.AdapterId, key}] {
				t.Fatal("a block came before its parent")
			}
			if parent, ok := parents[holder{run.AdapterId, key}]; ok {
				missing[holder{run.AdapterId, parent}] = true
			}
			delete(missing, holder{run.AdapterId, key})
		}
		return true
	})
}

// checkMirror compares the mirror's counters with its blocks.
func checkMirror(t testing.TB, m *mirror) {
	t.Helper()
	var live, suspects, withdrawn int
	var tiers [3]int
	m.each(func(_ uint32, b *block) {
		live++
		if b.flags&flagSuspect != 0 {
			suspects++
		}
		if b.flags&flagWithdrawn != 0 {
			withdrawn++
		}
		for i, copies := range b.copies {
			if copies > 0 {
				tiers[i]++
			}
		}
		if b.tier() == kvevents.TierNone {
			t.Fatal("a block without copies is held")
		}
	})
	if live != m.live || suspects != m.suspects || withdrawn != m.withdrawn || tiers != m.tierBlocks {
		t.Fatalf("counters %d %d %d %v, blocks say %d %d %d %v",
			m.live, m.suspects, m.withdrawn, m.tierBlocks, live, suspects, withdrawn, tiers)
	}
	for by := range m.tables {
		checkTable(t, m, axis(by))
	}
}

// checkTable asserts that exactly the held blocks are found by an axis.
func checkTable(t testing.TB, m *mirror, by axis) {
	t.Helper()
	values := map[uint64]int{}
	m.each(func(_ uint32, b *block) { values[b.value(by)]++ })
	if used := m.tables[by].used; used != len(values) {
		t.Fatalf("%d entries for %d values", used, len(values))
	}
	for value, want := range values {
		got := 0
		for slot := m.head(by, value); slot != 0; slot = *m.at(slot - 1).next(by) {
			got++
		}
		if got != want {
			t.Fatalf("%d blocks found by a value that %d have", got, want)
		}
	}
}
