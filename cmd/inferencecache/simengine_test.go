// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// startSimEngine runs the command until its stdin or context ends.
func startSimEngine(t *testing.T, ctx context.Context, stdin io.Reader) (simEngineAddresses, <-chan int) {
	t.Helper()
	stdout, stdoutWriter := io.Pipe()
	c := &cli{stdin: stdin, stdout: stdoutWriter, stderr: io.Discard}
	done := make(chan int, 1)
	go func() {
		done <- c.run(ctx, []string{
			"sim-engine", "--listen", "127.0.0.1:0", "--events", "tcp://127.0.0.1:*", "--replay", "tcp://127.0.0.1:*",
			"--print-addresses", "--exit-with-stdin", "--decode-step", "1ms",
		})
		_ = stdoutWriter.Close()
	}()
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var addresses simEngineAddresses
	if err := json.Unmarshal(line, &addresses); err != nil {
		t.Fatal(err)
	}
	return addresses, done
}

func TestSimEngineEnds(t *testing.T) {
	cases := map[string]func(closeStdin, cancel func()){
		"with its parent's pipe": func(closeStdin, _ func()) { closeStdin() },
		"with a signal":          func(_, cancel func()) { cancel() },
	}
	for name, end := range cases {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			stdin, stdinWriter := io.Pipe()
			defer stdinWriter.Close()
			addresses, done := startSimEngine(t, ctx, stdin)
			// An open stream must not keep the command alive.
			response, err := http.Post(addresses.HTTP+"/v1/completions", "application/json",
				strings.NewReader(`{"prompt":"hi","max_tokens":60000,"ignore_eos":true,"stream":true}`))
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			end(func() { _ = stdinWriter.Close() }, cancel)
			if code := <-done; code != exitOK {
				t.Errorf("exit code %d, want %d", code, exitOK)
			}
			if rest, _ := io.ReadAll(response.Body); bytes.Contains(rest, []byte("[DONE]")) {
				t.Error("the stream ended as if it were complete")
			}
		})
	}
}

// Three engines of one machine differ in nothing but --listen and --events.
func TestSimEngineReplayFollowsEvents(t *testing.T) {
	cases := map[string]struct {
		arguments  []string
		wantReplay string
	}{
		"nothing said":                {nil, "tcp://*:5657"},
		"an event port":               {[]string{"--events", "tcp://127.0.0.1:15558"}, "tcp://127.0.0.1:15658"},
		"any event port":              {[]string{"--events", "tcp://127.0.0.1:*"}, "tcp://127.0.0.1:*"},
		"no port left above":          {[]string{"--events", "tcp://127.0.0.1:65500"}, "tcp://*:5657"},
		"a Unix socket":               {[]string{"--events", "ipc:///tmp/events"}, "tcp://*:5657"},
		"the events of a subscriber":  {[]string{"--events", "tcp://127.0.0.1:7000", "--events-connect"}, "tcp://*:5657"},
		"a replay socket of its own":  {[]string{"--events", "tcp://127.0.0.1:15558", "--replay", "none"}, "none"},
		"a replay socket at no event": {[]string{"--events", "none"}, "tcp://*:5657"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			options := &simEngineOptions{}
			flags := pflag.NewFlagSet("sim-engine", pflag.ContinueOnError)
			options.addFlags(flags)
			if err := flags.Parse(tc.arguments); err != nil {
				t.Fatal(err)
			}
			if got := options.engineConfig().Events.Replay; got != tc.wantReplay {
				t.Errorf("replay at %q, want %q", got, tc.wantReplay)
			}
		})
	}
}

// What injection adds to an engine is what a simulated one takes.
func TestSimEngineTakesTheFlagOfEngines(t *testing.T) {
	cases := map[string]struct {
		runtime, value                string
		wantEvents, wantReplay, topic string
		wantConnect                   bool
	}{
		"loopback": {"vllm", `{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://127.0.0.1:5557","replay_endpoint":"tcp://127.0.0.1:5600","topic":"kv-events"}`,
			"tcp://127.0.0.1:5557", "tcp://127.0.0.1:5600", "kv-events", true},
		"wildcard":             {"vllm", `{"enable_kv_cache_events":true,"endpoint":"tcp://*:7000"}`, "tcp://*:7000", "none", "", false},
		"defaults":             {"vllm", `{"enable_kv_cache_events":true}`, "tcp://*:5557", "none", "", false},
		"off":                  {"vllm", `{"publisher":"zmq"}`, "none", "none", "", false},
		"of SGLang":            {"sglang", `{"publisher":"zmq","endpoint":"tcp://0.0.0.0:7000"}`, "tcp://0.0.0.0:7000", "none", "", false},
		"of SGLang, connected": {"sglang", `{"publisher":"zmq","endpoint":"tcp://127.0.0.1:7000"}`, "tcp://127.0.0.1:7000", "none", "", true},
		"of SGLang, off":       {"sglang", `{"endpoint":"tcp://*:7000"}`, "none", "none", "", false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			options := &simEngineOptions{}
			flags := pflag.NewFlagSet("sim-engine", pflag.ContinueOnError)
			options.addFlags(flags)
			if err := flags.Parse([]string{"--runtime", tc.runtime, "--kv-events-config", tc.value}); err != nil {
				t.Fatal(err)
			}
			if err := options.applyEventsConfig(); err != nil {
				t.Fatal(err)
			}
			got := options.engineConfig().Events
			if options.events != tc.wantEvents || got.Replay != tc.wantReplay || got.Topic != tc.topic || got.Connect != tc.wantConnect {
				t.Errorf("events %q, replay %q, topic %q, connect %t; want %+v", options.events, got.Replay, got.Topic, got.Connect, tc)
			}
		})
	}
}

func TestSimEngineUsage(t *testing.T) {
	cases := map[string][]string{
		"an unknown runtime":     {"--runtime", "other"},
		"an unknown event shape": {"--event-shape", "other"},
		"an argument":            {"argument"},
		"no JSON":                {"--kv-events-config", "on"},
		"an unknown publisher":   {"--kv-events-config", `{"publisher":"kafka"}`},
		"an unknown setting":     {"--kv-events-config", `{"port":1}`},
		"a transfer of no JSON":  {"--kv-transfer-config", "on"},
		"a nameless transfer":    {"--kv-transfer-config", `{"kv_role":"kv_both"}`},
	}
	for name, arguments := range cases {
		t.Run(name, func(t *testing.T) {
			var stderr bytes.Buffer
			c := &cli{stdin: strings.NewReader(""), stdout: io.Discard, stderr: &stderr}
			if code := c.run(t.Context(), append([]string{"sim-engine"}, arguments...)); code != exitUsage {
				t.Errorf("exit code %d, want %d: %s", code, exitUsage, &stderr)
			}
		})
	}
}
