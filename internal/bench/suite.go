// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"io"
	"slices"
)

// IndexGoals are those that Index measures.
var IndexGoals = []string{"G1", "G2", "G3", "G4", "G5"}

// IndexOptions says how the index is measured.
type IndexOptions struct {
	// Corpus is what is replayed.
	Corpus *Corpus
	// Short takes fewer and smaller runs, to end within four minutes.
	Short bool
	// Goals picks goals by name, such as G3; empty = all.
	Goals []string
}

// sizes of the measurements.
type sizes struct {
	runs          int
	large, small  int // memberships of the eviction and cold tables
	lookups       int // of one timing
	mixedSeconds  int // of one stretch
	memoryEntries int
}

func (o IndexOptions) sizes() sizes {
	if o.Short {
		return sizes{runs: 3, small: 1_000_000, large: 4_000_000, lookups: 2_000, mixedSeconds: 3, memoryEntries: 2_000_000}
	}
	return sizes{runs: 5, small: 1_000_000, large: 10_000_000, lookups: 20_000, mixedSeconds: 10, memoryEntries: 10_000_000}
}

// Index measures the index and prints one JSON object a row: first the
// machine and the corpus, then each measurement.
func Index(ctx context.Context, out io.Writer, o IndexOptions) error {
	r, z := NewReport(out), o.sizes()
	r.Print(struct {
		Machine Machine `json:"machine"`
		Corpus  Header  `json:"corpus"`
		Short   bool    `json:"short"`
	}{ThisMachine(), o.Corpus.Header, o.Short})
	steps := o.Corpus.steps(startMillis)
	parts := []struct {
		goal string
		run  func()
	}{
		{"G1", func() { measureIngest(r, steps, z) }},
		{"G2", func() { measureEvict(r, z) }},
		{"G3", func() { measureLookup(r, z) }},
		{"G4", func() { measureMemory(r, steps, z) }},
		{"G5", func() { measureMixed(ctx, r, steps, z) }},
	}
	for _, p := range parts {
		if len(o.Goals) > 0 && !slices.Contains(o.Goals, p.goal) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		p.run()
	}
	return r.Err()
}
