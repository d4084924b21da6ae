// SPDX-License-Identifier: Apache-2.0

package standalone

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
)

var updateDocs = flag.Bool("update-docs", false, "add the metrics that docs/metrics.md lacks")

const metricsReference = "../../docs/metrics.md"

// Every family that the roles of `up` register is in the reference, with its
// labels and meaning, and its type where a busy `up` shows it.
func TestMetricsReferenceIsComplete(t *testing.T) {
	f := startBusyFleet(t)
	families := f.gather()
	reference, err := os.ReadFile(metricsReference)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	head, table, _ := strings.Cut(string(reference), "|---|---|---|---|\n")
	for row := range strings.Lines(table) {
		rows[nameOf(row)] = row
	}
	wanted := f.registered()
	for name, want := range wanted {
		if got := rows[name]; withoutType(got) == withoutType(want) {
			wanted[name] = got
		}
	}
	for _, family := range families {
		if row := referenceRow(family); strings.HasPrefix(nameOf(row), "`inferencecache_") {
			wanted[nameOf(row)] = row
		}
	}
	for name, want := range wanted {
		if got := rows[name]; got != want && !*updateDocs {
			t.Errorf("docs/metrics.md has %q, want %q", got, want)
		}
		rows[name] = want
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

// withoutType cuts the type out of a row.
func withoutType(row string) string {
	name, rest, _ := strings.Cut(strings.TrimPrefix(row, "| "), " | ")
	_, rest, _ = strings.Cut(rest, " | ")
	return name + rest
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
	return row(family.GetName(), strings.ToLower(family.GetType().String()), slices.Sorted(maps.Keys(labels)), family.GetHelp())
}

func row(name, kind string, labels []string, help string) string {
	return fmt.Sprintf("| `%s` | %s | %s | %s |\n", name, kind, strings.Join(labels, ", "), help)
}

var descText = regexp.MustCompile(`^Desc\{fqName: "(\w+)", help: (".*"), unit: ".*", constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)

// registered returns a row for each family that exists, also for those without
// a series yet. Of these, the name says whether it counts.
func (f *fleet) registered() map[string]string {
	f.t.Helper()
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		for _, registry := range []*prometheus.Registry{f.up.metrics.server, f.up.metrics.gateway, f.up.metrics.publishers} {
			registry.Describe(descs)
		}
		for _, one := range f.up.followers.each {
			one.registry.Describe(descs)
		}
	}()
	rows := map[string]string{}
	for desc := range descs {
		parts := descText.FindStringSubmatch(desc.String())
		if parts == nil {
			f.t.Fatalf("cannot read %s", desc)
		}
		help, err := strconv.Unquote(parts[2])
		if err != nil {
			f.t.Fatal(err)
		}
		var labels []string
		for _, label := range strings.FieldsFunc(parts[3]+","+parts[4], func(r rune) bool { return r == ',' }) {
			name, _, _ := strings.Cut(label, "=")
			if name != "replica_id" || !strings.HasPrefix(parts[1], "inferencecache_publisher_") {
				labels = append(labels, "`"+name+"`")
			}
		}
		slices.Sort(labels)
		kind := "gauge"
		if strings.HasSuffix(parts[1], "_total") {
			kind = "counter"
		}
		rows["`"+parts[1]+"`"] = row(parts[1], kind, labels, help)
	}
	return rows
}

// Names, units and help texts are as Prometheus' linter wants them.
func TestMetricsFollowConventions(t *testing.T) {
	f := startBusyFleet(t)
	problems, err := testutil.GatherAndLint(f.up.metrics.gatherer(&f.up.followers))
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		if strings.HasPrefix(problem.Metric, "inferencecache_") {
			t.Errorf("%s: %s", problem.Metric, problem.Text)
		}
	}
}

// startBusyFleet has answered requests of every kind that leaves a series.
func startBusyFleet(t *testing.T) *fleet {
	f := startFleet(t, startEngine(t, fastEngine()), startEngine(t, fastEngine()))
	prompt := text("for the reference", 320)
	f.complete(prompt, nil)
	f.awaitKeys(20)
	f.complete(prompt, nil)
	f.complete(prompt, map[string]any{"stream": true, "max_tokens": 4, "stream_options": map[string]any{"include_usage": true}})
	f.complete(prompt, map[string]any{"model": "none"})
	return f
}

func (f *fleet) gather() []*dto.MetricFamily {
	f.t.Helper()
	families, err := f.up.metrics.gatherer(&f.up.followers).Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	return families
}
