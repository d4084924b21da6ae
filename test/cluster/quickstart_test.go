// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// quickStart returns the commands of the README's quick start on Kubernetes.
func quickStart(t *testing.T) string {
	t.Helper()
	readme, err := os.ReadFile(root + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(readme), "\n## Quick start on Kubernetes\n")
	_, rest, _ := strings.Cut(section, "```sh\n")
	script, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("the README has no quick start on Kubernetes")
	}
	return script
}

// shell runs a script at the root of the repository with the cluster's kubectl
// and helm until a command fails, and returns what they print.
func (e *env) shell(script string, bound time.Duration) (string, error) {
	e.t.Helper()
	programs := e.t.TempDir()
	for name, path := range map[string]string{"kubectl": e.node.Programs.Kubectl, "helm": e.node.Programs.Helm} {
		if err := os.Symlink(path, filepath.Join(programs, name)); err != nil {
			e.t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(e.t.Context(), bound)
	defer cancel()
	command := exec.CommandContext(ctx, "bash", "-e", "-c", script)
	command.Dir = root
	command.Env = append(os.Environ(), "KUBECONFIG="+e.node.Kubeconfig, "PATH="+programs+":"+os.Getenv("PATH"))
	// What the script started goes with it, should it not come to its end.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.WaitDelay = 5 * time.Second
	output, err := command.CombinedOutput()
	return string(output), err
}

func TestQuickStartOfTheReadme(t *testing.T) {
	e := newEnv(t)
	e.withoutRelease()
	t.Cleanup(func() {
		if t.Failed() {
			e.keep("demo")
		}
		e.afterwards("delete", "namespace", "demo", "--ignore-not-found", "--timeout=60s")
	})
	script := quickStart(t)
	started := time.Now()
	output, err := e.shell(script, 5*time.Minute)
	took := time.Since(started)
	t.Logf("from a bare cluster to the last answer in %s:\n%s", took.Round(100*time.Millisecond), output)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(output, "curl:") {
		t.Error("curl complains on the way")
	}
	lines := strings.Split(strings.TrimSpace(strings.ReplaceAll(output, "\r", "")), "\n")
	last := strings.Join(lines[max(0, len(lines)-2):], "\n")
	if !strings.Contains(last, "code=PREFIX_MATCH") || !strings.Contains(last, "Replica: chat-") {
		t.Errorf("the last answer is\n%s", last)
	}
}
