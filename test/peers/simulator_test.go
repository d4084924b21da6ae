// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/kvevents"
	"github.com/inferencecache/inference-cache/internal/sim/blockhash"
	"github.com/inferencecache/inference-cache/internal/sim/tinymodel"
)

// announced are the hashes of the first store without a parent in a step's
// messages.
func announced(t *testing.T, step recordedStep) []uint64 {
	t.Helper()
	for _, message := range step.Messages {
		_, _, payload, err := kvevents.ParseLive(unhex(t, message))
		if err != nil {
			t.Fatal(err)
		}
		batch, err := kvevents.NewDecoder(kvevents.Options{}).Decode(payload)
		if err != nil {
			t.Fatal(err)
		}
		for _, event := range batch.Events {
			if event.Kind == kvevents.KindStored && !event.HasParent {
				return event.Hashes
			}
		}
	}
	return nil
}

// The engines ran with --prefix-caching-hash-algo sha256_cbor and
// PYTHONHASHSEED=0.
func TestSimulatedHashesAreVLLMs(t *testing.T) {
	eachRecording(t, func(t *testing.T, r recording) {
		compared := 0
		for _, step := range r.Steps {
			want := announced(t, step)
			tokens := step.tokens(t)
			switch {
			case len(want) == 0 || len(want)*recordedBlockSize > len(tokens):
				continue // the run holds generated tokens too
			case step.Salt != "" && r.Version != "0.23.0":
				continue // later versions hash a salt together with a tag
			}
			chain, identity := blockhash.NewVLLM("0"), blockhash.Identity{Salt: step.Salt}
			var parent blockhash.Digest
			var got []uint64
			for i := range want {
				parent = chain.Next(parent, i, tokens[i*recordedBlockSize:][:recordedBlockSize], identity)
				got = append(got, parent.Uint64())
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("step %q (-vLLM +simulator):\n%s", step.Name, diff)
			}
			compared += len(want)
		}
		if compared < 2 {
			t.Errorf("%d hashes were compared, want 2 or more", compared)
		}
	})
}

// The recorded chat says how vLLM rendered and tokenized it.
func TestSimulatedTokensAreVLLMs(t *testing.T) {
	eachRecording(t, func(t *testing.T, r recording) {
		got := map[string][]uint32{
			"a root run": tinymodel.Encode("Ships carry grain along the coast while gulls follow them home. Evening"),
			"a chat": tinymodel.Chat([]tinymodel.Message{
				{Role: "user", Content: "How many boats are on the water tonight?"},
			}, nil, true),
		}
		compared := 0
		for _, step := range r.Steps {
			if tokens, ok := got[step.Name]; ok {
				compared++
				if diff := cmp.Diff(step.tokens(t), tokens); diff != "" {
					t.Errorf("step %q (-vLLM +simulator):\n%s", step.Name, diff)
				}
			}
		}
		if compared == 0 {
			t.Error("no step was compared")
		}
	})
}
