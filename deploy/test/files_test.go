// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

const (
	rulesDir   = "../../deploy/alerts"
	reference  = "../../docs/metrics.md"
	runbooks   = "../../docs/alerts.md"
	runbookURL = "https://github.com/inferencecache/inference-cache/blob/main/docs/alerts.md#"

	controllerRules = "controller.yaml"
	engineRules     = "engines.yaml"
)

func promQL() parser.Parser { return parser.NewParser(parser.Options{}) }

// ruleFiles returns the parsed rule files by name.
func ruleFiles(t *testing.T) map[string]*rulefmt.RuleGroups {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(rulesDir, "*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no rule files: %v", err)
	}
	files := map[string]*rulefmt.RuleGroups{}
	for _, path := range paths {
		groups, errs := rulefmt.ParseFile(path, false, model.UTF8Validation, promQL(), slog.New(slog.DiscardHandler))
		for _, err := range errs {
			t.Error(err)
		}
		if len(errs) > 0 {
			t.FailNow()
		}
		files[filepath.Base(path)] = groups
	}
	return files
}

// alertRules returns the rules of all files by the name of the alert.
func alertRules(t *testing.T) map[string][]rulefmt.Rule {
	t.Helper()
	rules := map[string][]rulefmt.Rule{}
	for _, groups := range ruleFiles(t) {
		for _, group := range groups.Groups {
			for _, rule := range group.Rules {
				rules[rule.Alert] = append(rules[rule.Alert], rule)
			}
		}
	}
	return rules
}

func TestRulesSayWhatToDo(t *testing.T) {
	for file, groups := range ruleFiles(t) {
		for _, group := range groups.Groups {
			if !strings.HasPrefix(group.Name, "inference-cache-") {
				t.Errorf("%s: group %s is not named after the product", file, group.Name)
			}
			for _, rule := range group.Rules {
				if rule.Alert == "" {
					t.Errorf("%s: a rule of %s is no alert", file, group.Name)
				}
				if severity := rule.Labels["severity"]; !slices.Contains([]string{"critical", "warning", "info"}, severity) {
					t.Errorf("%s: severity %q", rule.Alert, severity)
				}
				if rule.Labels["component"] != "inference-cache" {
					t.Errorf("%s: no component label", rule.Alert)
				}
				if rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" {
					t.Errorf("%s: summary or description is missing", rule.Alert)
				}
				if want := runbookURL + strings.ToLower(rule.Alert); rule.Annotations["runbook_url"] != want {
					t.Errorf("%s: runbook_url %q, want %q", rule.Alert, rule.Annotations["runbook_url"], want)
				}
			}
		}
	}
}

// Each alert has a section of its own in the runbooks, and each section an
// alert.
func TestRunbooksAndAlertsMatch(t *testing.T) {
	text, err := os.ReadFile(runbooks)
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	for _, section := range strings.Split(string(text), "\n### ")[1:] {
		title, body, _ := strings.Cut(section, "\n")
		body, _, _ = strings.Cut(body, "\n## ")
		sections[title] = body
	}
	rules := alertRules(t)
	for alert := range rules {
		body, ok := sections[alert]
		if !ok {
			t.Errorf("docs/alerts.md has no section %s", alert)
		}
		for _, part := range []string{"**Means:**", "**Causes:**", "**Do:**"} {
			if ok && !strings.Contains(body, part) {
				t.Errorf("section %s has no %s", alert, part)
			}
		}
	}
	for title := range sections {
		if rules[title] == nil {
			t.Errorf("docs/alerts.md has a section %s, but there is no such alert", title)
		}
	}
}

// metric is one row of the reference.
type metric struct {
	kind   string
	labels []string
}

var referenceRow = regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\| (counter|gauge|histogram) \\| ([^|]*) \\| [^|]+ \\|$")

// documented reads the reference of metrics.
func documented(t *testing.T) map[string]metric {
	t.Helper()
	text, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	metrics := map[string]metric{}
	for _, row := range referenceRow.FindAllStringSubmatch(string(text), -1) {
		m := metric{kind: row[2]}
		m.labels = strings.FieldsFunc(row[3], func(r rune) bool { return strings.ContainsRune("`, ", r) })
		metrics[row[1]] = m
	}
	if len(metrics) < 100 {
		t.Fatalf("only %d metrics found in the reference", len(metrics))
	}
	return metrics
}

// scrapeLabels are what the scrape adds to every series.
var scrapeLabels = []string{"namespace", "pod", "instance", "job", "container", "node"}

// foreign are metrics of others, with the labels our rules and dashboards may
// use beyond those of the scrape.
var foreign = map[string][]string{
	"up": nil, "process_resident_memory_bytes": nil, "process_start_time_seconds": nil,
	"process_cpu_seconds_total": nil, "go_goroutines": nil,
}

// checkNames reports what is wrong with the names in an expression.
func checkNames(t *testing.T, where, expression string, known map[string]metric) {
	t.Helper()
	tree, err := promQL().ParseExpr(expression)
	if err != nil {
		t.Errorf("%s: %v", where, err)
		return
	}
	var usable []string // labels that some series of the expression have
	var grouped []string
	parser.Inspect(tree, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			usable = append(usable, checkSelector(t, where, n, known)...)
		case *parser.AggregateExpr:
			grouped = append(grouped, n.Grouping...)
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				grouped = append(grouped, n.VectorMatching.MatchingLabels...)
				grouped = append(grouped, n.VectorMatching.Include...)
			}
		case *parser.Call:
			if n.Func.Name == "label_replace" {
				usable = append(usable, n.Args[1].(*parser.StringLiteral).Val)
			}
		}
		return nil
	})
	for _, label := range grouped {
		// `up` adds replica_id to publishers' series.
		if !slices.Contains(usable, label) && !slices.Contains(scrapeLabels, label) && label != "replica_id" {
			t.Errorf("%s groups by %s, which none of its metrics has", where, label)
		}
	}
}

// checkSelector returns the labels of the metric a selector names.
func checkSelector(t *testing.T, where string, selector *parser.VectorSelector, known map[string]metric) []string {
	t.Helper()
	name := selector.Name
	if name == "" {
		t.Errorf("%s: the selector %s names no metric", where, selector)
		return nil
	}
	have, ok := foreign[name]
	if !ok {
		base, suffix := baseName(name, known)
		m, found := known[base]
		if !found || suffix != "" && m.kind != "histogram" || suffix == "" && m.kind == "histogram" {
			t.Errorf("%s uses %s, which is not in docs/metrics.md", where, name)
			return nil
		}
		have = m.labels
		if suffix == "_bucket" {
			have = append(slices.Clone(have), "le")
		}
	}
	for _, matcher := range selector.LabelMatchers {
		if matcher.Name != model.MetricNameLabel && !slices.Contains(have, matcher.Name) && !slices.Contains(scrapeLabels, matcher.Name) {
			t.Errorf("%s selects %s by %s, a label it does not have", where, name, matcher.Name)
		}
	}
	return have
}

// baseName strips the suffix of a histogram's series.
func baseName(name string, known map[string]metric) (base, suffix string) {
	if _, ok := known[name]; ok {
		return name, ""
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(name, suffix); ok {
			return base, suffix
		}
	}
	return name, ""
}

func TestRulesUseDocumentedMetrics(t *testing.T) {
	known := documented(t)
	for file, groups := range ruleFiles(t) {
		if file == engineRules { // engines' own metrics
			continue
		}
		if file == controllerRules {
			known = withController(known)
		}
		for _, group := range groups.Groups {
			for _, rule := range group.Rules {
				checkNames(t, rule.Alert, rule.Expr, known)
			}
		}
	}
}
