// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/inferencecache/inference-cache/internal/kvevents"
	"github.com/inferencecache/inference-cache/internal/sim/blockhash"
	"github.com/inferencecache/inference-cache/internal/sim/sched"
	"github.com/inferencecache/inference-cache/internal/sim/wire"
)

// What any scheduler announces in any shape must decode without a complaint
// and mean the same.
func TestEventsDecode(t *testing.T) {
	for _, name := range wire.ShapeNames() {
		t.Run(name, func(t *testing.T) {
			shape, err := wire.ParseShape(name)
			if err != nil {
				t.Fatal(err)
			}
			rapid.Check(t, func(t *rapid.T) { checkShape(t, shape) })
		})
	}
}

func checkShape(t *rapid.T, shape wire.Shape) {
	sglang := shape.Name()[0] == 's'
	config := sched.Config{BlockSize: 4, CapacityBlocks: 8, PerNode: sglang}
	if sglang {
		config.Chainer = blockhash.SGLang{}
	}
	scheduler := sched.New(config)
	identities := []blockhash.Identity{{}}
	if shape.ShowsAdapters() {
		identities = append(identities, blockhash.Identity{Adapter: "tuned"})
	}
	if shape.ShowsSalts() {
		identities = append(identities, blockhash.Identity{Salt: "salt"})
	}
	encoder := wire.Encoder{Shape: shape, Rank: 1, ByteHashes: rapid.Bool().Draw(t, "byte hashes")}
	decoder := kvevents.NewDecoder(kvevents.Options{})
	for range rapid.IntRange(1, 6).Draw(t, "requests") {
		prompt := rapid.SliceOfN(rapid.Uint32Range(0, 2), 1, 20).Draw(t, "prompt")
		identity := rapid.SampledFrom(identities).Draw(t, "identity")
		request := &sched.Request{
			Prompt: prompt, MaxTokens: 4, Identity: identity, AdapterID: len(identity.Adapter) / 5,
			Sample: func(index int) (uint32, bool) { return uint32(70000 + index), false },
		}
		if err := scheduler.Add(request); err != nil {
			t.Fatal(err)
		}
		for scheduler.Busy() {
			step := scheduler.Schedule()
			if len(step.Events) > 0 {
				checkBatch(t, decoder, encoder, step.Events, identity)
			}
			scheduler.Complete(step)
		}
	}
}

// checkBatch sends events of one request and compares what arrives.
func checkBatch(
	t *rapid.T, decoder *kvevents.Decoder, encoder wire.Encoder, events []wire.Event, identity blockhash.Identity,
) {
	batch, err := decoder.Decode(encoder.Append(nil, 1700000000.25, events))
	if err != nil {
		t.Fatal(err)
	}
	if batch.TimestampMicros != 1700000000250000 {
		t.Fatalf("timestamp %d", batch.TimestampMicros)
	}
	var sent, got []uint32
	sentHashes, gotHashes := 0, 0
	for _, event := range events {
		sent = append(sent, event.Tokens...)
		sentHashes += len(event.Hashes)
	}
	for i := range batch.Events {
		event := &batch.Events[i]
		if event.Reason != "" {
			t.Fatalf("event %d is refused: %s", i, event.Reason)
		}
		if event.Kind == kvevents.KindStored && event.Adapter != identity.Adapter {
			t.Fatalf("adapter %q, want %q", event.Adapter, identity.Adapter)
		}
		if event.Kind == kvevents.KindStored && !event.HasParent && event.Salt != identity.Salt {
			t.Fatalf("salt %q, want %q", event.Salt, identity.Salt)
		}
		got = append(got, event.Tokens...)
		gotHashes += len(event.Hashes)
	}
	if !slices.Equal(sent, got) || sentHashes != gotHashes {
		t.Fatalf("%d tokens and %d hashes were sent, %d and %d arrived", len(sent), sentHashes, len(got), gotHashes)
	}
	if len(batch.UnknownFields) > 0 {
		t.Fatalf("unknown fields %v", batch.UnknownFields)
	}
}
