// SPDX-License-Identifier: Apache-2.0

package bpe

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/dlclark/regexp2/v2"
)

// wordsOracle finds words by the regular expression itself.
func wordsOracle(t testing.TB, digits string) finder {
	t.Helper()
	compiled, err := regexp2.Compile(wordsBefore + digits + wordsAfter)
	if err != nil {
		t.Fatal(err)
	}
	return func(ctx context.Context, text string, match func(start, end int) error) error {
		return findRegex(ctx, compiled, text, match)
	}
}

func wordsOf(t testing.TB, find finder, text string) []int {
	t.Helper()
	var places []int
	err := find(t.Context(), text, func(start, end int) error {
		places = append(places, start, end)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return places
}

func compareWords(t testing.TB, text string) {
	t.Helper()
	for _, digits := range []string{`\p{N}`, `\p{N}{1,3}`} {
		find, known := wordFinder(wordsBefore + digits + wordsAfter)
		if !known {
			t.Fatal("the pattern is not known")
		}
		if got, want := wordsOf(t, find, text), wordsOf(t, wordsOracle(t, digits), text); !slices.Equal(got, want) {
			t.Fatalf("%q with %s: words at %v, want %v", text, digits, got, want)
		}
	}
}

// TestWords compares with the regular expression on random mixtures of what
// the pattern tells apart.
func TestWords(t *testing.T) {
	parts := []string{
		"a", "Z", "é", "日", "'s", "'S", "'ſ", "'re", "'Ve", "'lL", "'l", "'", "''t", "1", "23", "4567", "½", "٣", " ", "  ", "\t", "\n", "\r",
		"\r\n", "\u00a0", "\u3000", "\u2028", "\u0085", "\u180e", "\u200b", "\v", "\f", "!", "...", "_", "\u0301", "🙂", "<|x|>", "K", "\x00",
	}
	r := rand.New(rand.NewPCG(3, 4))
	for _, part := range parts {
		compareWords(t, part)
		for _, second := range parts {
			compareWords(t, part+second)
		}
	}
	for range 3000 {
		var text strings.Builder
		for range 1 + r.IntN(12) {
			text.WriteString(parts[r.IntN(len(parts))])
		}
		compareWords(t, text.String())
	}
	if _, known := wordFinder(gptPattern); known {
		t.Error("another pattern is taken for the known one")
	}
}

func FuzzWords(f *testing.F) {
	f.Add(" it's 1234\r\n  x !\n")
	f.Fuzz(func(t *testing.T, text string) { compareWords(t, strings.ToValidUTF8(text, "?")) })
}
