// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type vectorFile struct {
	Vectors []struct {
		ID, Hex string
		LoRAIDs map[string]string `json:"lora_id_map"`
		Batch   struct {
			TS     float64 `json:"ts"`
			Rank   *int64  `json:"data_parallel_rank"`
			Events int
		}
		Expect struct {
			Events []vectorEvent
		} `json:"expect_from_empty"`
	}
	Negative []struct {
		ID, Meaning, Hex string
		Expect           struct {
			Batch  string
			Events []vectorEvent
		}
	}
	Frames map[string]json.RawMessage
}

type vectorEvent struct {
	Decoded map[string]any
	Outcome string
}

func loadVectors(t testing.TB) vectorFile {
	t.Helper()
	raw, err := os.ReadFile("testdata/engine-events.json")
	if err != nil {
		t.Fatal(err)
	}
	var file vectorFile
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	return file
}

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// describe renders an event in the vocabulary of the vectors file.
func describe(e *Event) map[string]any {
	out := map[string]any{"kind": string(e.Kind)}
	if e.Kind == KindCleared {
		return out
	}
	hex16 := func(v uint64) string { return fmt.Sprintf("%016x", v) }
	orNull := func(set bool, v any) any {
		if !set {
			return nil
		}
		return v
	}
	hashes := []any{}
	for _, hash := range e.Hashes {
		hashes = append(hashes, hex16(hash))
	}
	out["hashes"] = hashes
	out["medium"] = orNull(e.Medium != "", e.Medium)
	out["tier"] = "T" + strconv.Itoa(int(e.Tier))
	out["group_idx"] = orNull(e.HasGroup, float64(e.Group))
	out["locality"] = orNull(e.Locality != "", e.Locality)
	if e.Kind == KindRemoved {
		return out
	}
	tokens := []any{}
	for _, token := range e.Tokens {
		tokens = append(tokens, float64(token))
	}
	multimodal := []any{}
	if !e.Placeholder() {
		for i := range e.Hashes {
			entry := []any{}
			if e.Multimodal != nil {
				for _, identifier := range e.Multimodal[i] {
					entry = append(entry, []any{identifier.ID, float64(identifier.Offset)})
				}
			}
			multimodal = append(multimodal, entry)
		}
	}
	out["parent"] = orNull(e.HasParent, hex16(e.Parent))
	out["block_size"] = float64(e.BlockSize)
	out["tokens"] = tokens
	out["lora_id"] = orNull(e.HasLoRAID, float64(e.LoRAID))
	out["lora_name"] = orNull(e.LoRAName != "", e.LoRAName)
	out["salt"] = orNull(e.Salt != "", e.Salt)
	out["spec_kind"] = orNull(e.SpecKind != "", e.SpecKind)
	out["window"] = orNull(e.Window != 0, float64(e.Window))
	out["session_id"] = orNull(len(e.SessionID) > 0, string(e.SessionID))
	out["mm"] = multimodal
	return out
}

func TestDecodeVectors(t *testing.T) {
	for _, vector := range loadVectors(t).Vectors {
		t.Run(vector.ID, func(t *testing.T) {
			ids := map[int64]string{}
			for id, name := range vector.LoRAIDs {
				n, err := strconv.ParseInt(id, 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				ids[n] = name
			}
			batch, err := NewDecoder(Options{LoRAIDs: ids}).Decode(unhex(t, vector.Hex))
			if err != nil {
				t.Fatal(err)
			}
			wantMicros := int64(vector.Batch.TS * 1e6)
			if vector.Batch.TS > 1e11 {
				wantMicros = int64(vector.Batch.TS) * 1000
			}
			if batch.TimestampMicros != wantMicros {
				t.Errorf("timestamp %d, want %d", batch.TimestampMicros, wantMicros)
			}
			if want := vector.Batch.Rank; batch.HasRank != (want != nil) || want != nil && batch.Rank != *want {
				t.Errorf("rank %d (%v), want %v", batch.Rank, batch.HasRank, want)
			}
			if len(batch.Events) != len(vector.Expect.Events) {
				t.Fatalf("%d events, want %d", len(batch.Events), len(vector.Expect.Events))
			}
			for i, want := range vector.Expect.Events {
				if want.Decoded["tokens"] == nil && want.Decoded["kind"] == "stored" {
					want.Decoded["tokens"] = []any{}
				}
				if diff := cmp.Diff(want.Decoded, describe(&batch.Events[i])); diff != "" {
					t.Errorf("event %d (-want +got):\n%s", i, diff)
				}
			}
		})
	}
}

// decoderReasons are those a decoder finds without knowing earlier events.
var decoderReasons = map[Reason]bool{
	ReasonMalformed: true, ReasonUnknownType: true, ReasonMultimodalTokens: true,
	ReasonUnknownMedium: true, ReasonNonLocal: true, ReasonNonMainGroup: true,
	ReasonUnaligned: true, ReasonUnmappedLoRA: true, ReasonExtraKey: true, ReasonSelfParent: true,
}

func TestDecodeNegatives(t *testing.T) {
	for _, negative := range loadVectors(t).Negative {
		t.Run(negative.ID+" "+negative.Meaning, func(t *testing.T) {
			batch, err := NewDecoder(Options{}).Decode(unhex(t, negative.Hex))
			if negative.Expect.Batch == "reject" {
				if err != ErrMalformedBatch {
					t.Fatalf("error %v, want %v", err, ErrMalformedBatch)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(batch.Events) != len(negative.Expect.Events) {
				t.Fatalf("%d events, want %d", len(batch.Events), len(negative.Expect.Events))
			}
			for i, want := range negative.Expect.Events {
				reason, _ := strings.CutPrefix(want.Outcome, "skip:")
				if !decoderReasons[Reason(reason)] {
					reason = ""
				}
				if got := batch.Events[i].Reason; got != Reason(reason) {
					t.Errorf("event %d: reason %q, want %q", i, got, reason)
				}
			}
		})
	}
}
