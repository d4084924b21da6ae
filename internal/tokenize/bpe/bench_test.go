// SPDX-License-Identifier: Apache-2.0

package bpe_test

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/inferencecache/inference-cache/internal/tokenize/bpe"
)

// benchText is prose and code, of which no two paragraphs are the same.
func benchText(size int) string {
	var text strings.Builder
	for i := 0; text.Len() < size; i++ {
		fmt.Fprintf(&text, "Request %d asks which replica holds block %x of the prefix; the index doesn't guess. "+
			"It's exact, größtenteils.\n\tif held := index.Lookup(keys[%d:]); len(held) > 0 {\n\t\treturn held[0], nil\n\t}\n\n", i, i*7919, i%97)
	}
	return text.String()[:size]
}

// tokenizerFile is INFERENCECACHE_TOKENIZER, a real model's tokenizer.json, or
// a small one.
func tokenizerFile(b *testing.B) []byte {
	b.Helper()
	path := os.Getenv("INFERENCECACHE_TOKENIZER")
	if path == "" {
		return read(b, "pairs.json")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		b.Fatal(err)
	}
	return data
}

func BenchmarkEncode(b *testing.B) {
	tokenizer := load(b, tokenizerFile(b))
	for _, size := range []int{2 << 10, 50 << 10, 400 << 10} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			text, tokens := benchText(size), 0
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				ids, err := tokenizer.Encode(b.Context(), text, true)
				if err != nil {
					b.Fatal(err)
				}
				tokens += len(ids)
			}
			b.ReportMetric(float64(tokens)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}

func BenchmarkLoad(b *testing.B) {
	data := tokenizerFile(b)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := bpe.Load(bytes.NewReader(data)); err != nil {
			b.Fatal(err)
		}
	}
}
