// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
)

// evaluation is the interval of all groups.
const evaluation = 30 * time.Second

// scenario is a course of events and the alerts it leads to.
type scenario struct {
	// series has a line per series: its name and labels, and a value for each
	// 30 s. namespace="ns" and instance="i" are added where they are missing.
	series string
	// from is when evaluation starts; default 15m, so that rates over up to 15
	// minutes are steady.
	from time.Duration
	// fires lists who fires within the rule's `for` and five minutes: the time
	// since from, the severity, and labels other than those added to series.
	fires []string
}

func (s scenario) start() time.Duration { return cmp.Or(s.from, 15*time.Minute) }

// load reads the series into a storage.
func (s scenario) load(t *testing.T) storage.Queryable {
	t.Helper()
	var all []loaded
	for line := range strings.Lines(s.series) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		name, values, err := promQL().ParseSeriesDesc(line)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		builder := labels.NewBuilder(name)
		for label, value := range addedLabels {
			if name.Get(label) == "" {
				builder.Set(label, value)
			}
		}
		all = append(all, loaded{builder.Labels(), values})
	}
	return queryable(all, time.Unix(0, 0))
}

var addedLabels = map[string]string{"namespace": "ns", "instance": "i"}

// fired returns what fires, as scenario.fires says it.
func (s scenario) fired(t *testing.T, rules []rulefmt.Rule) []string {
	t.Helper()
	store := s.load(t)
	engine := newEngine(t)
	var all []string
	for _, rule := range rules {
		all = append(all, s.firedBy(t, engine, store, rule)...)
	}
	slices.Sort(all)
	return all
}

// newEngine evaluates as a Prometheus with default settings does.
func newEngine(t *testing.T) *promql.Engine {
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples: 1e7, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, Parser: promQL(),
	})
	t.Cleanup(func() { _ = engine.Close() })
	return engine
}

func (s scenario) firedBy(t *testing.T, engine *promql.Engine, store storage.Queryable, rule rulefmt.Rule) []string {
	t.Helper()
	hold := time.Duration(rule.For)
	active := map[string]time.Duration{} // since when the condition holds
	done := map[string]bool{}
	var fired []string
	for at := s.start(); at <= s.start()+hold+5*time.Minute; at += evaluation {
		result := evaluate(t, engine, store, rule.Expr, time.Unix(0, 0).Add(at))
		now := map[string]time.Duration{}
		for _, sample := range result {
			key := sample.Metric.String()
			since, ok := active[key]
			if !ok {
				since = at
			}
			now[key] = since
			if at-since >= hold && !done[key] {
				done[key] = true
				fired = append(fired, strings.TrimSpace(fmt.Sprintf("%s %s %s", short(at-s.start()), rule.Labels["severity"], own(sample.Metric))))
				checkAnnotations(t, rule, sample.Metric)
			}
		}
		active = now
	}
	return fired
}

func evaluate(t *testing.T, engine *promql.Engine, store storage.Queryable, expression string, at time.Time) promql.Vector {
	t.Helper()
	query, err := engine.NewInstantQuery(context.Background(), store, nil, expression, at)
	if err != nil {
		t.Fatal(err)
	}
	defer query.Close()
	vector, err := query.Exec(context.Background()).Vector()
	if err != nil {
		t.Fatal(err)
	}
	return slices.Clone(vector)
}

// short writes 15m0s as 15m and 1h0m0s as 1h.
func short(d time.Duration) string {
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-len("0s")]
		}
	}
	return text
}

// own writes the labels that are not those added to series.
func own(l labels.Labels) string {
	var parts []string
	l.Range(func(label labels.Label) {
		if addedLabels[label.Name] != label.Value {
			parts = append(parts, label.Name+"="+label.Value)
		}
	})
	return strings.Join(parts, " ")
}

var annotationLabel = regexp.MustCompile(`\$labels\.(\w+)`)

// checkAnnotations fails for a label that the alert's text names but its series
// lacks.
func checkAnnotations(t *testing.T, rule rulefmt.Rule, have labels.Labels) {
	t.Helper()
	for _, text := range rule.Annotations {
		for _, match := range annotationLabel.FindAllStringSubmatch(text, -1) {
			// Only publishers in `up` have a replica_id.
			if !have.Has(match[1]) && match[1] != "replica_id" {
				t.Errorf("%s speaks of the label %s, which its series lacks: %s", rule.Alert, match[1], have)
			}
		}
	}
}

func TestAlertsFireWhenTheyShould(t *testing.T) {
	rules := alertRules(t)
	for alert, tests := range scenarios() {
		for name, tc := range tests {
			t.Run(alert+"/"+name, func(t *testing.T) {
				if rules[alert] == nil {
					t.Fatal("there is no such alert")
				}
				if diff := gocmp.Diff(tc.fires, tc.fired(t, rules[alert])); diff != "" {
					t.Errorf("fires (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// Every rule, also of alerts that have two, is seen firing, and every alert is
// seen quiet.
func TestEveryAlertHasScenarios(t *testing.T) {
	all := scenarios()
	for alert, rules := range alertRules(t) {
		quiet := false
		for _, tc := range all[alert] {
			quiet = quiet || len(tc.fires) == 0
		}
		if !quiet {
			t.Errorf("%s has no scenario in which it is quiet", alert)
		}
		for _, rule := range rules {
			if !slices.ContainsFunc(firesOf(all[alert]), func(f string) bool {
				return strings.HasPrefix(f, short(time.Duration(rule.For))+" "+rule.Labels["severity"])
			}) {
				t.Errorf("%s (%s) has no scenario in which it fires after %s", alert, rule.Labels["severity"], short(time.Duration(rule.For)))
			}
		}
	}
}

func firesOf(tests map[string]scenario) (all []string) {
	for _, tc := range tests {
		all = append(all, tc.fires...)
	}
	return all
}
