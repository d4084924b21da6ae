// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/inferencecache/inference-cache/internal/gateway"
	"github.com/inferencecache/inference-cache/internal/trace"
)

// TestF13DocumentationNamesEverySwitch looks for each flag, the header, the
// trust rule and what predictions are, where operators look.
func TestF13DocumentationNamesEverySwitch(t *testing.T) {
	page, err := os.ReadFile("../../docs/tracing.md")
	if err != nil {
		t.Fatal(err)
	}
	places := map[string]string{"docs/tracing.md": string(page)}
	for _, command := range []string{"gateway", "up"} {
		var help bytes.Buffer
		c := &cli{stdout: &help, stderr: io.Discard}
		if code := c.run(t.Context(), []string{command, "--help"}); code != exitOK {
			t.Fatalf("%s --help: code %d", command, code)
		}
		places[command+" --help"] = help.String()
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	(&traceOptions{}).addFlags(flags)
	for place, text := range places {
		words := strings.Join(strings.Fields(text), " ")
		flags.VisitAll(func(flag *pflag.Flag) {
			if !strings.Contains(words, "--"+flag.Name) {
				t.Errorf("%s does not name --%s", place, flag.Name)
			}
		})
		for _, part := range []string{"x-inference-cache-trace", "x-smg-cache-trace", "Predictions are not hits", "root_id", "trusted", "engine ids and policy predictions"} {
			if !strings.Contains(words, part) {
				t.Errorf("%s does not say %q", place, part)
			}
		}
	}
	for _, name := range []string{envSMGTrace, envSMGHeader} {
		if !strings.Contains(string(page), name) {
			t.Errorf("docs/tracing.md does not name %s", name)
		}
	}
}

// parsed returns the options of a command line and an environment.
func parsed(t *testing.T, environment map[string]string, arguments ...string) (*traceOptions, string, error) {
	t.Helper()
	o := &traceOptions{}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.addFlags(flags)
	if err := flags.Parse(arguments); err != nil {
		return o, "", err
	}
	var logs bytes.Buffer
	lookup := func(name string) (string, bool) { value, ok := environment[name]; return value, ok }
	err := o.fromEnvironment(flags, lookup, slog.New(slog.NewTextHandler(&logs, nil)))
	return o, logs.String(), err
}

func TestTraceSwitchesFromFlagsAndEnvironment(t *testing.T) {
	tests := map[string]struct {
		environment map[string]string
		arguments   []string
		wantLog     bool
		wantHeader  trace.HeaderMode
		wantSample  int
		wantSays    string
		wantErr     bool
	}{
		"nothing":                            {},
		"the log":                            {arguments: []string{"--cache-trace"}, wantLog: true},
		"the header alone":                   {arguments: []string{"--cache-trace-header"}, wantHeader: trace.HeaderTrusted},
		"the header for all":                 {arguments: []string{"--cache-trace-header=any"}, wantHeader: trace.HeaderAny},
		"the header off":                     {arguments: []string{"--cache-trace-header=off"}, wantHeader: trace.HeaderOff},
		"a header for some":                  {arguments: []string{"--cache-trace-header=some"}, wantErr: true},
		"a sample":                           {arguments: []string{"--cache-trace-sample=100"}, wantSample: 100},
		"a sample of nothing":                {arguments: []string{"--cache-trace-sample=0"}, wantSample: 1},
		"a sample that is no number":         {arguments: []string{"--cache-trace-sample=x"}, wantSample: 1},
		"our environment":                    {environment: map[string]string{"INFERENCE_CACHE_CACHE_TRACE": "true", "INFERENCE_CACHE_CACHE_TRACE_HEADER": "any"}, wantLog: true, wantHeader: trace.HeaderAny},
		"a flag wins":                        {environment: map[string]string{"INFERENCE_CACHE_CACHE_TRACE": "true"}, arguments: []string{"--cache-trace=false"}},
		"an environment that is no switch":   {environment: map[string]string{"INFERENCE_CACHE_CACHE_TRACE": "maybe"}, wantErr: true},
		"another gateway's log":              {environment: map[string]string{envSMGTrace: "1"}, wantLog: true, wantSays: envSMGTrace},
		"another gateway's header":           {environment: map[string]string{envSMGTrace: "1", envSMGHeader: "1"}, wantLog: true, wantHeader: trace.HeaderTrusted, wantSays: envSMGHeader},
		"its header without its log":         {environment: map[string]string{envSMGHeader: "1"}},
		"another value than 1":               {environment: map[string]string{envSMGTrace: "true", envSMGHeader: "1"}},
		"a flag wins over another gateway's": {environment: map[string]string{envSMGTrace: "1", envSMGHeader: "1"}, arguments: []string{"--cache-trace-header=any"}, wantLog: true, wantHeader: trace.HeaderAny, wantSays: envSMGTrace},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o, logs, err := parsed(t, tc.environment, tc.arguments...)
			if (err != nil) != tc.wantErr {
				t.Fatalf("error %v, want one: %v", err, tc.wantErr)
			}
			if tc.wantErr {
				return
			}
			if s := o.switches; s.Log != tc.wantLog || s.Header != tc.wantHeader || s.Sample != tc.wantSample {
				t.Errorf("log %v, header %q, sample %d", s.Log, s.Header, s.Sample)
			}
			if !strings.Contains(logs, tc.wantSays) || tc.wantSays == "" && logs != "" {
				t.Errorf("logs %q, want %q", logs, tc.wantSays)
			}
		})
	}
}

func TestGatewayCommandRefusesWrongTraceFlags(t *testing.T) {
	for flag, want := range map[string]string{
		"--cache-trace-max-header-bytes=4097": "expected 1 to 4096",
		"--cache-trace-replica-names=short":   "expected full, hash or none",
		"--cache-trace-header-name=x-mine":    "header name",
		"--cache-trace-file=/none/trace":      "open trace file",
		"--access-log=/none/access":           "--access-log: open",
		"--otlp-endpoint=127.0.0.1:4318":      "expected http://host:port",
	} {
		var stderr bytes.Buffer
		c := &cli{stdout: io.Discard, stderr: &stderr}
		if code := c.run(t.Context(), []string{"gateway", "--listen", "127.0.0.1:0", flag}); code != exitUsage || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: code %d, %s", flag, code, stderr.String())
		}
	}
}

// explainable is a gateway that has served one request.
func explainable(t *testing.T, access gateway.Access) (admin string) {
	t.Helper()
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/completions" {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"usage":{"prompt_tokens":8,"prompt_tokens_details":{"cached_tokens":0}}}`)
		}
	}))
	t.Cleanup(engine.Close)
	g, err := gateway.New(gateway.Options{
		AdminListen: "127.0.0.1:0", Access: access, Tokenizer: gateway.TokenizeNone,
		Replicas: []gateway.Replica{{ID: "pod-a", URL: engine.URL, Models: []string{"m"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	if err := g.AwaitReplicas(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	request, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+g.Addresses().Data.String()+"/v1/completions",
		strings.NewReader(`{"model":"m","prompt":"x"}`))
	request.Header.Set("X-Request-Id", "root-1")
	client := &http.Client{Transport: &http.Transport{}}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	client.CloseIdleConnections()
	return g.Addresses().Admin.String()
}

func TestExplainCommand(t *testing.T) {
	admin := explainable(t, gateway.Access{})
	tests := map[string]struct {
		arguments []string
		wantCode  int
		want      string
	}{
		"the latest":            {[]string{"--last"}, exitOK, "root-1  "},
		"the latest few":        {[]string{"--last", "5"}, exitOK, "  chose     pod-a  attempt 0, "},
		"the latest few, tight": {[]string{"--last=5"}, exitOK, "  so        not_asked: nobody was asked: single_candidate"},
		"nothing said":          {nil, exitOK, "* pod-a"},
		"by id":                 {[]string{"--id", "root-1"}, exitOK, "why       it was the only one"},
		"an unknown id":         {[]string{"--id", "root-2"}, exitRuntime, `remembers no request "root-2"`},
		"a number that is none": {[]string{"--last", "x"}, exitUsage, `--last "x"`},
		"too many":              {[]string{"--last=2000"}, exitUsage, "from 1 to 1024"},
		"another output":        {[]string{"-o", "yaml"}, exitUsage, "expected text or json"},
		"something else":        {[]string{"root-1"}, exitUsage, "takes no arguments"},
		"nobody there":          {[]string{"--admin", "127.0.0.1:1"}, exitRuntime, "no gateway answers on 127.0.0.1:1"},
		"no address":            {[]string{"--admin", "ftp://x"}, exitUsage, "expected host:port"},
		"a missing token":       {[]string{"--admin-token-file", "/none"}, exitUsage, "--admin-token-file"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			c := &cli{stdout: &out, stderr: &out}
			code := c.run(t.Context(), append([]string{"explain", "--admin", admin}, tc.arguments...))
			if code != tc.wantCode || !strings.Contains(out.String(), tc.want) {
				t.Errorf("code %d, want %d; output %s", code, tc.wantCode, out.String())
			}
		})
	}
	var out bytes.Buffer
	c := &cli{stdout: &out, stderr: io.Discard}
	if code := c.run(t.Context(), []string{"explain", "--admin", "http://" + admin, "-o", "json"}); code != exitOK {
		t.Fatalf("code %d", code)
	}
	var answer struct {
		Requests []struct {
			Cause   string
			Because string
			Records []trace.Record
		}
	}
	if err := json.Unmarshal(out.Bytes(), &answer); err != nil || answer.Requests[0].Cause != "not_asked" || answer.Requests[0].Records[0].RootID != "root-1" {
		t.Errorf("%v: %s", err, out.String())
	}
}

func TestExplainCommandShowsItsToken(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("sixteen-bytes-at-least\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	admin := explainable(t, gateway.Access{AdminTokenFile: token})
	for _, tc := range []struct {
		arguments []string
		wantCode  int
		want      string
	}{
		{nil, exitRuntime, "status 401: the admin token is required"},
		{[]string{"--admin-token-file", token}, exitOK, "pod-a"},
	} {
		var out bytes.Buffer
		c := &cli{stdout: &out, stderr: &out}
		code := c.run(t.Context(), append([]string{"explain", "--admin", admin}, tc.arguments...))
		if code != tc.wantCode || !strings.Contains(out.String(), tc.want) {
			t.Errorf("%v: code %d: %s", tc.arguments, code, out.String())
		}
	}
}

// FuzzExplained checks that no answer breaks the command.
func FuzzExplained(f *testing.F) {
	f.Add(200, []byte(`{"gateway_epoch":"e","requests":[[{"schema":1,"kind":"dispatch","root_id":"r"}],[null],[]]}`))
	f.Add(403, []byte(`{"error":{"message":"no"}}`))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		response := &http.Response{StatusCode: status, Body: io.NopCloser(bytes.NewReader(body))}
		answer, err := readExplained(response)
		if err != nil {
			return
		}
		_ = printExplained(io.Discard, answer, "text")
		_ = printExplained(io.Discard, answer, "json")
	})
}
