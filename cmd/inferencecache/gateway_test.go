// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

func TestGatewayCommandRefusesWrongFlags(t *testing.T) {
	tests := map[string]struct {
		args []string
		want string
	}{
		"a replica without an id": {[]string{"--replica", "http://h:1"}, "--replica: "},
		"a replica with a path":   {[]string{"--replica", "a=http://h:1/v1"}, "expected no path"},
		"an unknown policy":       {[]string{"--policy", "best"}, `unknown policy "best"`},
		"an unknown tokenizer":    {[]string{"--tokenizer", "magic"}, `tokenizer "magic"`},
		"a token in the open":     {[]string{"--index", "index.example:9090", "--token-file", "t"}, "a token needs TLS or loopback"},
		"the same by a resolver":  {[]string{"--index", "dns:///index.example:9090", "--token-file", "t"}, "a token needs TLS or loopback"},
		"a missing authority":     {[]string{"--index", "127.0.0.1:9090", "--server-ca-file", "/none"}, "/none"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var stderr bytes.Buffer
			c := &cli{stdout: io.Discard, stderr: &stderr}
			if code := c.run(t.Context(), append([]string{"gateway"}, tc.args...)); code != exitUsage {
				t.Errorf("exit code %d, want %d", code, exitUsage)
			}
			if !strings.Contains(stderr.String(), tc.want) {
				t.Errorf("stderr %q, want it to name %q", stderr.String(), tc.want)
			}
		})
	}
}
