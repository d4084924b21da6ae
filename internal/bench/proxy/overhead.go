// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/inferencecache/inference-cache/internal/bench"
	"github.com/inferencecache/inference-cache/internal/sim/tinymodel"
	"github.com/inferencecache/inference-cache/internal/sim/workload"
)

// Requests of the measurements.
const (
	answerTokens = 8
	systems      = 16 // prompts that begin alike come from so many
	ownPart      = 8  // one byte in so many is the request's own
	smallPrompt  = 2 << 10
)

// direct names the way around all routers.
const direct = "direct"

// arm is one way to the engines. Arms take turns.
type arm struct {
	name string
	urls []string
	// goal says that the limits of G10 hold for it.
	goal bool

	answers []answers // of each run
	detail  map[string]float64
}

// measureOverhead sends the same load to the engines directly and through
// routers by turns.
func measureOverhead(ctx context.Context, r *bench.Report, o Options) error {
	g, err := newRig(ctx, o)
	if err != nil {
		return err
	}
	defer g.close()
	withIndex, err := g.gateway(ctx, "gateway", g.urls(), "--index", g.grpc)
	if err != nil {
		return err
	}
	byLoad, err := g.gateway(ctx, "gateway by load alone", g.urls(), "--policy", "least_load", "--tokenizer", "none")
	if err != nil {
		return err
	}
	arms := []*arm{
		{name: direct, urls: g.urls()},
		{name: "gateway", urls: []string{withIndex}, goal: true},
		{name: "gateway by load alone", urls: []string{byLoad}},
	}
	peers, err := startPeers(ctx, r, o, g)
	if err != nil {
		return err
	}
	arms = append(arms, peers...)
	if err := g.takeTurns(ctx, o, arms); err != nil {
		return err
	}
	for _, a := range arms {
		reportOverhead(r, arms[0], a)
	}
	return nil
}

// takeTurns loads each arm once a run, in an order that changes. The first run
// is a warm-up.
func (g *rig) takeTurns(ctx context.Context, o Options, arms []*arm) error {
	c := newClient()
	defer c.close()
	sent := 0
	for run := range o.Runs + 1 {
		d := o.Duration
		if run == 0 {
			d = min(time.Second, d)
		}
		for i := range arms {
			a := arms[(i+run)%len(arms)]
			before := g.use()
			got := c.load(ctx, a.urls, func(i int) []byte { return chat(sent+i, smallPrompt) }, float64(o.Rate), d)
			if err := got.err(ctx, a.name); err != nil {
				return err
			}
			sent += got.sent
			if run == 0 {
				continue
			}
			a.answers, a.detail = append(a.answers, got), map[string]float64{}
			used := g.use().since(before, a.name, a.detail)
			a.detail["processor_us_per_request"] = micros(used) / float64(got.sent)
			got.detail(a.detail, "")
		}
	}
	return nil
}

// err tells why a stretch was none.
func (a answers) err(ctx context.Context, name string) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case a.failed == a.sent:
		return fmt.Errorf("%s answered no request: %w", name, a.fault)
	default:
		return nil
	}
}

// Limits of G10.
const (
	mostAddedP50 = 300.0
	mostAddedP99 = 2_000.0
)

// reportOverhead prints what an arm adds to the time to the first token.
func reportOverhead(r *bench.Report, base, a *arm) {
	quantiles := func(q float64) (added []float64) {
		for run := range a.answers {
			first := bench.Quantile(a.answers[run].first, q)
			if a != base {
				first -= bench.Quantile(base.answers[run].first, q)
			}
			added = append(added, first)
		}
		return added
	}
	p50, p99 := quantiles(0.5), quantiles(0.99)
	what, limits := "adds to the time to first token", [2]float64{}
	if a == base {
		what = "time to first token"
	}
	if a.goal {
		limits = [2]float64{mostAddedP50, mostAddedP99}
	}
	r.AtMost("G10", a.name+": "+what+", p50", "us", limits[0], p50, a.detail)
	r.AtMost("G10", a.name+": "+what+", p99", "us", limits[1], p99, nil)
}

// chat is a streamed request of about size bytes. Its beginning is one of a
// few texts, an eighth is its own.
func chat(number, size int) []byte {
	return workload.Request{
		Messages: []tinymodel.Message{
			{Role: "system", Content: text(number%systems, size-size/ownPart)},
			{Role: "user", Content: text(systems+number, size/ownPart)},
		},
		AnswerTokens: answerTokens,
	}.Body(model)
}

// text returns n bytes that differ from those of other numbers from the start.
func text(number, n int) string {
	word := fmt.Sprintf("%x ", uint64(number+1)*0x9e3779b97f4a7c15)
	return strings.Repeat(word, n/len(word)+1)[:n]
}
