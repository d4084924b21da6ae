// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"slices"
)

// Result is one measured row. Rows with a limit say whether they keep it.
type Result struct {
	Goal  string  `json:"goal"`
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Limit is the goal; AtLeast says that it is a lower one. Rows without a
	// goal have no limit.
	Limit   float64 `json:"limit,omitempty"`
	AtLeast bool    `json:"at_least,omitempty"`
	OK      *bool   `json:"ok,omitempty"`
	// Low and High are the extremes over Runs, Value is the median.
	Low  float64 `json:"low,omitempty"`
	High float64 `json:"high,omitempty"`
	Runs int     `json:"runs,omitempty"`
	// Detail holds what else was measured.
	Detail map[string]float64 `json:"detail,omitempty"`
}

// Machine is what results were measured on.
type Machine struct {
	CPU   string `json:"cpu"`
	Cores int    `json:"cores"`
	Go    string `json:"go"`
	OS    string `json:"os"`
}

// ThisMachine describes where the process runs.
func ThisMachine() Machine {
	return Machine{CPU: cpuModel(), Cores: runtime.NumCPU(), Go: runtime.Version(), OS: runtime.GOOS + "/" + runtime.GOARCH}
}

// Report prints rows as they come, one JSON object a line.
type Report struct {
	out   *json.Encoder
	goals []string // whose rows are printed; empty = all
	err   error
}

// NewReport returns a report that writes to w.
func NewReport(w io.Writer) *Report { return &Report{out: json.NewEncoder(w)} }

// Only leaves the rows of other goals out; without names all are printed.
func (r *Report) Only(goals []string) { r.goals = goals }

// wants says whether rows of one of the goals are printed.
func (r *Report) wants(goals ...string) bool {
	return len(r.goals) == 0 || slices.ContainsFunc(goals, func(g string) bool { return slices.Contains(r.goals, g) })
}

// Err is the first error of writing.
func (r *Report) Err() error { return r.err }

// Print writes v as one line.
func (r *Report) Print(v any) {
	if r.err == nil {
		if err := r.out.Encode(v); err != nil {
			r.err = fmt.Errorf("printing results: %w", err)
		}
	}
}

// AtMost prints a row whose values must not exceed a limit; 0 = no limit.
func (r *Report) AtMost(goal, name, unit string, limit float64, values []float64, detail map[string]float64) {
	row := summary(goal, name, unit, values, detail)
	if limit > 0 {
		ok := row.Value <= limit
		row.Limit, row.OK = limit, &ok
	}
	r.row(row)
}

// AtLeast prints a row whose values must reach a limit; 0 = no limit.
func (r *Report) AtLeast(goal, name, unit string, limit float64, values []float64, detail map[string]float64) {
	row := summary(goal, name, unit, values, detail)
	if limit > 0 {
		ok := row.Value >= limit
		row.Limit, row.AtLeast, row.OK = limit, true, &ok
	}
	r.row(row)
}

func (r *Report) row(row Result) {
	if r.wants(row.Goal) {
		r.Print(row)
	}
}

func summary(goal, name, unit string, values []float64, detail map[string]float64) Result {
	sorted := slices.Sorted(slices.Values(values))
	row := Result{Goal: goal, Name: name, Unit: unit, Runs: len(sorted), Detail: detail, Value: sorted[len(sorted)/2]}
	if len(sorted) > 1 {
		row.Low, row.High = sorted[0], sorted[len(sorted)-1]
	}
	return row
}

// Quantile returns a quantile of sorted values, 0 without any.
func Quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}
