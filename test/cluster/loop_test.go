// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// observed is a line of the tool's command lookups.
type observed struct {
	At      time.Time `json:"at"`
	TookMS  float64   `json:"tookMs"`
	Reason  string    `json:"reason"`
	Replica string    `json:"replica"`
	Error   string    `json:"error"`
}

// startLookups asks for a prompt ten times a second, over one connection that
// is kept alive and with the usual retries, each lookup within 2 s.
func (e *env) startLookups(name, prompt string) {
	e.t.Helper()
	arguments, err := json.Marshal(append([]string{
		"lookups", "--timeout=2s", "--server=" + serverName + ":9090", "--ca-file=" + lookupCA, "--token-file=" + lookupToken,
	}, e.asked(prompt)...))
	if err != nil {
		e.t.Fatal(err)
	}
	e.apply(strings.NewReplacer(
		"NAME", name, `[serve, ":8000"]`, string(arguments),
		"    readinessProbe: {httpGet: {path: /, port: 8000}, periodSeconds: 1}\n", "",
	).Replace(toolPod))
	e.eventually("the first lookups", func() error {
		if lines := e.lookups(name); len(lines) < 3 {
			return fmt.Errorf("%d lookups", len(lines))
		}
		return nil
	})
}

// lookups are those that a loop has made so far.
func (e *env) lookups(name string) []observed {
	e.t.Helper()
	text, err := e.try("", "logs", name)
	if err != nil {
		return nil // it is about to start
	}
	var all []observed
	for line := range strings.Lines(text) {
		var o observed
		if !strings.HasSuffix(line, "\n") || json.Unmarshal([]byte(line), &o) != nil {
			continue // it is being written, or a complaint of the tool
		}
		all = append(all, o)
	}
	return all
}

// summary says how lookups went.
type summary struct {
	count   int
	failed  []observed
	reasons map[string]int
	slowest time.Duration
	// without is the longest time between two matches.
	without time.Duration
}

func summarize(all []observed) summary {
	s := summary{count: len(all), reasons: make(map[string]int)}
	var last time.Time
	for _, o := range all {
		took := time.Duration(o.TookMS * float64(time.Millisecond))
		s.slowest = max(s.slowest, took)
		switch {
		case o.Error != "":
			s.failed = append(s.failed, o)
			continue
		case o.Reason == "PREFIX_MATCH":
			done := o.At.Add(took)
			if !last.IsZero() {
				s.without = max(s.without, done.Sub(last))
			}
			last = done
		}
		s.reasons[o.Reason]++
	}
	return s
}

func (s summary) String() string {
	var reasons []string
	for reason, count := range s.reasons {
		reasons = append(reasons, fmt.Sprintf("%s %d", reason, count))
	}
	slices.Sort(reasons)
	return fmt.Sprintf("%d lookups, %d failed, %s; slowest %s, longest time without a match %s",
		s.count, len(s.failed), strings.Join(reasons, ", "), s.slowest.Round(time.Millisecond), s.without.Round(10*time.Millisecond))
}
