// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/inferencecache/inference-cache/internal/index"
)

func small() *Corpus {
	trace := Repeat(Stretch(Generate(Shape{Seed: 1, Requests: 200}), 2), 2)
	return Make(trace, Header{Source: "generated", Seed: 1, Replicas: 4, PoolBlocks: 600, BlockSize: 16})
}

func TestPoolServes(t *testing.T) {
	p := newPool(4)
	tests := []struct {
		name    string
		request []uint32
		evicted []uint32
		stored  []run
	}{
		{"an empty pool stores everything", []uint32{1, 2, 3}, nil, []run{{0, 3}}},
		{"a known prefix is used again", []uint32{1, 2, 4}, nil, []run{{2, 3}}},
		{"the tail of the oldest request goes first", []uint32{1, 5}, []uint32{3}, []run{{1, 2}}},
		{"holes are stored by stretches", []uint32{6, 1, 7}, []uint32{4, 2}, []run{{0, 1}, {2, 3}}},
	}
	for _, tc := range tests {
		evicted, stored := p.serve(tc.request)
		if diff := cmp.Diff(tc.evicted, evicted); diff != "" {
			t.Errorf("%s: evicted (-want +got):\n%s", tc.name, diff)
		}
		if diff := cmp.Diff(tc.stored, stored, cmp.AllowUnexported(run{})); diff != "" {
			t.Errorf("%s: stored (-want +got):\n%s", tc.name, diff)
		}
	}
}

func TestCorpusKeepsItsForm(t *testing.T) {
	want := small()
	var file bytes.Buffer
	n, err := want.WriteTo(&file)
	if err != nil || n != int64(file.Len()) {
		t.Fatalf("WriteTo() = %d, %v for %d bytes", n, err, file.Len())
	}
	got, err := Read(&file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
}

func TestReadRefusesOtherFiles(t *testing.T) {
	var file bytes.Buffer
	if _, err := small().WriteTo(&file); err != nil {
		t.Fatal(err)
	}
	tests := map[string]string{
		"an empty file":           "",
		"a file of text":          "hello\n",
		"a header without sizes":  "{}\n",
		"a file that is cut":      file.String()[:file.Len()-1],
		"an operation of no kind": `{"replicas":1,"block_size":1}` + "\n\x09\x00\x00\x00\x00",
		"a replica out of range":  `{"replicas":1,"block_size":1}` + "\n\x00\x05\x00\x00\x00",
	}
	for name, content := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := Read(strings.NewReader(content)); !errors.Is(err, ErrCorpus) {
				t.Errorf("Read() = %v, want ErrCorpus", err)
			}
		})
	}
}

func FuzzRead(f *testing.F) {
	var file bytes.Buffer
	if _, err := small().WriteTo(&file); err != nil {
		f.Fatal(err)
	}
	f.Add(file.Bytes()[:400])
	f.Fuzz(func(t *testing.T, content []byte) {
		c, err := Read(bytes.NewReader(content))
		if err == nil && len(c.Ops) > len(content) {
			t.Errorf("%d operations from %d bytes", len(c.Ops), len(content))
		}
	})
}

func TestReadTrace(t *testing.T) {
	trace := `{"timestamp": 0, "input_length": 900, "output_length": 1, "hash_ids": [0, 1]}
{"timestamp": 40, "input_length": 900, "output_length": 1, "hash_ids": [0, 2]}
`
	got, err := ReadTrace(strings.NewReader(trace))
	if err != nil {
		t.Fatal(err)
	}
	want := []Request{{0, []uint32{0, 1}}, {40, []uint32{0, 2}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	wide := Repeat(Stretch(got[:1], 2), 2)
	if diff := cmp.Diff([]Request{{0, []uint32{0, 1, 2, 3}}, {0, []uint32{4, 5, 6, 7}}}, wide); diff != "" {
		t.Errorf("stretched and repeated (-want +got):\n%s", diff)
	}
	if _, err := ReadTrace(strings.NewReader("{")); err == nil {
		t.Error("a broken line is no error")
	}
}

// TestReplayEqualsPools plays a corpus and compares what the index holds with
// what the pools hold.
func TestReplayEqualsPools(t *testing.T) {
	c := small()
	x := newIndex()
	for _, s := range c.steps(startMillis) {
		if s.events > 0 {
			x.Apply(&s.batch)
		}
	}
	held := map[uint16]map[uint32]bool{}
	for _, op := range c.Ops {
		if held[op.Replica] == nil {
			held[op.Replica] = map[uint32]bool{}
		}
		for _, b := range op.Blocks {
			switch op.Kind {
			case Store:
				held[op.Replica][b] = true
			case Remove:
				delete(held[op.Replica], b)
			}
		}
	}
	v := x.Acquire(scope, "", startMillis, ttlMillis)
	defer v.Release()
	names := ReplicaNames(c.Header.Replicas)
	memberships := 0
	for replica, blocks := range held {
		for b := range blocks {
			memberships++
			found := false
			for _, m := range v.MatchExact(nil, index.Keys{Short: []uint64{Key(b)}}) {
				found = found || m.Replica == names[replica]
			}
			if !found {
				t.Fatalf("replica %d lacks a block it holds", replica)
			}
		}
	}
	if got := v.Counts().Memberships; got != int64(memberships) {
		t.Errorf("%d memberships, want %d", got, memberships)
	}
}
