// SPDX-License-Identifier: Apache-2.0

package standalone

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
)

var updateDocs = flag.Bool("update-docs", false, "add the metrics that docs/metrics.md lacks")

const metricsReference = "../../docs/metrics.md"

// Every family on the metrics page of a busy `up` is in the reference, with
// its type, labels and meaning.
func TestMetricsReferenceIsComplete(t *testing.T) {
	f := startFleet(t, startEngine(t, fastEngine()), startEngine(t, fastEngine()))
	prompt := text("for the reference", 320)
	f.complete(prompt, nil)
	f.awaitKeys(20)
	f.complete(prompt, nil)
	f.complete(prompt, map[string]any{"model": "none"})
	families, err := f.up.metrics.gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	reference, err := os.ReadFile(metricsReference)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	head, table, _ := strings.Cut(string(reference), "|---|---|---|---|\n")
	for row := range strings.Lines(table) {
		rows[nameOf(row)] = row
	}
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), "inferencecache_") {
			continue
		}
		want := referenceRow(family)
		if got := rows[nameOf(want)]; got != want && !*updateDocs {
			t.Errorf("docs/metrics.md has %q, want %q", got, want)
		}
		rows[nameOf(want)] = want
	}
	if !*updateDocs {
		return
	}
	text := head + "|---|---|---|---|\n"
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		text += rows[name]
	}
	if err := os.WriteFile(metricsReference, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func nameOf(row string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " ")
	return name
}

func referenceRow(family *dto.MetricFamily) string {
	labels := map[string]bool{}
	for _, series := range family.GetMetric() {
		for _, label := range series.GetLabel() {
			// Only `up`, which holds several publishers, adds this one.
			if label.GetName() == "replica_id" && strings.HasPrefix(family.GetName(), "inferencecache_publisher_") {
				continue
			}
			labels["`"+label.GetName()+"`"] = true
		}
	}
	return fmt.Sprintf("| `%s` | %s | %s | %s |\n", family.GetName(), strings.ToLower(family.GetType().String()),
		strings.Join(slices.Sorted(maps.Keys(labels)), ", "), family.GetHelp())
}
