// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"
)

// corruptPayloads yields every vector with each byte changed, and with random
// changes.
func corruptPayloads(t *testing.T, random int, yield func(id string, payload []byte)) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, vector := range loadVectors(t).Vectors {
		good := unhex(t, vector.Hex)
		for i := range good {
			for _, value := range []byte{good[i] ^ 1, good[i] ^ 0x80, 0x00, 0xc0, 0xc1, 0xdd, 0xdf, 0xff} {
				changed := bytes.Clone(good)
				changed[i] = value
				yield(vector.ID, changed)
			}
		}
		for range random {
			yield(vector.ID, mutate(rng, good))
		}
	}
}

// mutate changes, drops, repeats or inserts a few bytes.
func mutate(rng *rand.Rand, good []byte) []byte {
	out := bytes.Clone(good)
	for range 1 + rng.IntN(4) {
		at := rng.IntN(len(out))
		switch rng.IntN(4) {
		case 0:
			out[at] = byte(rng.Uint32())
		case 1:
			if out = slices.Delete(out, at, at+1); len(out) == 0 {
				return out
			}
		case 2:
			out = slices.Insert(out, at, byte(rng.Uint32()))
		default:
			end := at + rng.IntN(len(out)-at)
			out = slices.Insert(out, at, bytes.Clone(out[at:end])...)
		}
	}
	return out
}

// A corrupt payload never panics. It costs the batch only when the framing is
// broken, else events, and never the next batch.
func TestDecodeCorruptPayloads(t *testing.T) {
	decoder := NewDecoder(Options{})
	good := encodeBatch(t, goodStore)
	corruptPayloads(t, 10_000, func(id string, payload []byte) {
		checkDecode(t, decoder, payload)
		if batch, err := decoder.Decode(good); err != nil || batch.Events[0].Reason != ReasonNone {
			t.Fatalf("%s: the batch after %x: %v", id, payload, err)
		}
	})
}

// checkDecode decodes and asserts what every result must fulfil.
func checkDecode(t *testing.T, decoder *Decoder, payload []byte) {
	t.Helper()
	batch, err := decoder.Decode(payload)
	if err != nil {
		if framingHolds(payload) {
			t.Fatalf("the batch is lost although its framing holds: %x", payload)
		}
		return
	}
	if len(batch.Events) > maxBatchEvents || len(batch.UnknownFields) > maxUnknownFields+1 {
		t.Fatalf("%d events, %d unknown fields", len(batch.Events), len(batch.UnknownFields))
	}
	for i := range batch.Events {
		e := &batch.Events[i]
		if !slices.Contains(Kinds(), e.Kind) {
			t.Fatalf("kind %q", e.Kind)
		}
		if e.Reason != ReasonNone {
			if !decoderReasons[e.Reason] {
				t.Fatalf("reason %q", e.Reason)
			}
			continue
		}
		usable := e.Kind == KindCleared || e.Kind == KindRemoved || len(e.Hashes) == 0 || e.Placeholder() ||
			len(e.Tokens) == len(e.Hashes)*e.BlockSize && (e.Multimodal == nil || len(e.Multimodal) == len(e.Hashes))
		if !usable || e.Kind == KindUnknown || e.Kind != KindCleared && (e.Tier < TierT1 || e.Tier > TierT3) {
			t.Fatalf("event %+v is not usable", e)
		}
	}
}

// framingHolds says independently of the decoder whether a payload is one
// msgpack value of a batch's outer shape.
func framingHolds(payload []byte) bool {
	value, rest, err := msgp.ReadIntfBytes(payload)
	if err != nil || len(rest) > 0 || depth(value) > maxDepth {
		return false
	}
	outer, ok := value.([]any)
	if !ok || len(outer) < 2 {
		return false
	}
	switch outer[0].(type) {
	case float64, float32, int64, uint64, nil:
	default:
		return false
	}
	if _, ok := outer[1].([]any); !ok {
		return false
	}
	if len(outer) > 2 {
		switch rank := outer[2].(type) {
		case int64, nil:
		case uint64:
			return rank <= math.MaxInt64
		default:
			return false
		}
	}
	return true
}

func depth(value any) (deepest int) {
	switch v := value.(type) {
	case []any:
		for _, part := range v {
			deepest = max(deepest, depth(part))
		}
		return deepest + 1
	case map[string]any:
		for _, part := range v {
			deepest = max(deepest, depth(part))
		}
		return deepest + 1
	case time.Time:
		return 0
	}
	return 0
}

func FuzzDecode(f *testing.F) {
	file := loadVectors(f)
	for _, vector := range file.Vectors {
		f.Add(unhex(f, vector.Hex))
	}
	for _, negative := range file.Negative {
		f.Add(unhex(f, negative.Hex))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		checkDecode(t, NewDecoder(Options{}), payload)
		Rank(payload)
	})
}
