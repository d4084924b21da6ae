// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestReportRows(t *testing.T) {
	yes, no := true, false
	tests := map[string]struct {
		print func(*Report)
		want  Result
	}{
		"the median counts, the extremes are shown": {
			print: func(r *Report) { r.AtMost("G3", "row", "us", 4, []float64{5, 1, 3}, nil) },
			want:  Result{Goal: "G3", Name: "row", Value: 3, Unit: "us", Limit: 4, OK: &yes, Low: 1, High: 5, Runs: 3},
		},
		"a row above its limit says so": {
			print: func(r *Report) { r.AtMost("G3", "row", "us", 4, []float64{5}, nil) },
			want:  Result{Goal: "G3", Name: "row", Value: 5, Unit: "us", Limit: 4, OK: &no, Runs: 1},
		},
		"a rate must reach its limit": {
			print: func(r *Report) { r.AtLeast("G1", "row", "M/s", 5, []float64{4}, nil) },
			want:  Result{Goal: "G1", Name: "row", Value: 4, Unit: "M/s", Limit: 5, AtLeast: true, OK: &no, Runs: 1},
		},
		"a row without a goal keeps none": {
			print: func(r *Report) { r.AtMost("G3", "row", "us", 0, []float64{5}, map[string]float64{"a": 1}) },
			want:  Result{Goal: "G3", Name: "row", Value: 5, Unit: "us", Runs: 1, Detail: map[string]float64{"a": 1}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			tc.print(NewReport(&out))
			var got Result
			if err := json.Unmarshal([]byte(out.String()), &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("row (-want +got):\n%s", diff)
			}
		})
	}
}

func TestIndexEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out strings.Builder
	if err := Index(ctx, &out, IndexOptions{Corpus: small(), Short: true}); err != context.Canceled {
		t.Errorf("Index() = %v, want %v", err, context.Canceled)
	}
	if !strings.Contains(out.String(), `"cores"`) {
		t.Errorf("the machine is not named: %s", out.String())
	}
}

func TestMixedLoadPlaysBothSides(t *testing.T) {
	steps := small().steps(startMillis)
	l := &load{x: newIndex(), steps: steps, seconds: 1}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	o := l.run(ctx, 100_000, nil)
	if len(o.lookups) == 0 || o.offered == 0 {
		t.Errorf("%d lookups, %v events", len(o.lookups), o.offered)
	}
}
