// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/inferencecache/inference-cache/internal/trace"
)

// Write explains requests to people, the latest last.
func Write(w io.Writer, requests [][]*trace.Record) error {
	var out strings.Builder
	for i, records := range requests {
		if len(records) == 0 {
			continue
		}
		if i > 0 {
			out.WriteByte('\n')
		}
		writeRequest(&out, records)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// clean keeps control characters of others off a terminal.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

func writeRequest(out *strings.Builder, records []*trace.Record) {
	s := Summarize(records)
	first := records[0]
	at := time.Unix(0, first.TSUnixNS).UTC().Format("2006-01-02 15:04:05.000")
	fmt.Fprintf(out, "%s  %sZ  %s", clean(first.RootID), at, first.Endpoint)
	if first.Model != "" {
		fmt.Fprintf(out, "  model %s", clean(first.Model))
	}
	out.WriteByte('\n')
	line := func(name, format string, args ...any) {
		fmt.Fprintf(out, "  %-9s %s\n", name, clean(fmt.Sprintf(format, args...)))
	}
	for _, f := range s.Failures {
		line("failed", "%s", failureText(f))
	}
	if s.Choice != nil {
		writeChoice(line, &s)
	}
	writeOutcome(line, &s)
	line("so", "%s: %s", s.Cause, s.Because)
	if s.Choice != nil {
		writeCandidates(out, s.Choice)
	}
}

func failureText(r *trace.Record) string {
	f := r.Failure
	text := fmt.Sprintf("attempt %d in %s: %s", r.Attempt.Value, f.Phase, f.ErrorCode)
	if f.Status != 0 {
		text += fmt.Sprintf(" (status %d)", f.Status)
	}
	for i := range f.Selections {
		if f.Selections[i].Replica != "" {
			text += " on " + string(f.Selections[i].Replica)
		}
	}
	if f.WillRetry {
		text += fmt.Sprintf("; tried again after %d ms", f.NextBackoffMS.Value)
	}
	return text
}

func writeChoice(line func(name, format string, args ...any), s *Summary) {
	c := s.Choice
	line("chose", "%s  attempt %d, %s", c.Replica, s.Dispatch.Attempt.Value, s.Dispatch.DispatchID)
	why := meanings[c.Origin]
	if c.Prediction != nil {
		why += branchMeanings[c.Prediction.Branch]
	}
	line("why", "%s (policy %s, origin %s)", why, c.Policy, c.Origin)
	p := c.Prediction
	if p == nil {
		return
	}
	switch {
	case p.ReasonCode != "" && p.LookupLatencyUS.Known:
		line("index", "%s after %.1f ms", p.ReasonCode, float64(p.LookupLatencyUS.Value)/1000)
	case p.ReasonCode != "":
		line("index", "%s", p.ReasonCode)
	default:
		line("index", "no answer: %s", p.Branch)
	}
	if p.Note != "" {
		line("note", "%s", p.Note)
	}
	if p.OverlapBlocks.Known {
		line("predicted", "%d of %s blocks here, %s at best, by %s (%s tokens a block)", p.OverlapBlocks.Value,
			number(p.RequestBlocks), number(p.BestOverlapBlocks), p.Source, number(p.BlockSize))
	} else {
		line("predicted", "nothing")
	}
}

func number(n trace.Maybe[int]) string {
	if !n.Known {
		return "?"
	}
	return fmt.Sprint(n.Value)
}

func writeOutcome(line func(name, format string, args ...any), s *Summary) {
	if s.Outcome == nil {
		if s.Dispatch != nil {
			line("engine", "no outcome")
		}
		return
	}
	o := s.Outcome.Outcome
	if o.EngineEvidence == trace.EvidenceUsage {
		line("engine", "found %s of %s prompt tokens cached, by its own count", number(o.EngineCachedTokens), number(o.PromptTokens))
	} else {
		line("engine", "has not told what it found")
	}
	text := fmt.Sprintf("status %d after %.1f ms", o.Status, o.DurationMS)
	if o.TTFBMS.Known {
		text += fmt.Sprintf(", first byte after %.1f ms", o.TTFBMS.Value)
	}
	if o.Aborted {
		text += ", broken off"
	}
	line("answer", "%s", text)
}

func writeCandidates(out *strings.Builder, c *trace.Choice) {
	if len(c.Candidates) == 0 {
		return
	}
	table := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprint(table, "  REPLICA\tLOAD\tQUEUE\tKV\tOVERLAP\tFAILED GATES\n")
	for i := range c.Candidates {
		candidate := &c.Candidates[i]
		mark := " "
		if candidate.Replica == c.Replica {
			mark = "*"
		}
		queue, usage := "?", "?"
		if candidate.QueueTokens.Known {
			queue = fmt.Sprint(candidate.QueueTokens.Value)
		}
		if candidate.KVUsage.Known {
			usage = fmt.Sprintf("%.0f%%", 100*candidate.KVUsage.Value)
		}
		fmt.Fprintf(table, "%s %s\t%d\t%s\t%s\t%s\t%s\n", mark, clean(string(candidate.Replica)), candidate.Load, queue, usage,
			number(candidate.OverlapBlocks), clean(failedGates(c.Gates, candidate.Replica)))
	}
	_ = table.Flush() // a strings.Builder takes everything
	if left := c.CandidatesTotal - len(c.Candidates); left > 0 {
		fmt.Fprintf(out, "  and %d more\n", left)
	}
}

func failedGates(gates []trace.Gate, replica trace.Text) string {
	var failed []string
	for i := range gates {
		if g := &gates[i]; g.Replica == replica && !g.Pass {
			failed = append(failed, gateText(g))
		}
	}
	if failed == nil {
		return "-"
	}
	return strings.Join(failed, "; ")
}

func gateText(g *trace.Gate) string {
	switch {
	case g.Observed.Name != "" && !g.Threshold.Number.Known:
		return g.Kind + ": " + g.Observed.Name
	case g.Observed.Number.Known && g.Threshold.Number.Known:
		name := g.Observed.Name
		if name != "" {
			name += " "
		}
		return fmt.Sprintf("%s: %s%.4g, limit %.4g", g.Kind, name, g.Observed.Number.Value, g.Threshold.Number.Value)
	default:
		return g.Kind
	}
}

// meanings say in words who made a choice.
var meanings = map[string]string{
	"index_hint":             "the index named it",
	"policy":                 "the policy chose it",
	"sticky_hit":             "its sticky key belongs there",
	"sticky_new":             "the first request of its sticky key",
	"sticky_stale":           "the pin of its sticky key is no longer good",
	"sticky_respill":         "the pinned replica was too busy",
	"target_header":          "a trusted client named it",
	"single_candidate":       "it was the only one",
	"warmup_slice":           "it is young and gets a share of the misses",
	"warmup_divert":          "it is young and gets a share of the shallow hits",
	"load_spill":             "those that hold more were too busy",
	"kv_pressure":            "the caches of others were too full",
	"random_fallback":        "chance",
	"first_healthy_fallback": "it was the first healthy one",
	"none_eligible":          "no replica was eligible",
}

var branchMeanings = map[string]string{
	"hit":                   ", and it holds the prefix",
	"miss":                  ", the index named no holder",
	"affinity":              ", the index named no holder and all are equally loaded",
	"tenant_hot":            ", the index named no holder, the tenant reuses most there",
	"short_request":         ", the prompt is shorter than a block",
	"timeout":               ", the index did not answer in time",
	"no_hint":               ", the index named nobody",
	"tokenizer_unavailable": ", there are no token ids",
	"parity_failed":         ", hints are off: gateway and engine tokenize differently",
}
