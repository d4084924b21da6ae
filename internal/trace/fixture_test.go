// SPDX-License-Identifier: Apache-2.0

package trace_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/inferencecache/inference-cache/internal/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// keeper is a sink that keeps its lines. While block is open it hangs.
type keeper struct {
	block chan struct{}
	fail  bool

	mu      sync.Mutex
	records []trace.Record
	lines   []string
	closed  bool
}

func (k *keeper) Write(_ *trace.Record, line []byte) error {
	if k.block != nil {
		<-k.block
	}
	if k.fail {
		return errors.New("disk full")
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	var record trace.Record
	if err := json.Unmarshal(line, &record); err != nil {
		return err
	}
	k.records = append(k.records, record)
	k.lines = append(k.lines, string(line))
	return nil
}

func (k *keeper) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	return nil
}

// fixture is a recorder whose log is kept.
type fixture struct {
	*trace.Recorder
	t        *testing.T
	sink     *keeper
	registry *prometheus.Registry
	now      time.Time
	mu       sync.Mutex
	problems []string
}

func newFixture(t *testing.T, switches trace.Switches, change ...func(*trace.Options)) *fixture {
	t.Helper()
	f := &fixture{t: t, sink: &keeper{}, registry: prometheus.NewRegistry(), now: time.Unix(1_700_000_000, 0)}
	options := trace.Options{
		Switches: switches, Log: f.sink, Registerer: f.registry, Now: func() time.Time { return f.now },
		DrainTimeout: time.Minute,
		Problem: func(problem string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.problems = append(f.problems, problem)
		},
	}
	for _, c := range change {
		c(&options)
	}
	recorder, err := trace.New(options)
	if err != nil {
		t.Fatal(err)
	}
	f.Recorder = recorder
	return f
}

// written returns what reached the log, after which nothing more does.
func (f *fixture) written() []trace.Record {
	f.t.Helper()
	f.flush()
	return f.sink.records
}

func (f *fixture) flush() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	f.Run(ctx)
}

func (f *fixture) noProblems() {
	f.t.Helper()
	for _, problem := range f.problems {
		f.t.Errorf("the recorder reports: %s", problem)
	}
}

// begin starts a request with the given root id.
func (f *fixture) begin(root string) *trace.Request {
	return f.Begin(trace.Info{Endpoint: "completions", Mode: trace.ModeRegular, RootID: root, RootIDSource: trace.RootInbound})
}

func (f *fixture) value(name string, labels ...string) float64 {
	f.t.Helper()
	families, err := f.registry.Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "inferencecache_trace_"+name {
			continue
		}
	series:
		for _, m := range family.GetMetric() {
			have := map[string]string{}
			for _, l := range m.GetLabel() {
				have[l.GetName()] = l.GetValue()
			}
			for i := 0; i < len(labels); i += 2 {
				if have[labels[i]] != labels[i+1] {
					continue series
				}
			}
			if m.Counter != nil {
				return m.GetCounter().GetValue()
			}
			return float64(m.GetHistogram().GetSampleCount())
		}
	}
	f.t.Fatalf("no metric %s %v", name, labels)
	return 0
}

// choose records a selection of one of n candidates, of which the first holds
// four blocks.
func choose(a *trace.Attempt, role trace.Role, n int) {
	s := a.BeginSelection(role, "hint", candidates(n))
	s.Predict(prediction(4, 4))
	s.Gate(trace.Gate{Kind: trace.GateQueuePressure, Replica: "pod-0", Observed: trace.Number(1), Threshold: trace.Number(2), Pass: true})
	s.End("pod-0", "index_hint", &trace.Details{})
}

func candidates(n int) []trace.Candidate {
	out := make([]trace.Candidate, n)
	for i := range out {
		out[i] = trace.Candidate{Replica: trace.Text(fmt.Sprintf("pod-%d", i)), Circuit: trace.CircuitClosed, OverlapBlocks: trace.Known(0)}
	}
	if n > 0 {
		out[0].OverlapBlocks = trace.Known(4)
	}
	return out
}

func prediction(overlap, best int) *trace.Prediction {
	return &trace.Prediction{
		Source: "index_lookup", Branch: "hit", ReasonCode: "PREFIX_MATCH", OverlapBlocks: trace.Known(overlap),
		BestOverlapBlocks: trace.Known(best), RequestBlocks: trace.Known(8), BlockSize: trace.Known(16), CreditedTokens: overlap * 16,
	}
}

// send records a dispatch under the given engine ids.
func send(a *trace.Attempt, ids ...string) {
	sent := &trace.Sent{DispatchID: trace.NewID(time.Unix(1_700_000_000, 0))}
	for _, id := range ids {
		sent.IDs = append(sent.IDs, trace.EngineID{ID: id, Role: trace.RoleSingle})
	}
	a.Dispatch(sent)
}

func numbered(prefix string, n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("%s-%d", prefix, i)
	}
	return ids
}

func ofKind(records []trace.Record, kind trace.Kind) []trace.Record {
	var out []trace.Record
	for _, r := range records {
		if r.Kind == kind {
			out = append(out, r)
		}
	}
	return out
}

func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in %s", part, text)
		}
	}
}
