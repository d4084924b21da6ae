// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/sim/demo"
)

func TestDemoUsage(t *testing.T) {
	cases := map[string][]string{
		"no engines":  {"--engines", "0"},
		"no chats":    {"--chats", "0"},
		"no time":     {"--duration", "0s"},
		"an argument": {"argument"},
	}
	for name, arguments := range cases {
		t.Run(name, func(t *testing.T) {
			c := &cli{stdin: strings.NewReader(""), stdout: io.Discard, stderr: io.Discard}
			if code := c.run(t.Context(), append([]string{"demo"}, arguments...)); code != exitUsage {
				t.Errorf("exit code %d, want %d", code, exitUsage)
			}
		})
	}
}

func TestDemoProgress(t *testing.T) {
	states := []demo.Progress{
		{Policy: demo.RoundRobin, Total: 2},
		{Policy: demo.RoundRobin, Total: 2, Done: 1, PromptTokens: 100, ReusedTokens: 50},
		{Policy: demo.CacheAware, Total: 2},
	}
	cases := map[string]struct {
		terminal bool
		want     string
	}{
		"a file gets one line a policy": {false, "round robin: 2 requests\ncache-aware: 2 requests\n"},
		"a terminal sees it move": {
			true, "\rround robin     0 of 2 requests,  0.0 % of the prompt tokens reused " +
				"\rround robin     1 of 2 requests, 50.0 % of the prompt tokens reused " +
				"\n\rcache-aware     0 of 2 requests,  0.0 % of the prompt tokens reused \n\n",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			progress := &demoProgress{out: &out, terminal: tc.terminal}
			for _, state := range states {
				progress.show(state)
			}
			progress.end()
			if diff := cmp.Diff(tc.want, out.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}
