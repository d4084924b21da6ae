// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// publisherArgs name an engine and a server that are not there.
func publisherArgs(command string, more ...string) []string {
	return append([]string{
		command, "--server", "127.0.0.1:1", "--replica-id", "pod", "--model-id", "m",
		"--engine-endpoint", "tcp://127.0.0.1:1", "--metrics-bind-address", "127.0.0.1:0",
	}, more...)
}

func TestPublisherEndsWithASignal(t *testing.T) {
	cases := map[string][]string{
		"under its name":             publisherArgs("publisher"),
		"under its other name":       publisherArgs("kvevent-subscriber"),
		"with wrong options":         publisherArgs("publisher", "--no-exit", "--engine-endpoint", "nowhere"),
		"with a flag it cannot use":  publisherArgs("publisher", "--no-exit", "--on-gap", "ignore"),
		"with a flag of a newer one": publisherArgs("kvevent-subscriber", "--flag-to-come=1", "--no-exit"),
		"with a flag it cannot read": publisherArgs("publisher", "--data-parallel-ranks=many", "--no-exit"),
	}
	for name, args := range cases {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			logs, writer := io.Pipe()
			c := &cli{stdout: io.Discard, stderr: writer}
			done := make(chan int, 1)
			go func() {
				done <- c.run(ctx, args)
				_ = writer.Close()
			}()
			// The first line is logged once it runs.
			if _, err := logs.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			go func() { _, _ = io.Copy(io.Discard, logs) }()
			cancel()
			select {
			case code := <-done:
				if code != exitOK {
					t.Errorf("exit code %d, want %d", code, exitOK)
				}
			case <-time.After(20 * time.Second):
				t.Fatal("still running after its context ended")
			}
		})
	}
}

func TestPublisherSaysOnReadyzWhichFlagItCannotUse(t *testing.T) {
	for name, bad := range map[string]string{"unknown": "--flag-to-come=1", "not a number": "--data-parallel-ranks=many"} {
		t.Run(name, func(t *testing.T) {
			logs, writer := io.Pipe()
			c := &cli{stdout: io.Discard, stderr: writer}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan int, 1)
			go func() {
				// As injected: what says where HTTP is comes behind the bad flag.
				done <- c.run(ctx, append([]string{"kvevent-subscriber", bad}, publisherArgs("publisher", "--no-exit")[1:]...))
				_ = writer.Close()
			}()
			address := ""
			for lines := bufio.NewScanner(logs); address == "" && lines.Scan(); {
				var line struct{ HTTP string }
				if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
					t.Fatalf("%v in %q", err, lines.Text())
				}
				address = line.HTTP
			}
			go func() { _, _ = io.Copy(io.Discard, logs) }()
			for path, want := range map[string]int{"/livez": http.StatusOK, "/readyz": http.StatusServiceUnavailable} {
				response, err := http.Get("http://" + address + path)
				if err != nil {
					t.Fatal(err)
				}
				text, _ := io.ReadAll(response.Body)
				_ = response.Body.Close()
				flag, _, _ := strings.Cut(bad, "=")
				if response.StatusCode != want || path == "/readyz" && !strings.Contains(string(text), flag) {
					t.Errorf("%s: %d %q, want %d and the flag named where it is not ready", path, response.StatusCode, text, want)
				}
			}
			cancel()
			if code := <-done; code != exitOK {
				t.Errorf("exit code %d, want %d", code, exitOK)
			}
		})
	}
}

func TestPublisherRefusesFlags(t *testing.T) {
	cases := map[string]struct {
		args []string
		want string
	}{
		"a socket it does not know":   {publisherArgs("publisher", "--engine-socket", "listen"), "expected connect or bind"},
		"a gap policy it does not":    {publisherArgs("publisher", "--on-gap", "ignore"), "expected suspect, reset or keep"},
		"an identity policy":          {publisherArgs("publisher", "--hidden-identity", "x"), "expected count or withdraw"},
		"an adapter without a number": {publisherArgs("publisher", "--lora-adapter-names", "sql"), "expected ID=NAME"},
		"no server":                   {[]string{"publisher", "--replica-id", "pod"}, "no server is given"},
		"an endpoint without scheme":  {publisherArgs("publisher", "--engine-endpoint", "h:1"), "tcp://host:port or ipc://path expected"},
		"a flag of a newer one":       {publisherArgs("publisher", "--flag-to-come=1"), "unknown flag: --flag-to-come"},
		"arguments":                   {publisherArgs("publisher", "engine"), "takes no arguments"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var stderr strings.Builder
			c := &cli{stdout: io.Discard, stderr: &stderr}
			if code := c.run(t.Context(), tc.args); code != exitUsage {
				t.Errorf("exit code %d, want %d", code, exitUsage)
			}
			if !strings.Contains(stderr.String(), tc.want) {
				t.Errorf("no %q in %q", tc.want, stderr.String())
			}
		})
	}
}
