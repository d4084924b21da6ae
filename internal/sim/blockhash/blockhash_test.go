// SPDX-License-Identifier: Apache-2.0

package blockhash

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"strconv"
	"testing"

	"github.com/fxamacker/cbor/v2"
	"pgregory.net/rapid"
)

type goldenBlock struct {
	Digest      string `json:"digest"`
	EventUint64 string `json:"event_uint64"`
	EventInt64  string `json:"event_int64"`
}

type golden struct {
	Tokens    []uint32 `json:"tokens"`
	BlockSize int      `json:"block_size"`
	Seed      string   `json:"pythonhashseed"`
	VLLM      struct {
		Blocks []goldenBlock `json:"blocks"`
	} `json:"vllm_sha256_cbor"`
	VLLMIdentity struct {
		Blocks []goldenBlock `json:"blocks"`
	} `json:"vllm_sha256_cbor_lora_salt"`
	SGLang struct {
		Pages []goldenBlock `json:"pages"`
	} `json:"sglang"`
}

func readGolden(t *testing.T) golden {
	t.Helper()
	raw, err := os.ReadFile("testdata/engine_hash_golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(raw, &g); err != nil {
		t.Fatal(err)
	}
	return g
}

func TestGolden(t *testing.T) {
	g := readGolden(t)
	cases := map[string]struct {
		chainer Chainer
		id      Identity
		want    []goldenBlock
	}{
		"vllm with a seed and no identity": {NewVLLM(g.Seed), Identity{}, g.VLLM.Blocks},
		"vllm with adapter and salt": {
			NewVLLM(g.Seed), Identity{Adapter: "adapter-a", Salt: "salt-1"}, g.VLLMIdentity.Blocks,
		},
		"sglang pages":                     {SGLang{}, Identity{}, g.SGLang.Pages},
		"sglang ignores adapter and salts": {SGLang{}, Identity{Adapter: "a", Salt: "s"}, g.SGLang.Pages},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if len(tc.want) != len(g.Tokens)/g.BlockSize {
				t.Fatalf("golden file holds %d blocks", len(tc.want))
			}
			var digest Digest
			for i, want := range tc.want {
				digest = tc.chainer.Next(digest, i, g.Tokens[i*g.BlockSize:][:g.BlockSize], tc.id)
				if got := hex.EncodeToString(digest[:]); got != want.Digest {
					t.Errorf("block %d: digest %s, want %s", i, got, want.Digest)
				}
				if got := strconv.FormatUint(digest.Uint64(), 10); want.EventUint64 != "" && got != want.EventUint64 {
					t.Errorf("block %d: event integer %s, want %s", i, got, want.EventUint64)
				}
				if got := strconv.FormatInt(digest.Int64(), 10); want.EventInt64 != "" && got != want.EventInt64 {
					t.Errorf("block %d: event integer %s, want %s", i, got, want.EventInt64)
				}
			}
		})
	}
}

// The preimage must be what a general canonical CBOR encoder writes.
func TestPreimageIsCanonicalCBOR(t *testing.T) {
	mode, err := cbor.CoreDetEncOptions().EncMode()
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.SliceOfN(rapid.Uint32(), 1, 64).Draw(t, "tokens")
		id := Identity{
			Adapter: rapid.StringN(0, 40, 300).Draw(t, "adapter"),
			Salt:    rapid.StringN(0, 40, 300).Draw(t, "salt"),
		}
		parent := Digest(sha256.Sum256([]byte(rapid.String().Draw(t, "parent"))))
		index := rapid.IntRange(1, 3).Draw(t, "index")
		preimage, err := mode.Marshal([]any{parent[:], tokens, anyExtra(id.ExtraKeys(index))})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := (VLLM{}).Next(parent, index, tokens, id), Digest(sha256.Sum256(preimage)); got != want {
			t.Fatalf("digest %x, want %x", got, want)
		}
	})
}

func anyExtra(extra []string) any {
	if extra == nil {
		return nil
	}
	return extra
}

func TestRandomRootsDiffer(t *testing.T) {
	tokens := []uint32{1, 2, 3, 4}
	first := NewVLLMRandom(Digest{1}).Next(Digest{}, 0, tokens, Identity{})
	second := NewVLLMRandom(Digest{2}).Next(Digest{}, 0, tokens, Identity{})
	if first == second {
		t.Fatal("two process roots gave one digest")
	}
}
