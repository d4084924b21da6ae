// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"io"
	"time"

	"github.com/inferencecache/inference-cache/internal/defaults"
)

// IndexGoals are those that Index measures.
var IndexGoals = []string{"G1", "G2", "G3", "G4", "G5"}

// IndexOptions says how the index is measured.
type IndexOptions struct {
	// Corpus is what is replayed.
	Corpus *Corpus
	// Short takes fewer and smaller runs; default false.
	Short bool
	// Goals picks goals by name, such as G3; empty = all.
	Goals []string
	// Memberships of the large tables; default 10 M, short 4 M. Smaller ones
	// follow from it.
	Memberships int
	// Duration of one stretch of mixed load; default 10 s, short 3 s.
	Duration time.Duration
	// Runs is how often most rows are measured; default 5, short 3.
	Runs int
}

// sizes of the measurements.
type sizes struct {
	runs         int
	large, small int           // memberships
	lookups      int           // of one timing
	mixed        time.Duration // of one stretch
}

func (o IndexOptions) sizes() sizes {
	z := sizes{runs: 5, large: 10_000_000, lookups: 20_000, mixed: 10 * time.Second}
	if o.Short {
		z = sizes{runs: 3, large: 4_000_000, lookups: 2_000, mixed: 3 * time.Second}
	}
	defaults.Set(&o.Memberships, z.large)
	defaults.Set(&o.Runs, z.runs)
	defaults.Set(&o.Duration, z.mixed)
	z.runs, z.large, z.mixed = o.Runs, o.Memberships, o.Duration
	z.small = min(1_000_000, max(z.large/4, 1))
	z.lookups = min(z.lookups, max(z.large/100, 10*together))
	return z
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
		goals []string
		run   func()
	}{
		{[]string{"G1"}, func() { measureIngest(r, steps, z) }},
		{[]string{"G2"}, func() { measureEvict(r, z) }},
		{[]string{"G3"}, func() { measureLookup(r, z) }},
		{[]string{"G4"}, func() { measureMemory(r, steps, z) }},
		{[]string{"G1", "G2", "G3", "G4"}, func() { measureLife(r, z) }},
		{[]string{"G5"}, func() { measureMixed(ctx, r, steps, z) }},
	}
	r.Only(o.Goals)
	for _, p := range parts {
		if !r.wants(p.goals...) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		p.run()
	}
	return r.Err()
}
