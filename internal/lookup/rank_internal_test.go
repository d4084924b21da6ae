// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestDescending(t *testing.T) {
	ordered := []float32{
		float32(math.Inf(1)), math.MaxFloat32, 2, 1.0000001, 1, math.SmallestNonzeroFloat32, 0,
		-math.SmallestNonzeroFloat32, -1, float32(math.Inf(-1)), float32(math.NaN()),
	}
	for i := 1; i < len(ordered); i++ {
		if a, b := descending(ordered[i-1]), descending(ordered[i]); a >= b {
			t.Errorf("descending(%v) = %x is not below descending(%v) = %x", ordered[i-1], a, ordered[i], b)
		}
	}
	if descending(float32(math.Copysign(0, -1))) != descending(0) {
		t.Error("the two zeros differ")
	}
}

// TestDraftsAgainstSort compares the order with a plain sort.
func TestDraftsAgainstSort(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var d drafts
		for i := range rapid.IntRange(0, 40).Draw(t, "replicas") {
			d.scores = append(d.scores, Score{
				Replica:       fmt.Sprintf("r%02d", i*17%40),
				MatchedTokens: rapid.Int32Range(1, 5).Draw(t, "tokens"),
				Base:          rapid.SampledFrom([]float32{0, 1, 2, 3}).Draw(t, "base"),
			})
		}
		chain := rapid.Bool().Draw(t, "chain")
		serving := rapid.IntRange(len(d.scores), 50).Draw(t, "serving")
		d.applyPower(chain, serving)
		want := slices.Clone(d.scores)
		sortScores(want)
		got := d.appendSorted(nil)
		if !slices.Equal(got, want) {
			t.Fatalf("order %v, want %v", got, want)
		}
		for _, s := range got {
			matching := 0
			for _, other := range got {
				if !chain || other.MatchedTokens >= s.MatchedTokens {
					matching++
				}
			}
			if wantPower := max(1-float64(matching)/float64(serving), 0); serving > 1 && s.Power != wantPower {
				t.Fatalf("power %v of %+v, want %v", s.Power, s, wantPower)
			}
		}
	})
}

func BenchmarkDrafts(b *testing.B) {
	for name, draw := range map[string]func(i int) (tokens int32, base float32){
		"equal":     func(int) (int32, float32) { return 2048, 2048 },
		"staircase": func(i int) (int32, float32) { n := int32(i*37%64+1) * 16; return n, float32(n) },
		"pressure":  func(i int) (int32, float32) { return 2048, float32(i * 7919 % 101) },
	} {
		b.Run(name, func(b *testing.B) {
			var d drafts
			for i := range 64 {
				tokens, base := draw(i)
				d.scores = append(d.scores, Score{Replica: fmt.Sprintf("replica-%02d", i), MatchedTokens: tokens, Base: base})
			}
			var sorted []Score
			b.ReportAllocs()
			for b.Loop() {
				d.applyPower(true, 65)
				sorted = d.appendSorted(sorted[:0])
			}
		})
	}
}
