// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// buildBinary builds the command into a temporary folder.
func buildBinary(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "bin", "inferencecache")
	if output, err := exec.Command("go", "build", "-o", binary, "../../cmd/inferencecache").CombinedOutput(); err != nil {
		t.Fatalf("building: %v\n%s", err, output)
	}
	return binary
}

// The worked example of the README runs as written, apart from its ports.
func TestWorkedExampleOfTheReadme(t *testing.T) {
	for _, tool := range []string{"bash", "curl", "grep"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(readme), "## A worked example")
	_, rest, _ := strings.Cut(section, "```sh\n")
	script, rest, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("the README has no worked example")
	}
	binary := buildBinary(t)
	script = strings.ReplaceAll(script, "up --expose-replica", "up --expose-replica --listen 127.0.0.1:18100 --admin 127.0.0.1:18180 --grpc 127.0.0.1:18190")
	script = strings.NewReplacer("127.0.0.1:8180", "127.0.0.1:18180", "127.0.0.1:8100", "127.0.0.1:18100").Replace(script)

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, "bash", "-c", script)
	command.Dir = filepath.Dir(filepath.Dir(binary))
	// What the script started goes with it, should it not come to its end.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	output, err := command.Output()
	if err != nil {
		t.Fatalf("running the example: %v", err)
	}
	volatile := regexp.MustCompile(`(?i)x-inference-cache-replica: .*\n`)
	clean := func(text string) string {
		return strings.TrimSpace(volatile.ReplaceAllString(strings.ReplaceAll(text, "\r", ""), ""))
	}
	_, want, _ := strings.Cut(rest, "```\n")
	want, _, _ = strings.Cut(want, "```")
	if got := clean(string(output)); got != clean(want) {
		t.Errorf("output:\n%s\nwant:\n%s", got, clean(want))
	}
}
