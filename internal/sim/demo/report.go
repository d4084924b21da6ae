// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/inferencecache/inference-cache/internal/sim/oracle"
	"github.com/inferencecache/inference-cache/internal/sim/workload"
)

// GoodShare is the least share of the reusable blocks that cache-aware
// routing must reuse.
const GoodShare = 0.90

// Report is the result of a comparison.
type Report struct {
	Engines         int `json:"engines"`
	BlockSize       int `json:"block_size"`
	BlocksPerEngine int `json:"blocks_per_engine"`
	Requests        int `json:"requests"`
	PromptTokens    int `json:"prompt_tokens"`
	// OracleReusedBlocks is what an all-knowing router reuses with the same
	// engines in simulated time. It may be beaten: it does not know the future.
	OracleReusedBlocks int     `json:"oracle_reused_blocks"`
	OracleMaxMeanLoad  float64 `json:"oracle_max_mean_load"`
	// SeenBeforeBlocks is what one engine without limits would reuse.
	SeenBeforeBlocks int       `json:"seen_before_blocks"`
	Phases           []Phase   `json:"phases"`
	Examples         []Example `json:"examples"`
	// Good tells whether cache-aware routing reused GoodShare of the oracle's
	// blocks and every request was answered.
	Good bool `json:"good"`
}

// Phase is the run of one policy. Reuse and computation are the engines' own
// counts.
type Phase struct {
	Policy       string `json:"policy"`
	Requests     int    `json:"requests"`
	Failed       int    `json:"failed"`
	FirstFailure string `json:"first_failure,omitempty"`
	ReusedTokens int    `json:"reused_tokens"`
	ReusedBlocks int    `json:"reused_blocks"`
	// ReusedOfOracle is ReusedBlocks over the oracle's, 1 if there is nothing
	// to reuse.
	ReusedOfOracle float64 `json:"reused_of_oracle"`
	// ComputedTokens includes what preempted requests computed again.
	ComputedTokens int     `json:"computed_tokens"`
	FirstTokenP50  float64 `json:"first_token_p50_ms"`
	FirstTokenP99  float64 `json:"first_token_p99_ms"`
	MaxMeanLoad    float64 `json:"max_mean_load"`
	// UsageTokensMatch tells whether the usage of the answers adds up to the
	// engines' counters.
	UsageTokensMatch bool `json:"usage_tokens_match"`
	// Decisions counts the reasons the router gave.
	Decisions map[string]int `json:"decisions"`
}

// Example is one decision of the cache-aware run.
type Example struct {
	Conversation int    `json:"conversation"`
	Turn         int    `json:"turn"`
	PromptTokens int    `json:"prompt_tokens"`
	CachedTokens int    `json:"cached_tokens"`
	Replica      string `json:"replica"`
	Reason       string `json:"reason"`
	Words        string `json:"words"`
}

// summarize condenses the run of one policy.
func summarize(policy string, requests []workload.Request, samples []sample, engines []counters) Phase {
	phase := Phase{Policy: policy, Requests: len(requests), Decisions: make(map[string]int)}
	var first []time.Duration
	usage := 0
	for _, s := range samples {
		if s.Failure != "" {
			phase.Failed++
			if phase.FirstFailure == "" {
				phase.FirstFailure = s.Failure
			}
			continue
		}
		first = append(first, s.FirstToken)
		usage += s.CachedTokens
		phase.Decisions[s.Reason]++
	}
	served := make([]int, len(engines))
	for i, c := range engines {
		phase.ReusedTokens += int(c.hitTokens)
		phase.ComputedTokens += int(c.computedTokens)
		served[i] = int(c.requests)
	}
	phase.UsageTokensMatch = usage == phase.ReusedTokens
	phase.FirstTokenP50 = milliseconds(oracle.Percentile(first, 0.50))
	phase.FirstTokenP99 = milliseconds(oracle.Percentile(first, 0.99))
	phase.MaxMeanLoad = oracle.MaxOverMean(served)
	return phase
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// judge compares the phases with the oracle.
func (r *Report) judge() {
	r.Good = true
	for i := range r.Phases {
		phase := &r.Phases[i]
		phase.ReusedBlocks = phase.ReusedTokens / r.BlockSize
		phase.ReusedOfOracle = 1
		if r.OracleReusedBlocks > 0 {
			phase.ReusedOfOracle = float64(phase.ReusedBlocks) / float64(r.OracleReusedBlocks)
		}
		if phase.Failed > 0 || phase.Policy == CacheAware && phase.ReusedOfOracle < GoodShare {
			r.Good = false
		}
	}
}

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	out := &strings.Builder{}
	fmt.Fprintf(out, "%d requests, %s prompt tokens, %d simulated engines of %s blocks of %d tokens\n\n",
		r.Requests, thousands(r.PromptTokens), r.Engines, thousands(r.BlocksPerEngine), r.BlockSize)
	row := func(name string, value func(Phase) string) {
		fmt.Fprintf(out, "%-25s", name)
		for _, phase := range r.Phases {
			fmt.Fprintf(out, "%14s", value(phase))
		}
		out.WriteByte('\n')
	}
	row("", func(p Phase) string { return Title(p.Policy) })
	row("blocks reused", func(p Phase) string { return thousands(p.ReusedBlocks) })
	row("of "+thousands(r.OracleReusedBlocks)+" reusable", func(p Phase) string { return fmt.Sprintf("%.1f %%", 100*p.ReusedOfOracle) })
	row("prompt tokens computed", func(p Phase) string { return thousands(p.ComputedTokens) })
	row("time to first token, p50", func(p Phase) string { return fmt.Sprintf("%.0f ms", p.FirstTokenP50) })
	row("time to first token, p99", func(p Phase) string { return fmt.Sprintf("%.0f ms", p.FirstTokenP99) })
	row("max/mean load", func(p Phase) string { return fmt.Sprintf("%.2f", p.MaxMeanLoad) })
	row("failed requests", func(p Phase) string { return thousands(p.Failed) })
	fmt.Fprintf(out, "\nReused blocks are the engines' own counts. Reusable is what a router reuses that\n"+
		"sees every cache and queue, under the same load bound (its max/mean load: %.2f).\n"+
		"Load is requests per engine.\n", r.OracleMaxMeanLoad)
	r.writeNotes(out)
	_, err := io.WriteString(w, out.String())
	return err
}

func (r *Report) writeNotes(out io.Writer) {
	for _, phase := range r.Phases {
		if phase.Failed > 0 {
			fmt.Fprintf(out, "\n%s: %d requests failed, the first with: %s\n", Title(phase.Policy), phase.Failed, phase.FirstFailure)
		}
		if !phase.UsageTokensMatch {
			fmt.Fprintf(out, "\n%s: the usage of the answers does not add up to the engines' counters.\n", Title(phase.Policy))
		}
	}
	if len(r.Examples) > 0 {
		fmt.Fprintf(out, "\nThree decisions:\n")
		for _, example := range r.Examples {
			fmt.Fprintf(out, "  - %s\n", example.Words)
		}
	}
	if !r.Good {
		fmt.Fprintf(out, "\nNot good: every request must be answered, and cache-aware routing must reuse %.0f %% of what is reusable.\n", 100*GoodShare)
	}
}

// Title is how people call a policy.
func Title(policy string) string {
	switch policy {
	case RoundRobin:
		return "round robin"
	case CacheAware:
		return "cache-aware"
	default:
		return policy
	}
}

// thousands writes a count with separators.
func thousands(n int) string {
	digits := fmt.Sprint(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
