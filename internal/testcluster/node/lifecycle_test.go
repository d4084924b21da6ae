// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package node_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/testcluster"
	"github.com/inferencecache/inference-cache/internal/testcluster/node"
)

const pod = `
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - {name: tool, image: "` + node.ToolImage + `", imagePullPolicy: Never, args: [serve, ":8000"], ports: [{containerPort: 8000, hostPort: 18099}]}
`

// alone waits for the machine's cluster, and skips where none can run or one is
// kept.
func alone(t *testing.T) {
	t.Helper()
	err := node.Check(node.Options{})
	if errors.Is(err, node.ErrUnavailable) || errors.Is(err, testcluster.ErrNodeNotBuilt) {
		if os.Getenv("CI") != "true" {
			t.Skip(err)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	release, err := node.Use(t.Context(), "", t.Output())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	if running, err := node.Open(node.Options{}); err == nil && running.Kept {
		t.Skip("a cluster that is to be kept runs: make cluster-down first")
	}
}

func start(t *testing.T) *node.Node {
	t.Helper()
	n, err := node.Start(t.Context(), node.Options{Output: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(n.Logs())
		}
		if err := n.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	kubectl(t, n, "", "wait", "--for=create", "--timeout=60s", "serviceaccount/default")
	kubectl(t, n, pod, "apply", "-f", "-")
	kubectl(t, n, "", "wait", "--for=condition=Ready", "--timeout=120s", "pod/web")
	return n
}

func kubectl(t *testing.T, n *node.Node, input string, args ...string) string {
	t.Helper()
	output, err := n.Kubectl(t.Context(), input, args...)
	if err != nil {
		t.Fatal(err)
	}
	return output
}

// traces are what a running cluster can be told by, outside its folder.
func traces(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range processes {
		text, _ := os.ReadFile(file)
		if line := strings.ReplaceAll(string(text), "\x00", " "); strings.Contains(line, dir) {
			found["processes"] += line + "\n"
		}
	}
	groups, err := filepath.Glob("/sys/fs/cgroup/*/kubepods")
	if err != nil {
		t.Fatal(err)
	}
	found["cgroups"] = strings.Join(groups, "\n")
	containing := func(text string, words ...string) string {
		var lines []string
		for line := range strings.SplitSeq(text, "\n") {
			for _, word := range words {
				if strings.Contains(line, word) {
					lines = append(lines, line)
					break
				}
			}
		}
		return strings.Join(lines, "\n")
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	found["mounts"] = containing(string(mounts), dir, "/run/netns/cni-")
	links, err := exec.Command("ip", "-o", "link").Output()
	if err != nil {
		t.Fatal(err)
	}
	found["links"] = containing(string(links), "ic-cni0", "veth")
	rules, err := exec.Command("iptables-save").Output()
	if err != nil {
		t.Fatal(err)
	}
	found["rules"] = containing(string(rules), "KUBE-", "ic-cluster")
	for what, text := range found {
		if text == "" {
			delete(found, what)
		}
	}
	return found
}

func forwarding(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestStoppedClusterLeavesNothingBehind(t *testing.T) {
	alone(t)
	if err := node.Stop(t.Context(), node.Options{}); err != nil {
		t.Fatal(err)
	}
	before := forwarding(t)
	n := start(t)
	for _, what := range []string{"processes", "cgroups", "mounts", "links", "rules"} {
		if traces(t, n.Dir)[what] == "" {
			t.Errorf("a running cluster shows no %s", what)
		}
	}
	if _, err := node.Start(t.Context(), node.Options{}); !errors.Is(err, node.ErrRunning) {
		t.Errorf("a second start: %v", err)
	}
	if again, err := node.Open(node.Options{}); err != nil || again.Name != n.Name || !again.Address.Equal(n.Address) {
		t.Errorf("opened %+v, %v", again, err)
	}
	if err := n.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for what, text := range traces(t, n.Dir) {
		t.Errorf("left %s:\n%s", what, text)
	}
	if after := forwarding(t); after != before {
		t.Errorf("ip_forward is %q, was %q", after, before)
	}
	if _, err := node.Open(node.Options{}); !errors.Is(err, node.ErrNotRunning) {
		t.Errorf("opened a stopped cluster: %v", err)
	}
}

func TestKilledClusterIsReplacedAtTheNextStart(t *testing.T) {
	alone(t)
	n := start(t)
	killAll(t, n.Dir)
	if _, err := node.Open(node.Options{}); !errors.Is(err, node.ErrNotRunning) {
		t.Errorf("opened a killed cluster: %v", err)
	}
	again := start(t)
	if names := kubectl(t, again, "", "get", "pods", "-o", "name"); strings.TrimSpace(names) != "pod/web" {
		t.Errorf("pods %q", names)
	}
	killAll(t, again.Dir)
	if err := again.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for what, text := range traces(t, n.Dir) {
		t.Errorf("left %s:\n%s", what, text)
	}
}

// killAll kills the daemons and containerd's shims at once. The pods' own
// processes go on.
func killAll(t *testing.T, dir string) {
	t.Helper()
	var pids []int
	files, err := filepath.Glob(filepath.Join(dir, "run", "*.pid"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no daemons recorded: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var pid int
		if _, err := fmt.Sscan(string(text), &pid); err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range commands {
		text, _ := os.ReadFile(file)
		if strings.Contains(string(text), "containerd-shim") && strings.Contains(string(text), filepath.Join(dir, "containerd.sock")) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Fatal(err)
		}
	}
	ended := func() bool {
		_, err := node.Open(node.Options{})
		return errors.Is(err, node.ErrNotRunning)
	}
	tick, deadline := time.NewTicker(50*time.Millisecond), time.After(10*time.Second)
	defer tick.Stop()
	for !ended() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the daemons live on after SIGKILL")
		}
	}
}
