// SPDX-License-Identifier: Apache-2.0

package fingerprint_test

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"

	"github.com/inferencecache/inference-cache/pkg/fingerprint"
)

type goldenFile struct {
	Vectors    []goldenChain
	Extensions struct {
		Vectors []goldenExtension
	}
}

type goldenChain struct {
	Name                  string
	Tokens                []uint32
	BlockSize             int `json:"block_size"`
	Parent                *string
	Content, Prefix, Wire []string
}

type goldenExtension struct {
	Kind, Salt  string
	Identifiers [][][]any
	Tokens      []uint32
	BlockSize   int     `json:"block_size"`
	RootParent  *string `json:"root_parent"`
	Parents     []*string
	Prefix      []string
}

func loadGolden(t *testing.T) goldenFile {
	t.Helper()
	raw, err := os.ReadFile("testdata/fingerprint.json")
	if err != nil {
		t.Fatal(err)
	}
	var file goldenFile
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	return file
}

func fromHex(t *testing.T, text string) uint64 {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != fingerprint.KeyBytes {
		t.Fatalf("%q is not a key", text)
	}
	return binary.BigEndian.Uint64(b)
}

func toHex(keys []uint64) []string {
	out := make([]string, 0, len(keys))
	for _, key := range keys {
		out = append(out, fmt.Sprintf("%016x", key))
	}
	return out
}

func TestAppendGolden(t *testing.T) {
	for _, vector := range loadGolden(t).Vectors {
		t.Run(vector.Name, func(t *testing.T) {
			var parent fingerprint.Parent
			if vector.Parent != nil {
				parent = fingerprint.Child(fromHex(t, *vector.Parent))
			}
			keys := fingerprint.Append(nil, parent, vector.Tokens, vector.BlockSize)
			if diff := cmp.Diff(vector.Prefix, toHex(keys)); diff != "" {
				t.Errorf("keys (-want +got):\n%s", diff)
			}
			wire := []string{}
			for _, hash := range fingerprint.Wire(keys) {
				wire = append(wire, hex.EncodeToString(hash))
			}
			if diff := cmp.Diff(vector.Wire, wire); diff != "" {
				t.Errorf("wire (-want +got):\n%s", diff)
			}
			contents := []string{}
			for block := range slices.Chunk(vector.Tokens, vector.BlockSize) {
				if len(block) == vector.BlockSize {
					contents = append(contents, toHex([]uint64{fingerprint.Content(block)})...)
				}
			}
			if diff := cmp.Diff(vector.Content, contents); diff != "" {
				t.Errorf("contents (-want +got):\n%s", diff)
			}
		})
	}
}

func TestExtensionsGolden(t *testing.T) {
	for i, vector := range loadGolden(t).Extensions.Vectors {
		t.Run(fmt.Sprintf("%s %d", vector.Kind, i), func(t *testing.T) {
			parent := fingerprint.SaltParent(vector.Salt)
			if want := vector.RootParent; want != nil && fromHex(t, *want) != parent.Key {
				t.Errorf("root parent %016x, want %s", parent.Key, *want)
			}
			var keys []uint64
			for block := range slices.Chunk(vector.Tokens, vector.BlockSize) {
				if vector.Identifiers != nil {
					parent = fingerprint.MultimodalParent(parent, identifiers(vector.Identifiers[len(keys)]))
					want := vector.Parents[len(keys)]
					if parent.Present != (want != nil) || want != nil && fromHex(t, *want) != parent.Key {
						t.Errorf("parent of block %d: %016x", len(keys), parent.Key)
					}
				}
				key := fingerprint.Next(parent, fingerprint.Content(block))
				keys, parent = append(keys, key), fingerprint.Child(key)
			}
			if diff := cmp.Diff(vector.Prefix, toHex(keys)); diff != "" {
				t.Errorf("keys (-want +got):\n%s", diff)
			}
		})
	}
}

func identifiers(pairs [][]any) (out []fingerprint.Identifier) {
	for _, pair := range pairs {
		out = append(out, fingerprint.Identifier{ID: pair[0].(string), Offset: int64(pair[1].(float64))})
	}
	return out
}

// naive follows the contract's text word for word.
func naive(parent *uint64, tokens []uint32, blockSize int) (keys []uint64) {
	if blockSize <= 0 {
		return nil
	}
	for i := 0; i+blockSize <= len(tokens); i += blockSize {
		var content []byte
		for _, token := range tokens[i : i+blockSize] {
			content = append(content, byte(token), byte(token>>8), byte(token>>16), byte(token>>24))
		}
		key := xxh3.HashSeed(content, 1337)
		if parent != nil {
			var pair []byte
			for _, half := range []uint64{*parent, key} {
				for shift := 0; shift < 64; shift += 8 {
					pair = append(pair, byte(half>>shift))
				}
			}
			key = xxh3.HashSeed(pair, 1337)
		}
		keys = append(keys, key)
		parent = &key
	}
	return keys
}

func checkNaive(t interface{ Errorf(string, ...any) }, hasParent bool, parentKey uint64, tokens []uint32, blockSize int) {
	parent, literal := fingerprint.Parent{}, (*uint64)(nil)
	if hasParent {
		parent, literal = fingerprint.Child(parentKey), &parentKey
	}
	before := []uint64{1, 2}
	got := fingerprint.Append(slices.Clone(before), parent, tokens, blockSize)
	want := append(before, naive(literal, tokens, blockSize)...)
	if !slices.Equal(got, want) {
		t.Errorf("keys %x, want %x", got, want)
	}
}

func TestAppendEqualsNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.SliceOfN(rapid.Uint32(), 0, 3000).Draw(t, "tokens")
		checkNaive(t, rapid.Bool().Draw(t, "has parent"), rapid.Uint64().Draw(t, "parent"),
			tokens, rapid.IntRange(-1, 1500).Draw(t, "block size"))
	})
}

func FuzzAppend(f *testing.F) {
	f.Add(true, uint64(0), []byte{1, 0, 0, 0, 2, 0, 0, 0}, 1)
	f.Fuzz(func(t *testing.T, hasParent bool, parent uint64, raw []byte, blockSize int) {
		var tokens []uint32
		for ; len(raw) >= 4; raw = raw[4:] {
			tokens = append(tokens, binary.LittleEndian.Uint32(raw))
		}
		checkNaive(t, hasParent, parent, tokens, blockSize)
	})
}

// A key depends on all that stands before its block, and on nothing after it.
func TestKeysBindHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const blockSize = 4
		tokens := rapid.SliceOfN(rapid.Uint32Range(0, 3), 8, 64).Draw(t, "tokens")
		changed := slices.Clone(tokens)
		at := rapid.IntRange(0, len(tokens)/blockSize*blockSize-1).Draw(t, "changed token")
		changed[at] += 4
		keys := fingerprint.Append(nil, fingerprint.Parent{}, tokens, blockSize)
		others := fingerprint.Append(nil, fingerprint.Parent{}, changed, blockSize)
		for i := range keys {
			if same := keys[i] == others[i]; same != (i < at/blockSize) {
				t.Fatalf("token %d changed; block %d equal: %v", at, i, same)
			}
		}
	})
}

func TestParentsSplitTheKeySpace(t *testing.T) {
	roots := map[string]fingerprint.Parent{
		"no parent":        {},
		"parent 0":         fingerprint.Child(0),
		"a salt":           fingerprint.SaltParent("a"),
		"another salt":     fingerprint.SaltParent("b"),
		"an image":         fingerprint.MultimodalParent(fingerprint.Parent{}, []fingerprint.Identifier{{ID: "a"}}),
		"an image later":   fingerprint.MultimodalParent(fingerprint.Parent{}, []fingerprint.Identifier{{ID: "a", Offset: 1}}),
		"two images":       fingerprint.MultimodalParent(fingerprint.Parent{}, []fingerprint.Identifier{{ID: "a"}, {ID: "b"}}),
		"images swapped":   fingerprint.MultimodalParent(fingerprint.Parent{}, []fingerprint.Identifier{{ID: "b"}, {ID: "a"}}),
		"an image, salted": fingerprint.MultimodalParent(fingerprint.SaltParent("a"), []fingerprint.Identifier{{ID: "a"}}),
	}
	seen := map[uint64]string{}
	for name, parent := range roots {
		key := fingerprint.Append(nil, parent, []uint32{1, 2}, 2)[0]
		if other, ok := seen[key]; ok {
			t.Errorf("%s and %s have one key", name, other)
		}
		seen[key] = name
	}
	if fingerprint.SaltParent("") != (fingerprint.Parent{}) {
		t.Error("an empty salt is a salt")
	}
	if parent := fingerprint.Child(3); fingerprint.MultimodalParent(parent, nil) != parent {
		t.Error("no identifiers change the parent")
	}
}

func TestAppendDoesNotAllocate(t *testing.T) {
	tokens := make([]uint32, 4096)
	dst := make([]uint64, 0, len(tokens))
	for _, blockSize := range []int{1, 16, 128, 1024} {
		if n := testing.AllocsPerRun(100, func() {
			dst = fingerprint.Append(dst[:0], fingerprint.Child(1), tokens, blockSize)
		}); n != 0 {
			t.Errorf("block size %d: %v allocations", blockSize, n)
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	for _, blockSize := range []int{16, 128} {
		b.Run(fmt.Sprintf("block %d", blockSize), func(b *testing.B) {
			tokens := make([]uint32, 128*blockSize)
			dst := make([]uint64, 0, 128)
			b.SetBytes(int64(4 * len(tokens)))
			b.ReportAllocs()
			for b.Loop() {
				dst = fingerprint.Append(dst[:0], fingerprint.Parent{}, tokens, blockSize)
			}
		})
	}
}
