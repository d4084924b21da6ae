// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"encoding/hex"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/inferencecache/inference-cache/pkg/client"
	"github.com/inferencecache/inference-cache/pkg/fingerprint"
)

func hexes(hashes [][]byte) (texts []string) {
	for _, hash := range hashes {
		texts = append(texts, hex.EncodeToString(hash))
	}
	return texts
}

func TestChainFromTokens(t *testing.T) {
	for name, tc := range map[string]struct {
		tokens    []uint32
		blockSize int
		salt      string
		want      []string
	}{
		"two blocks":                {tokensUpTo(32), 16, "", []string{"ea06fc71a5ee6e88", "ad01835a37dd294c"}},
		"a tail is left out":        {tokensUpTo(47), 16, "", []string{"ea06fc71a5ee6e88", "ad01835a37dd294c"}},
		"a salt changes every key":  {tokensUpTo(16), 16, "tenant-a", []string{"9cab6266ec6bd858"}},
		"another salt, another key": {tokensUpTo(16), 16, "tenant-b", []string{"bf5d430ab21f0ee4"}},
		"less than a block":         {tokensUpTo(15), 16, "", nil},
		"no tokens":                 {nil, 16, "", nil},
		"no block size":             {tokensUpTo(32), 0, "", nil},
		"a negative block size":     {tokensUpTo(32), -16, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := client.ChainFromTokens(tc.tokens, tc.blockSize, tc.salt)
			if diff := cmp.Diff(tc.want, hexes(got.Hashes)); diff != "" {
				t.Errorf("hashes (-want +got):\n%s", diff)
			}
			if got.Blocks() != len(tc.want) || got.Tokens() != len(tc.want)*tc.blockSize || len(got.TokenCounts) != len(tc.want) {
				t.Errorf("%d blocks, %d tokens, %d counts", got.Blocks(), got.Tokens(), len(got.TokenCounts))
			}
		})
	}
}

func TestChainProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.SliceOfN(rapid.Uint32(), 0, 80).Draw(t, "tokens")
		blockSize := rapid.IntRange(1, 20).Draw(t, "block size")
		salt := rapid.String().Draw(t, "salt")
		whole := client.ChainFromTokens(tokens, blockSize, salt)
		if want := len(tokens) / blockSize; whole.Blocks() != want || whole.Tokens() != want*blockSize {
			t.Fatalf("%d blocks of %d tokens, want %d", whole.Blocks(), whole.Tokens(), want)
		}
		cut := rapid.IntRange(0, len(tokens)).Draw(t, "cut")
		head := client.ChainFromTokens(tokens[:cut], blockSize, salt)
		if diff := cmp.Diff(hexes(whole.Hashes[:head.Blocks()]), hexes(head.Hashes)); diff != "" {
			t.Fatalf("the chain of a prefix is no prefix of the chain: %s", diff)
		}
		keys := fingerprint.Append(nil, fingerprint.SaltParent(salt), tokens, blockSize)
		if diff := cmp.Diff(whole, client.ChainFromKeys(keys, blockSize)); diff != "" {
			t.Fatalf("from keys: %s", diff)
		}
	})
}
