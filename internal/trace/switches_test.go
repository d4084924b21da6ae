// SPDX-License-Identifier: Apache-2.0

package trace_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/trace"
)

func TestSwitchesThatCannotWork(t *testing.T) {
	for name, s := range map[string]trace.Switches{
		"a header over 4096 bytes":  {MaxHeaderBytes: 4097},
		"a negative header":         {MaxHeaderBytes: -1},
		"a tiny line":               {MaxLineBytes: 100},
		"a header for some":         {Header: "some"},
		"names of a kind":           {ReplicaNames: "short"},
		"a header name of its own":  {HeaderName: "X-Trace"},
		"a header name in lower ca": {HeaderName: "x-inference-cache-trace"},
	} {
		if _, err := trace.New(trace.Options{Switches: s}); !errors.Is(err, trace.ErrSwitches) {
			t.Errorf("%s: %v, want ErrSwitches", name, err)
		}
		f := newFixture(t, trace.Switches{Log: true})
		if err := f.Set(s); !errors.Is(err, trace.ErrSwitches) || !f.Switches().Log {
			t.Errorf("%s: %v, log %v; want an error and no change", name, err, f.Switches().Log)
		}
	}
}

// TestSampling checks that a request is complete or absent, and that failures
// are always there.
func TestSampling(t *testing.T) {
	for _, sample := range []int{-1, 0, 1, 3} {
		f := newFixture(t, trace.Switches{Log: true, Outcome: true, Sample: sample, Header: trace.HeaderAny})
		for i := range 9 {
			q := f.begin(fmt.Sprint(i))
			a := q.Attempt(0)
			send(a, "e")
			if i == 4 {
				a.Fail(&trace.Failed{Phase: trace.PhaseDispatch, WillRetry: true})
				a = q.Attempt(1)
				send(a, "e")
			}
			a.Outcome(&trace.Outcome{Status: 200})
			if _, _, ok := q.Header(nil); !ok {
				t.Errorf("sample %d: request %d has no header: it is never sampled", sample, i)
			}
			q.End()
		}
		lines := map[string]int{}
		for _, r := range f.written() {
			lines[r.RootID]++
		}
		for i := range 9 {
			want := 2
			switch {
			case i == 4:
				want = 4
			case sample == 3 && i%3 != 0:
				want = 0
			}
			if got := lines[fmt.Sprint(i)]; got != want {
				t.Errorf("sample %d: request %d has %d lines, want %d", sample, i, got, want)
			}
		}
		wantOut := 0.0
		if sample == 3 {
			wantOut = 5
		}
		if got := f.value("sampled_out_total"); got != wantOut {
			t.Errorf("sample %d: %v left out, want %v", sample, got, wantOut)
		}
	}
}

func TestHeaderSwitches(t *testing.T) {
	ask := func(q *trace.Request) { q.AskHeader("team-a") }
	tests := map[string]struct {
		switches trace.Switches
		trusted  bool
		during   func(*trace.Request)
		want     bool
	}{
		"off":                                  {},
		"log alone":                            {switches: trace.Switches{Log: true}},
		"trusted, for a trusted client":        {switches: trace.Switches{Header: trace.HeaderTrusted}, trusted: true, want: true},
		"trusted, for another":                 {switches: trace.Switches{Header: trace.HeaderTrusted}},
		"any":                                  {switches: trace.Switches{Header: trace.HeaderAny}, want: true},
		"asked by a trusted client":            {switches: trace.Switches{RequestOptin: true}, trusted: true, during: ask, want: true},
		"asked by a listed tenant":             {switches: trace.Switches{RequestOptin: true, OptinTenants: []string{"team-a"}}, during: ask, want: true},
		"asked by another tenant":              {switches: trace.Switches{RequestOptin: true, OptinTenants: []string{"team-b"}}, during: ask},
		"asked without a tenant":               {switches: trace.Switches{RequestOptin: true, OptinTenants: []string{""}}, during: func(q *trace.Request) { q.AskHeader("") }},
		"asked although that is off":           {trusted: true, during: ask},
		"not asked although that would be on":  {switches: trace.Switches{RequestOptin: true}, trusted: true},
		"asked beside a header for the trusty": {switches: trace.Switches{RequestOptin: true, Header: trace.HeaderTrusted}, during: ask},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, tc.switches)
			q := f.Begin(trace.Info{RootID: "root", Trusted: tc.trusted})
			if tc.during != nil {
				tc.during(q)
			}
			if _, _, ok := q.Header(nil); ok {
				t.Error("a header before any dispatch")
			}
			choose(q.Attempt(0), trace.RoleSingle, 1)
			send(q.Attempt(0), "e")
			name, value, ok := q.Header(nil)
			if ok != tc.want || ok && (name != "X-Inference-Cache-Trace" || !strings.Contains(value, `"root_id":"root"`)) {
				t.Errorf("header %q %q %v, want one: %v", name, value, ok, tc.want)
			}
			if got := len(f.written()); !tc.switches.Log && got != 0 {
				t.Errorf("%d lines although the log is off", got)
			}
		})
	}
}

func TestHeaderAlias(t *testing.T) {
	f := newFixture(t, trace.Switches{Header: trace.HeaderAny, HeaderName: trace.HeaderAlias})
	q := f.begin("root")
	send(q.Attempt(0), "e")
	if name, _, _ := q.Header(nil); name != "X-Smg-Cache-Trace" {
		t.Errorf("name %q", name)
	}
}

func TestHeaderSwitchedOffMidway(t *testing.T) {
	f := newFixture(t, trace.Switches{Header: trace.HeaderAny})
	q := f.begin("root")
	send(q.Attempt(0), "e")
	if err := f.Set(trace.Switches{}); err != nil {
		t.Fatal(err)
	}
	if _, _, ok := q.Header(nil); ok {
		t.Error("a header although it was switched off")
	}
	omitted := f.written()
	if len(omitted) != 1 || omitted[0].Omitted.Reason != trace.OmittedDisabled || omitted[0].DispatchID == "" {
		t.Errorf("records %+v, want one omission", omitted)
	}
}

// TestOmissionsAreLoggedAtALimitedRate checks that they need no log switch.
func TestOmissionsAreLoggedAtALimitedRate(t *testing.T) {
	f := newFixture(t, trace.Switches{Header: trace.HeaderAny, MaxHeaderBytes: 10})
	for second := range 2 {
		for range 25 {
			q := f.begin("root")
			send(q.Attempt(0), "e")
			_, _, _ = q.Header(nil)
			q.End()
		}
		if second == 0 {
			f.now = f.now.Add(time.Second)
		}
	}
	if got := len(f.written()); got != 20 {
		t.Errorf("%d lines, want 10 a second", got)
	}
	if got := f.value("header_omitted_total", "reason", "size"); got != 50 {
		t.Errorf("%v omissions counted, want 50", got)
	}
}

func TestReplicaNames(t *testing.T) {
	lines := map[trace.NameMode]string{}
	for _, mode := range []trace.NameMode{trace.NamesFull, trace.NamesHash, trace.NamesNone} {
		f := newFixture(t, trace.Switches{Log: true, Outcome: true, ReplicaNames: mode})
		q := f.begin("root")
		a := q.Attempt(0)
		s := a.BeginSelection(trace.RoleSingle, "hint", candidates(2))
		s.Gate(trace.Gate{Kind: trace.GateOverload, Replica: "pod-0"})
		s.Score(trace.Score{Source: "index_lookup", Replica: "pod-0"})
		s.Predict(prediction(4, 4))
		s.End("pod-0", "index_hint", &trace.Details{})
		send(a, "e")
		a.Fail(&trace.Failed{Phase: trace.PhaseStream})
		a.Outcome(&trace.Outcome{Replica: "pod-0"})
		f.written()
		lines[mode] = strings.Join(f.sink.lines, "\n")
		if made := f.Requests(1, "")[0][0]; made.Dispatch.Selections[0].Replica != "pod-0" {
			t.Error("the record in memory changed with its line")
		}
	}
	if got := strings.Count(lines[trace.NamesFull], `"replica":"pod-0"`); got != 9 {
		t.Errorf("%d names in full lines, want 9", got)
	}
	for _, mode := range []trace.NameMode{trace.NamesHash, trace.NamesNone} {
		if strings.Contains(lines[mode], "pod-") {
			t.Errorf("%s: a name is told: %s", mode, lines[mode])
		}
	}
	if got := strings.Count(lines[trace.NamesNone], `"replica":null`); got != 11 {
		t.Errorf("%d hidden names, want 11", got)
	}
}
