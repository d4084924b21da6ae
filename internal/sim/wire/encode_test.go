// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/inferencecache/inference-cache/internal/sim/blockhash"
)

// vectors reads the payloads of real engine versions by id.
func vectors(t *testing.T) map[string]string {
	t.Helper()
	raw, err := os.ReadFile("../../kvevents/testdata/engine-events.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Vectors []struct{ ID, Hex string }
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	byID := make(map[string]string)
	for _, vector := range file.Vectors {
		byID[vector.ID] = vector.Hex
	}
	return byID
}

var tokens = []uint32{1, 2, 3, 4, 300, 70000, 151645, 8}

func chain(chainer blockhash.Chainer, id blockhash.Identity) []blockhash.Digest {
	first := chainer.Next(blockhash.Digest{}, 0, tokens[:4], id)
	return []blockhash.Digest{first, chainer.Next(first, 1, tokens[4:], id)}
}

// The encoder must write byte for byte what real engines write.
func TestEncoderMatchesVectors(t *testing.T) {
	const seconds = 1700000000.5
	adapter := blockhash.Identity{Adapter: "adapter-a", Salt: "salt-1"}
	plain := chain(blockhash.NewVLLM("0"), blockhash.Identity{})
	special := chain(blockhash.NewVLLM("0"), adapter)
	pages := chain(blockhash.SGLang{}, blockhash.Identity{})
	store := func(hashes []blockhash.Digest, id blockhash.Identity) Event {
		return Event{Kind: Stored, Hashes: hashes, Tokens: tokens, BlockSize: 4, Identity: id, AdapterID: 1}
	}
	remove := func(hashes ...blockhash.Digest) Event { return Event{Kind: Removed, Hashes: hashes} }
	child := store(pages[1:], blockhash.Identity{})
	child.Parent, child.FirstIndex, child.Tokens, child.Medium = &pages[0], 1, tokens[4:], "CPU_PINNED"
	first := func(hashes []blockhash.Digest, id blockhash.Identity) Event {
		event := store(hashes[:1], id)
		event.Tokens = tokens[:4]
		return event
	}
	cases := map[string]struct {
		shape  string
		rank   int
		bytes  bool
		events []Event
		want   string
	}{
		"vllm 0.10 array": {"vllm-0.10", 0, false, []Event{store(plain, blockhash.Identity{}), remove(plain[1])}, "B_v0.11"},
		"vllm 0.14 array": {"vllm-0.14", 0, false, []Event{store(special, adapter)}, "B3_v0.14"},
		"vllm 0.22 array": {"vllm-0.22", 0, false, []Event{store(special, adapter), remove(special[0])}, "C_v0.22"},
		"vllm 0.24 map": {"vllm-0.24", 1, false, []Event{
			store(plain, blockhash.Identity{}), remove(plain[0]), {Kind: Cleared},
		}, "D_v0.24"},
		"vllm map with byte hashes": {"vllm-0.24", 0, true, []Event{first(plain, blockhash.Identity{})}, "J_v0.27_root_bytes"},
		"sglang 0.5.9 array": {"sglang-0.5.9", 0, false, []Event{
			{Kind: Cleared}, first(pages, blockhash.Identity{}), child, remove(pages...),
		}, "G_sgl_0.5.9"},
		"sglang 0.5.18 with a salt": {"sglang-0.5.18", NoRank, false, []Event{
			first(pages, blockhash.Identity{Salt: "tenant-a"}),
		}, "H_sgl_meta"},
		"tensorrt-llm map": {"tensorrt-llm", 0, false, []Event{first(plain, blockhash.Identity{})}, "M_trtllm"},
	}
	byID := vectors(t)
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			shape, err := ParseShape(tc.shape)
			if err != nil {
				t.Fatal(err)
			}
			encoder := Encoder{Shape: shape, ByteHashes: tc.bytes, Rank: tc.rank}
			got := hex.EncodeToString(encoder.Append(nil, seconds, tc.events))
			if want := byID[tc.want]; got != want {
				t.Errorf("payload\n got %s\nwant %s", got, want)
			}
		})
	}
}

func TestPerBlockShapeSplitsStores(t *testing.T) {
	shape, err := ParseShape("sglang-0.5.9")
	if err != nil {
		t.Fatal(err)
	}
	encoder := Encoder{Shape: shape, Rank: NoRank}
	pages := chain(blockhash.SGLang{}, blockhash.Identity{})
	run := []Event{{Kind: Stored, Hashes: pages, Tokens: tokens, BlockSize: 4}}
	single := []Event{
		{Kind: Stored, Hashes: pages[:1], Tokens: tokens[:4], BlockSize: 4},
		{Kind: Stored, Hashes: pages[1:], Parent: &pages[0], FirstIndex: 1, Tokens: tokens[4:], BlockSize: 4},
	}
	got, want := encoder.Append(nil, 1, run), encoder.Append(nil, 1, single)
	if string(got) != string(want) {
		t.Errorf("one event of two blocks is not sent as two events:\n got %x\nwant %x", got, want)
	}
}

func TestUnknownShapeNamesTheKnown(t *testing.T) {
	_, err := ParseShape("vllm-9")
	if err == nil {
		t.Fatal("no error")
	}
	for _, name := range ShapeNames() {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("error does not name %s: %v", name, err)
		}
	}
}
