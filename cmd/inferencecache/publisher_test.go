// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
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
		"under its name":            publisherArgs("publisher"),
		"under its other name":      publisherArgs("kvevent-subscriber"),
		"with wrong options":        publisherArgs("publisher", "--no-exit", "--engine-endpoint", "nowhere"),
		"with a flag it cannot use": publisherArgs("publisher", "--no-exit", "--on-gap", "ignore"),
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
