// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// volatile are the values in the examples that differ from run to run.
var volatile = regexp.MustCompile(`"(serverEpoch|startedAt|appliedAt|version)":"[^"]*"`)

// TestControlChannelExamples runs each example of the page against a server
// and compares what it prints.
func TestControlChannelExamples(t *testing.T) {
	for _, tool := range []string{"sh", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the examples need %s", tool)
		}
	}
	page, err := os.ReadFile("../../docs/control-channel.md")
	if err != nil {
		t.Fatal(err)
	}
	address := serveInternal(t, "inferencecache.io/controller reader\ninferencecache.io/policy writer\n")
	examples := regexp.MustCompile("(?s)```sh\n(.*?)```\n\n```text\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(examples) != 5 {
		t.Errorf("%d examples, want 5", len(examples))
	}
	for _, example := range examples {
		command := exec.CommandContext(t.Context(), "sh", "-c", strings.ReplaceAll(example[1], "127.0.0.1:8081", address))
		output, err := command.Output()
		if err != nil {
			t.Fatalf("%s: %v", example[1], err)
		}
		want, got := volatile.ReplaceAllString(example[2], `"$1":""`), volatile.ReplaceAllString(string(output), `"$1":""`)
		if diff := cmp.Diff(strings.TrimSpace(want), strings.TrimSpace(got)); diff != "" {
			t.Errorf("%s(-want +got):\n%s", example[1], diff)
		}
	}
}

// serveInternal runs the server command with a token file until the test ends,
// and returns the address of its internal listener.
func serveInternal(t *testing.T, tokens string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte(tokens), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	logs, stderr := io.Pipe()
	exit := make(chan int, 1)
	go func() {
		c := &cli{stdout: io.Discard, stderr: stderr}
		exit <- c.run(ctx, []string{
			"server", "--grpc-bind-address=127.0.0.1:0", "--http-bind-address=127.0.0.1:0", "--ready-max-wait=0",
			"--snapshot-bind-address=127.0.0.1:0", "--internal-token-file=" + file,
		})
		stderr.Close()
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-exit; code != exitOK {
			t.Errorf("exit code %d, want %d", code, exitOK)
		}
	})
	lines := bufio.NewScanner(logs)
	for lines.Scan() {
		var line struct{ Msg, Internal string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "serving" {
			go io.Copy(io.Discard, logs) //nolint:errcheck // ends with the command
			return line.Internal
		}
	}
	t.Fatal("the server never served")
	return ""
}
