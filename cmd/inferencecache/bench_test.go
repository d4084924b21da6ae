// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/inferencecache/inference-cache/internal/bench"
	"github.com/inferencecache/inference-cache/internal/bench/serve"
)

// asProgram makes the test binary behave like the program, for commands that
// start it again.
const asProgram = "INFERENCECACHE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// tinyCorpus are flags of a corpus that is made and replayed in no time.
var tinyCorpus = []string{"--requests=120", "--copies=1", "--replicas=4", "--pool-blocks=800"}

// benchRows runs a bench command and returns its output by goal: each line but
// the first is a row.
func benchRows(t *testing.T, args ...string) map[string][]bench.Result {
	t.Helper()
	var stdout, stderr strings.Builder
	c := &cli{stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr}
	if code := c.run(t.Context(), append([]string{"bench"}, args...)); code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	rows := map[string][]bench.Result{}
	for i, line := range strings.Split(strings.TrimSpace(stdout.String()), "\n") {
		if i == 0 {
			var head struct{ Machine bench.Machine }
			if err := json.Unmarshal([]byte(line), &head); err != nil || head.Machine.Cores < 1 {
				t.Errorf("the first line names no machine: %v: %s", err, line)
			}
			continue
		}
		var row bench.Result
		decoder := json.NewDecoder(strings.NewReader(line))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&row); err != nil {
			t.Fatalf("line %d: %v: %s", i+1, err, line)
		}
		if row.Goal == "" || row.Name == "" || row.Unit == "" || (row.Limit > 0) != (row.OK != nil) {
			t.Errorf("line %d is no row: %s", i+1, line)
		}
		rows[row.Goal] = append(rows[row.Goal], row)
	}
	return rows
}

// wantGoals checks that rows are of these goals, and that no row is there
// twice.
func wantGoals(t *testing.T, rows map[string][]bench.Result, goals ...string) {
	t.Helper()
	for _, goal := range goals {
		if len(rows[goal]) == 0 {
			t.Errorf("no row of %s", goal)
		}
	}
	if len(rows) != len(goals) {
		t.Errorf("rows of %d goals, want %d", len(rows), len(goals))
	}
	seen := map[string]bool{}
	for goal, list := range rows {
		for _, row := range list {
			if key := goal + " " + row.Name; seen[key] {
				t.Errorf("%q is there twice", key)
			} else {
				seen[key] = true
			}
		}
	}
}

func TestBenchCorpusIsReplayed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "corpus.bin")
	c := &cli{stdout: io.Discard, stderr: io.Discard}
	if code := c.run(t.Context(), append([]string{"bench", "corpus", "--out", path}, tinyCorpus...)); code != exitOK {
		t.Fatalf("exit code %d", code)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	corpus, err := bench.Read(file)
	if err != nil || corpus.Header.Requests != 120 || corpus.Header.Replicas != 4 {
		t.Fatalf("%+v, %v", corpus, err)
	}
	rows := benchRows(t, "index", "--corpus", path, "--goals=G1", "--memberships=20000", "--runs=1")
	wantGoals(t, rows, "G1")
}

func TestBenchReplaysTraces(t *testing.T) {
	trace := filepath.Join(t.TempDir(), "trace.jsonl")
	lines := `{"timestamp":0,"hash_ids":[1,2,3]}` + "\n" + `{"timestamp":5,"hash_ids":[1,2,4]}` + "\n"
	if err := os.WriteFile(trace, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	rows := benchRows(t, "index", "--trace", trace, "--goals=G1", "--memberships=20000", "--runs=1")
	wantGoals(t, rows, "G1")
}

func TestBenchIndexPrintsEachGoal(t *testing.T) {
	args := append([]string{"index", "--short", "--memberships=20000", "--runs=1", "--duration=10ms"}, tinyCorpus...)
	wantGoals(t, benchRows(t, args...), bench.IndexGoals...)
}

func TestBenchServePrintsEachGoal(t *testing.T) {
	t.Setenv(asProgram, "1")
	args := append([]string{
		"serve", "--runs=1", "--duration=60ms", "--rate=200", "--events=20000",
		"--blocks=4000", "--publishers=3", "--idle-publishers=3",
	}, tinyCorpus...)
	rows := benchRows(t, args...)
	wantGoals(t, rows, serve.Goals...)
	for _, row := range rows["G6"] {
		if row.Detail["failed"] != 0 {
			t.Errorf("%s: %v lookups failed", row.Name, row.Detail["failed"])
		}
	}
	for _, row := range rows["G8"] {
		if want := row.Detail["blocks"]; row.Detail["memberships"] != want {
			t.Errorf("%s: %v memberships after recovery, want %v", row.Name, row.Detail["memberships"], want)
		}
	}
}

func TestBenchGatewayPrintsEachGoal(t *testing.T) {
	t.Setenv(asProgram, "1")
	trace := filepath.Join(t.TempDir(), "tiny.jsonl")
	lines := `{"timestamp":0,"input_length":6000,"output_length":20,"hash_ids":[1,2,3,4,5,6,7,8,9,10,11,12]}` + "\n" +
		`{"timestamp":4000,"input_length":6000,"output_length":20,"hash_ids":[1,2,3,4,5,6,7,8,9,10,11,13]}` + "\n"
	if err := os.WriteFile(trace, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	rows := benchRows(t, "gateway", "--runs=1", "--duration=60ms", "--rate=50", "--seeds=0", "--engines=2",
		"--idle-replicas=3", "--trace", trace)
	wantGoals(t, rows, "cost", "G9", "G10")
	for _, row := range slices.Concat(rows["cost"], rows["G10"]) {
		if row.Detail["failed"] != 0 {
			t.Errorf("%s: %v requests failed", row.Name, row.Detail["failed"])
		}
	}
	for _, row := range rows["G9"] {
		if row.Name == "tiny, low load: tokens reused" && (row.Value != 1 || row.Detail["reused"] == 0) {
			t.Errorf("what the second request shares with the first was not reused: %+v", row)
		}
	}
}

func TestBenchGatewayComparesPeers(t *testing.T) {
	t.Setenv(asProgram, "1")
	var stdout, stderr strings.Builder
	c := &cli{stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr}
	args := []string{"bench", "gateway", "--goals=peers", "--duration=300ms", "--peers=" + t.TempDir()}
	if code := c.run(t.Context(), args); code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	for _, want := range []string{`"peer":"smg"`, `"skipped":"not installed in `, `"name":"inferencecache up: tokens reused"`} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("no %s in %s", want, stdout.String())
		}
	}
}

func TestBenchUsage(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want int
		says string
	}{
		"an argument":                 {[]string{"index", "extra"}, exitUsage, "extra"},
		"an unknown subcommand":       {[]string{"everything"}, exitUsage, "everything"},
		"an unknown flag":             {[]string{"serve", "--fast"}, exitUsage, "--fast"},
		"a goal of the other command": {[]string{"index", "--goals=G6"}, exitUsage, "expected some of G1,G2"},
		"no goal of the service":      {[]string{"serve", "--goals=G1"}, exitUsage, "expected some of G11,G7"},
		"no goal of the gateway":      {[]string{"gateway", "--goals=G1"}, exitUsage, "expected some of cost,G10"},
		"no engines":                  {[]string{"gateway", "--engines=0"}, exitUsage, "--engines 0"},
		"seeds below none":            {[]string{"gateway", "--seeds=-1"}, exitUsage, "--seeds -1"},
		"a trace without requests":    {[]string{"gateway", "--goals=G9", "--seeds=0", "--trace=bench_test.go"}, exitRuntime, "line 1"},
		"no memberships":              {[]string{"index", "--memberships=0"}, exitUsage, "--memberships 0"},
		"no time":                     {[]string{"serve", "--duration=0s"}, exitUsage, "--duration 0s"},
		"no lookups":                  {[]string{"serve", "--rate=-5"}, exitUsage, "--rate -5"},
		"a rate that is no number":    {[]string{"serve", "--rate=fast"}, exitUsage, "--rate"},
		"no requests":                 {[]string{"corpus", "--requests=0"}, exitUsage, "--requests"},
		"a trace that is not there":   {[]string{"index", "--trace=/none"}, exitRuntime, "/none"},
		"a corpus that is not there":  {[]string{"index", "--corpus=/none"}, exitRuntime, "/none"},
		"a corpus that is something":  {[]string{"index", "--corpus=bench_test.go"}, exitRuntime, "not a corpus file"},
		"a trace that is no JSON":     {[]string{"corpus", "--trace=bench_test.go"}, exitRuntime, "trace line 1"},
		"a directory to write to":     {[]string{"corpus", "--requests=1", "--out=/"}, exitRuntime, "/"},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr strings.Builder
			c := &cli{stdin: strings.NewReader(""), stdout: io.Discard, stderr: &stderr}
			code := c.run(t.Context(), append([]string{"bench"}, tc.args...))
			if code != tc.want || !strings.Contains(stderr.String(), tc.says) {
				t.Errorf("exit code %d, want %d with %q: %s", code, tc.want, tc.says, stderr.String())
			}
		})
	}
}
