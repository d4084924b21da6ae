// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/inferencecache/inference-cache/internal/bench"
)

// mostTracing is the limit of G10 for a trace of one request in a hundred, in
// percent of the processor time of a request.
const mostTracing = 1.0

// tracingTurns is how often the gateways of a run take turns.
const tracingTurns = 6

// forms of tracing that are compared; the first is none.
var forms = []struct {
	name   string
	sample string // one request in so many; empty = no trace
	limit  float64
}{
	{"no trace", "", 0},
	{"one request in 100 traced", "100", mostTracing},
	{"each request traced", "1", 0},
}

// measureTracing compares gateways that trace nothing, some and each request,
// by turns. Records go to a file.
func measureTracing(ctx context.Context, r *bench.Report, o Options) (err error) {
	g, err := newRig(ctx, o)
	if err != nil {
		return err
	}
	defer g.close()
	folder, err := os.MkdirTemp("", "inferencecache-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	arms := make([]*arm, len(forms))
	for i, form := range forms {
		flags := []string{"--index", g.grpc}
		if form.sample != "" {
			flags = append(flags, "--cache-trace", "--cache-trace-outcome", "--cache-trace-sample", form.sample,
				"--cache-trace-file", filepath.Join(folder, form.sample))
		}
		url, err := g.gateway(ctx, form.name, g.urls(), flags...)
		if err != nil {
			return err
		}
		arms[i] = &arm{name: form.name, urls: []string{url}}
	}
	turns := o
	turns.Runs, turns.Duration, turns.Rate = tracingTurns, o.Duration/tracingTurns, max(o.Rate/2, 1)
	more := make([][]float64, len(forms)) // percent
	for range o.Runs {
		before := g.use().by
		if err := g.takeTurns(ctx, turns, arms); err != nil {
			return err
		}
		after := g.use().by
		base := micros(after[forms[0].name] - before[forms[0].name])
		for i, form := range forms {
			used := micros(after[form.name] - before[form.name])
			more[i] = append(more[i], 100*(used-base)/max(base, 1))
		}
	}
	for i, form := range forms[1:] {
		r.AtMost("G10", form.name+": processor time more than without", "percent", form.limit, more[i+1], arms[i+1].detail)
	}
	return nil
}
