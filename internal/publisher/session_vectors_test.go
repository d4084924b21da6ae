// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/kvevents"
)

type eventVectors struct {
	Vectors []struct {
		ID, Engine, Hex string
		LoRAIDs         map[int64]string  `json:"lora_id_map"`
		Expect          vectorExpectation `json:"expect_from_empty"`
	}
	Sequences []struct {
		ID, Meaning string
		Steps       []struct {
			Vector   string
			Outcomes []string
			Holdings []vectorHolding `json:"holdings_after"`
		}
	}
	Negative []struct {
		ID, Meaning, Hex string
		Expect           vectorExpectation
	}
}

type vectorExpectation struct {
	Batch  string
	Events []struct {
		Outcome string
		Keys    []string `json:"prefix_keys"`
	}
	Holdings  []vectorHolding `json:"holdings_after"`
	BlockSize *int            `json:"block_size"`
}

type vectorHolding struct {
	Key, Tier, Adapter string
	Tokens, Copies     int
}

func loadEventVectors(t testing.TB) eventVectors {
	t.Helper()
	raw, err := os.ReadFile("../kvevents/testdata/engine-events.json")
	if err != nil {
		t.Fatal(err)
	}
	var file eventVectors
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	return file
}

func fromHex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func holdings(s *Session) []vectorHolding {
	out := []vectorHolding{}
	s.mirror.each(func(_ uint32, b *block) {
		for i, copies := range b.copies {
			if copies > 0 {
				out = append(out, vectorHolding{
					Key: fmt.Sprintf("%016x", b.key), Tier: fmt.Sprintf("T%d", i+1),
					Adapter: s.mirror.adapters[b.adapter], Tokens: int(b.tokens), Copies: int(copies),
				})
			}
		}
	})
	return sorted(out)
}

func sorted(in []vectorHolding) []vectorHolding {
	sort.Slice(in, func(i, j int) bool { return in[i].Key+in[i].Tier < in[j].Key+in[j].Tier })
	return in
}

func (o outcome) text() string {
	if o.why == "" {
		return string(o.verb)
	}
	return string(o.verb) + ":" + o.why
}

// vectorRun feeds payloads to one session and collects what they did.
type vectorRun struct {
	session  *Session
	seen     replica
	sequence uint64
}

func newVectorRun(scheme string, ids map[int64]string) *vectorRun {
	s := NewSession(SessionConfig{Scheme: scheme, Copies: CopiesEach, LoRAIDs: ids})
	s.Connected(testStart)
	return &vectorRun{session: s, seen: replica{}}
}

// feed returns the outcomes, and for each event the keys of its hashes.
func (r *vectorRun) feed(t *testing.T, payload []byte) (outcomes []string, keys [][]string) {
	t.Helper()
	batch, _ := kvevents.NewDecoder(kvevents.Options{}).Decode(payload)
	outcomes = []string{}
	r.session.observe = func(o outcome) {
		var found []string
		if o.verb == outcomeIndex {
			for _, hash := range batch.Events[len(outcomes)].Hashes {
				found = append(found, fmt.Sprintf("%016x", r.session.mirror.at(r.session.mirror.head(byHash, hash)-1).key))
			}
		}
		outcomes, keys = append(outcomes, o.text()), append(keys, found)
	}
	r.seen.apply(r.session.Live(r.sequence, payload, testStart).Deltas)
	r.sequence++
	checkSession(t, r.session, r.seen)
	return outcomes, keys
}

func (r *vectorRun) check(t *testing.T, payload []byte, want vectorExpectation) {
	t.Helper()
	outcomes, keys := r.feed(t, payload)
	if want.Batch == "reject" {
		if diff := cmp.Diff([]string{"skip:malformed_batch"}, outcomes); diff != "" {
			t.Errorf("outcomes (-want +got):\n%s", diff)
		}
		return
	}
	wantOutcomes := []string{}
	for i, event := range want.Events {
		wantOutcomes = append(wantOutcomes, event.Outcome)
		if i < len(keys) {
			if diff := cmp.Diff(event.Keys, keys[i]); event.Keys != nil && diff != "" {
				t.Errorf("keys of event %d (-want +got):\n%s", i, diff)
			}
		}
	}
	if diff := cmp.Diff(wantOutcomes, outcomes); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(sorted(want.Holdings), holdings(r.session)); diff != "" {
		t.Errorf("holdings (-want +got):\n%s", diff)
	}
}

func TestSessionVectors(t *testing.T) {
	for _, vector := range loadEventVectors(t).Vectors {
		t.Run(vector.ID, func(t *testing.T) {
			run := newVectorRun(vector.Engine, vector.LoRAIDs)
			run.check(t, fromHex(t, vector.Hex), vector.Expect)
			want := 0
			if vector.Expect.BlockSize != nil {
				want = *vector.Expect.BlockSize
			}
			if got := run.session.BlockSize(); got != want {
				t.Errorf("block size %d, want %d", got, want)
			}
		})
	}
}

func TestSessionVectorSequences(t *testing.T) {
	file := loadEventVectors(t)
	byID := map[string]string{}
	for _, vector := range file.Vectors {
		byID[vector.ID] = vector.Hex
	}
	for _, sequence := range file.Sequences {
		t.Run(sequence.ID+" "+sequence.Meaning, func(t *testing.T) {
			run := newVectorRun("vllm", nil)
			for _, step := range sequence.Steps {
				outcomes, _ := run.feed(t, fromHex(t, byID[step.Vector]))
				if diff := cmp.Diff(step.Outcomes, outcomes); diff != "" {
					t.Errorf("%s: outcomes (-want +got):\n%s", step.Vector, diff)
				}
				if diff := cmp.Diff(sorted(step.Holdings), holdings(run.session)); diff != "" {
					t.Errorf("%s: holdings (-want +got):\n%s", step.Vector, diff)
				}
			}
		})
	}
}

func TestSessionNegatives(t *testing.T) {
	for _, negative := range loadEventVectors(t).Negative {
		t.Run(negative.ID+" "+negative.Meaning, func(t *testing.T) {
			run := newVectorRun("vllm", nil)
			run.check(t, fromHex(t, negative.Hex), negative.Expect)
			good := payload(t, testStart, storeEvent("next", "next", 1, 2, nil))
			if outcomes, _ := run.feed(t, good); outcomes[0] != "index" {
				t.Errorf("the next batch: %v, want it indexed", outcomes)
			}
		})
	}
}

// A corrupted batch loses neither the count of events nor the next batch.
func TestSessionCorruptedVectors(t *testing.T) {
	good := payload(t, testStart, storeEvent("next", "next", 1, 2, nil))
	for _, vector := range loadEventVectors(t).Vectors {
		intact := fromHex(t, vector.Hex)
		for i := range intact {
			corrupt := bytes.Clone(intact)
			corrupt[i] ^= 0xff
			s := NewSession(SessionConfig{Scheme: vector.Engine})
			seen := replica{}
			s.Connected(testStart)
			seen.apply(s.Live(0, corrupt, testStart).Deltas)
			before := s.Status()
			seen.apply(s.Live(1, good, testStart).Deltas)
			checkSession(t, s, seen)
			if size := before.BlockSize; size != 0 && size != testBlockSize {
				continue
			}
			if after := s.Status(); after.Applied != before.Applied+1 {
				t.Fatalf("%s with byte %d corrupted: the next batch was not applied: %v", vector.ID, i, after.Skipped)
			}
		}
	}
}
