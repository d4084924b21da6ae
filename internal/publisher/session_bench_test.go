// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"encoding/binary"
	"runtime"
	"testing"

	"github.com/tinylib/msgp/msgp"

	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

const (
	benchBlockSize = 16
	benchChain     = 32 // blocks of one store
)

// benchStore encodes a store of one chain, numbered so that no two are equal.
func benchStore(chain uint64) []byte {
	b := msgp.AppendArrayHeader(nil, 3)
	b = msgp.AppendFloat64(b, 1700000000.5)
	b = msgp.AppendArrayHeader(b, 1)
	b = msgp.AppendMapHeader(b, 6)
	b = msgp.AppendString(msgp.AppendString(b, "type"), "BlockStored")
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "block_hashes"), benchChain)
	for i := range uint64(benchChain) {
		b = binary.BigEndian.AppendUint64(append(b, 0xcf), benchHash(chain, i))
	}
	b = msgp.AppendNil(msgp.AppendString(b, "parent_block_hash"))
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "token_ids"), benchChain*benchBlockSize)
	for i := range uint32(benchChain * benchBlockSize) {
		b = msgp.AppendUint32(b, uint32(chain)*7919+i*31)
	}
	b = msgp.AppendInt(msgp.AppendString(b, "block_size"), benchBlockSize)
	b = msgp.AppendString(msgp.AppendString(b, "medium"), "GPU")
	return msgp.AppendNil(b)
}

func benchHash(chain, i uint64) uint64 { return (chain*benchChain + i + 1) * 0x9e3779b97f4a7c15 }

func benchRemove(chain uint64) []byte {
	b := msgp.AppendArrayHeader(nil, 3)
	b = msgp.AppendFloat64(b, 1700000000.5)
	b = msgp.AppendArrayHeader(b, 1)
	b = msgp.AppendArrayHeader(b, 3)
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "BlockRemoved"), benchChain)
	for i := range uint64(benchChain) {
		b = binary.BigEndian.AppendUint64(append(b, 0xcf), benchHash(chain, i))
	}
	return msgp.AppendNil(msgp.AppendString(b, "GPU"))
}

// BenchmarkSession stores and removes chains over a pool of 16,384 blocks.
func BenchmarkSession(b *testing.B) {
	const pool, kinds = 512, 2048
	var stores, removes [kinds][]byte
	for i := range uint64(kinds) {
		stores[i], removes[i] = benchStore(i), benchRemove(i)
	}
	s := NewSession(SessionConfig{})
	sequence := uint64(0)
	feed := func(payload []byte) {
		s.Live(sequence, payload, testStart)
		sequence++
	}
	for i := range pool {
		feed(stores[i])
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		feed(stores[(i+pool)%kinds])
		feed(removes[i%kinds])
		i++
	}
	b.ReportMetric(float64(b.N)*2*benchChain/b.Elapsed().Seconds(), "blocks/s")
}

// BenchmarkMirrorMillion fills a mirror with a million blocks and takes a
// snapshot of it.
func BenchmarkMirrorMillion(b *testing.B) {
	const chains = 1_000_000 / benchChain
	var before, after runtime.MemStats
	for b.Loop() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		s := NewSession(SessionConfig{})
		for i := range uint64(chains) {
			s.Live(i, benchStore(i), testStart)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(s.ResidentBlocks()), "B/block")
		b.ReportMetric(float64(s.ResidentBlocks()), "blocks")
		runs := 0
		s.Snapshot(func(*pb.StoredRun) bool { runs++; return true })
		b.ReportMetric(float64(runs), "runs")
	}
}

func BenchmarkSnapshotMillion(b *testing.B) {
	s := NewSession(SessionConfig{})
	for i := range uint64(1_000_000 / benchChain) {
		s.Live(i, benchStore(i), testStart)
	}
	for b.Loop() {
		s.Snapshot(func(*pb.StoredRun) bool { return true })
	}
}
