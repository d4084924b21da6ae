// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
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
		"administration for all":  {[]string{"--admin-listen", ":0"}, "expected loopback"},
		"a salt of no kind":       {[]string{"--tenant-salt", "sea"}, "off or derive"},
		"half a certificate":      {[]string{"--tls-cert-file", "x"}, "TLS needs both"},
		"keys that are not there": {[]string{"--api-keys-file", "/none"}, "/none"},
		"a key that is no flag":   {[]string{"key", "add", "--tenant", "a"}, "both are needed"},
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

func TestGatewayKeyAddPrintsTheKeyOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	var stdout, stderr bytes.Buffer
	c := &cli{stdout: &stdout, stderr: &stderr}
	args := []string{"gateway", "key", "add", "--file", file, "--tenant", "team-a", "--limits", "inflight=2"}
	if code := c.run(t.Context(), args); code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	key := strings.TrimSpace(stdout.String())
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(key))
	if want := hex.EncodeToString(sum[:]) + " team-a inflight=2\n"; string(text) != want {
		t.Errorf("file %q, want %q", text, want)
	}
	if strings.Contains(stderr.String(), key) {
		t.Error("the key went to the log")
	}
}
