// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// patience bounds each wait for a process.
const patience = 60 * time.Second

// buildBinary builds what the tests below run.
func buildBinary(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "inferencecache")
	build := exec.Command("go", "build", "-o", path, "./cmd/inferencecache")
	build.Dir = "../.."
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return path
}

// launch starts a role until the test ends and returns its first line on
// standard output, or on standard error, that names addresses.
func launch(t *testing.T, fromLog bool, name string, arguments ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Minute)
	cmd := exec.CommandContext(ctx, name, arguments...)
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	stdin, err := cmd.StdinPipe() // closes with this process, which ends the role
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = log
	lines, err := cmd.StdoutPipe()
	if fromLog {
		cmd.Stderr = nil
		lines, err = cmd.StderrPipe()
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
		_ = log.Close()
		_ = stdin.Close()
	})
	scanner := bufio.NewScanner(lines)
	for scanner.Scan() {
		if line := scanner.Bytes(); strings.Contains(string(line), "127.0.0.1:") {
			line = append([]byte(nil), line...)
			go func() { _, _ = io.Copy(io.Discard, lines) }()
			return line
		}
	}
	text, _ := os.ReadFile(log.Name())
	t.Fatalf("%s %s told no address:\n%s", name, arguments[0], text)
	return nil
}

func decode(t *testing.T, line []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(line, into); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
}

// fetch returns the answer to a GET, or to a POST with a body.
func fetch(t *testing.T, url, body string) (status int, text string) {
	t.Helper()
	client := &http.Client{Timeout: patience}
	var response *http.Response
	var err error
	if body == "" {
		response, err = client.Get(url)
	} else {
		response, err = client.Post(url, "application/json", strings.NewReader(body))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(answer)
}

// startUp runs `up` in front of two simulated engines, has it answer a few
// prompts, and returns the address of its metrics.
func startUp(t *testing.T, binary string) (metrics string) {
	t.Helper()
	arguments := []string{
		"up", "--listen=127.0.0.1:0", "--admin=127.0.0.1:0", "--grpc=127.0.0.1:0", "--print-addresses",
		"--lookup-timeout=2s", "--exit-with-stdin",
	}
	for range 2 {
		var engine struct{ HTTP, Events, Replay string }
		decode(t, launch(t, false, binary, "sim-engine", "--listen=127.0.0.1:0", "--events=tcp://127.0.0.1:*",
			"--replay=tcp://127.0.0.1:*", "--decode-step=1ms", "--prefill-rate=1000000", "--print-addresses", "--exit-with-stdin"), &engine)
		arguments = append(arguments, fmt.Sprintf("--engine=%s,events=%s,replay=%s", engine.HTTP, engine.Events, engine.Replay))
	}
	var up struct{ Gateway, Admin string }
	decode(t, launch(t, false, binary, arguments...), &up)
	await(t, "up is ready", func() bool {
		status, _ := fetch(t, "http://"+up.Admin+"/readyz", "")
		return status == http.StatusOK
	})
	metrics = "http://" + up.Admin + "/metrics"
	prompt := strings.Repeat("a prompt to remember ", 20)
	for range 2 {
		if status, text := fetch(t, "http://"+up.Gateway+"/v1/completions", fmt.Sprintf(`{"model":"sim","prompt":%q,"max_tokens":4}`, prompt)); status != http.StatusOK {
			t.Fatalf("completion: %d %s", status, text)
		}
		await(t, "the index holds the prompt", func() bool {
			_, page := fetch(t, metrics, "")
			return strings.Contains(page, `inferencecache_index_entries{model="sim"}`)
		})
	}
	return metrics
}

func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline:
			t.Fatalf("not within %s: %s", patience, what)
		case <-tick.C:
		}
	}
}

// startServer runs a server with an internal listener and returns the address
// of its metrics.
func startServer(t *testing.T, binary string) (metrics string) {
	t.Helper()
	var serving struct{ HTTP string }
	decode(t, launch(t, true, binary, "server", "--grpc-bind-address=127.0.0.1:0", "--http-bind-address=127.0.0.1:0",
		"--snapshot-bind-address=127.0.0.1:0", "--insecure-disable-auth"), &serving)
	return "http://" + serving.HTTP + "/metrics"
}

var laterRow = regexp.MustCompile("`(inferencecache_[a-z0-9_]+)`")

// appearLater reads which metrics are documented not to exist from the start.
func appearLater(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## When series appear\n")
	section, _, _ = strings.Cut(section, "\n## ")
	if !found {
		t.Fatal("docs/metrics.md does not say when series appear")
	}
	later, known := map[string]bool{}, documented(t)
	for _, match := range laterRow.FindAllStringSubmatch(section, -1) {
		later[match[1]] = true
		if _, ok := known[match[1]]; !ok {
			t.Errorf("docs/metrics.md says when %s appears, but there is no such metric", match[1])
		}
	}
	return later
}

// expressions returns all of the rules and dashboards on our own metrics, by
// where they stand.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for file, groups := range ruleFiles(t) {
		if file == engineRules || file == controllerRules {
			continue
		}
		for _, group := range groups.Groups {
			for _, rule := range group.Rules {
				all[rule.Alert+" ("+rule.Labels["severity"]+")"] = rule.Expr
			}
		}
	}
	for name, d := range readDashboards(t) {
		for _, panel := range d.Panels {
			for i, target := range panel.Targets {
				expression := strings.ReplaceAll(grafana.Replace(target.Expr), "$namespace", ".*")
				all[fmt.Sprintf("%s: %s %d", name, panel.Title, i)] = expression
			}
		}
	}
	return all
}

// metricNames returns the metrics an expression reads.
func metricNames(t *testing.T, expression string) (names []string) {
	t.Helper()
	tree, err := promQL().ParseExpr(expression)
	if err != nil {
		t.Fatal(err)
	}
	parser.Inspect(tree, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			names = append(names, selector.Name)
		}
		return nil
	})
	return names
}

// A scrape of running roles has every metric that rules and dashboards read,
// but those documented to appear later. Nothing is wrong with these roles, so
// that no alert's condition holds.
func TestRunningRolesHaveTheMetrics(t *testing.T) {
	binary := buildBinary(t)
	_, up := fetch(t, startUp(t, binary), "")
	_, server := fetch(t, startServer(t, binary), "")
	have, later := map[string]bool{"up": true}, appearLater(t) // the scrape adds `up`
	for line := range strings.Lines(up + server) {
		have[strings.FieldsFunc(line, func(r rune) bool { return r == '{' || r == ' ' })[0]] = true
	}
	checkValues(t, pageSeries(t, up+server), later)
	now := time.Now()
	store := queryable(pageSeries(t, up), now.Add(-scrapes*evaluation))
	engine := newEngine(t)
	shown, empty := 0, 0
	for where, expression := range expressions(t) {
		for _, name := range metricNames(t, expression) {
			base, _ := baseName(name, documented(t))
			if !have[name] && !later[base] {
				t.Errorf("%s reads %s, which no running role has", where, name)
			}
		}
		result := evaluate(t, engine, store, expression, now)
		switch alert := strings.HasSuffix(where, ")"); {
		case alert && len(result) > 0:
			t.Errorf("%s holds for roles that are well: %v", where, result)
		case !alert && len(result) > 0:
			shown++
		case !alert:
			empty++ // counters that never moved, and what only a controller brings about
		}
	}
	if shown < 2*empty {
		t.Errorf("%d queries of dashboards show something, %d nothing", shown, empty)
	}
}

// scrapes is how often a page counts as scraped.
const scrapes = 20

// pageSeries reads a page of metrics as if no scrape had changed it.
func pageSeries(t *testing.T, page string) (all []loaded) {
	t.Helper()
	for line := range strings.Lines(page) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		end := strings.LastIndexByte(line, ' ')
		name, err := promQL().ParseMetric(line[:end])
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		value, err := strconv.ParseFloat(line[end+1:], 64)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		all = append(all, loaded{name, slices.Repeat([]parser.SequenceValue{{Value: value}}, scrapes+1)})
	}
	return all
}

// absentValues are selected by rules, but only roles or features that the test
// does not run have them.
var absentValues = map[string]bool{
	`inferencecache_build_info{role="controller"}`:        true,
	`inferencecache_routing_parity_total{check="canary"}`: true,
	`inferencecache_trace_bytes_count{form="header"}`:     true,
}

// checkValues fails for a value that a rule or dashboard selects by and no
// series has, where the family's values are known from the start.
func checkValues(t *testing.T, series []loaded, later map[string]bool) {
	t.Helper()
	values := map[string]map[string][]string{} // by metric and label
	for _, one := range series {
		name := one.labels.Get(model.MetricNameLabel)
		if values[name] == nil {
			values[name] = map[string][]string{}
		}
		one.labels.Range(func(l labels.Label) { values[name][l.Name] = append(values[name][l.Name], l.Value) })
	}
	known := documented(t)
	for where, expression := range expressions(t) {
		tree, err := promQL().ParseExpr(expression)
		if err != nil {
			t.Fatal(err)
		}
		parser.Inspect(tree, func(node parser.Node, _ []parser.Node) error {
			selector, ok := node.(*parser.VectorSelector)
			if base, _ := baseName(selectorName(selector), known); !ok || later[base] || strings.HasPrefix(base, "up") {
				return nil
			}
			for _, matcher := range selector.LabelMatchers {
				text := fmt.Sprintf("%s{%s}", selector.Name, matcher)
				if slices.Contains(scrapeLabels, matcher.Name) || absentValues[text] || matcher.Name == model.MetricNameLabel {
					continue
				}
				if !slices.ContainsFunc(values[selector.Name][matcher.Name], matcher.Matches) {
					t.Errorf("%s selects %s, which no series matches", where, text)
				}
			}
			return nil
		})
	}
}

func selectorName(selector *parser.VectorSelector) string {
	if selector == nil {
		return ""
	}
	return selector.Name
}
