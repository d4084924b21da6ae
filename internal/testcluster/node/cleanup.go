// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	drainTimeout = 60 * time.Second
	// cleanTimeout bounds the end of everything, beyond that of each process.
	cleanTimeout = 3 * time.Minute
)

// workloads are deleted by their kinds before the kubelet stops, so that it
// and the network plugins take down what they set up.
const workloads = "deployments,statefulsets,daemonsets,replicasets,cronjobs,jobs,pods"

// drain deletes all workloads and waits until no pod is left.
func (n *Node) drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	var last error
	if !poll(ctx, func() bool {
		_, err := n.Kubectl(ctx, "", "delete", workloads, "--all", "--all-namespaces", "--grace-period=1", "--wait=false", "--ignore-not-found")
		left, listErr := n.Kubectl(ctx, "", "get", "pods", "--all-namespaces", "-o", "name")
		last = errors.Join(err, listErr)
		return last == nil && strings.TrimSpace(left) == ""
	}) {
		return fmt.Errorf("wait for the end of all pods: %w", errors.Join(ctx.Err(), last))
	}
	return nil
}

// cleanUp ends all processes of a cluster, pods included, and undoes what they
// changed outside the folder. It works from whatever state a cluster is in.
func (n *Node) cleanUp(ctx context.Context) error {
	d := n.folder()
	if _, err := os.Stat(d.path("run")); errors.Is(err, os.ErrNotExist) {
		return nil // nothing was started
	}
	// A clean-up that was begun is completed.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	var errs []error
	stop := func(names ...string) {
		for _, name := range names {
			errs = append(errs, d.halt(ctx, name))
		}
	}
	stop("kube-proxy", "kubelet")
	errs = append(errs, killPods(ctx))
	stop("containerd", "kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd")
	errs = append(errs,
		d.killShims(ctx), unmount(ctx, string(d)), d.removeRuntimeFiles(), removeCgroups(ctx),
		n.removeBridge(ctx), n.cleanTables(ctx), d.restoreSettings(),
	)
	return errors.Join(errs...)
}

// podCgroups are the kubelet's, in each hierarchy.
func podCgroups() []string {
	var found []string
	for _, pattern := range []string{"/sys/fs/cgroup/kubepods", "/sys/fs/cgroup/*/kubepods"} {
		paths, _ := filepath.Glob(pattern) // fails only for a bad pattern
		found = append(found, paths...)
	}
	return found
}

// killPods ends the processes of all pods.
func killPods(ctx context.Context) error {
	var left []int
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	if poll(ctx, func() bool {
		left = podProcesses()
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL) // fails only when it has just ended
		}
		return len(left) == 0
	}) {
		return nil
	}
	return fmt.Errorf("processes of pods do not end: %v", left)
}

func podProcesses() []int {
	var pids []int
	for _, root := range podCgroups() {
		_ = filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
			if err == nil && entry.Name() == "cgroup.procs" {
				text, _ := os.ReadFile(path) // gone with its group
				for field := range strings.FieldsSeq(string(text)) {
					var pid int
					if _, err := fmt.Sscan(field, &pid); err == nil && pid > 1 && !slices.Contains(pids, pid) {
						pids = append(pids, pid)
					}
				}
			}
			return nil
		})
	}
	return pids
}

// removeCgroups removes the empty groups of pods, the innermost first.
func removeCgroups(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	if !poll(ctx, func() bool {
		for _, root := range podCgroups() {
			var groups []string
			_ = filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
				if err == nil && entry.IsDir() {
					groups = append(groups, path)
				}
				return nil
			})
			slices.Reverse(groups)
			for _, group := range groups {
				_ = syscall.Rmdir(group) // busy until its processes are gone
			}
		}
		return len(podCgroups()) == 0
	}) {
		return fmt.Errorf("cgroups of pods stay: %v", podCgroups())
	}
	return nil
}

// killShims ends what containerd left: parents of containers, told by the
// socket they were given.
func (d folder) killShims(ctx context.Context) error {
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	var errs []error
	for _, file := range commands {
		text, _ := os.ReadFile(file) // gone with its process
		words := strings.Split(string(text), "\x00")
		address := slices.Index(words, "-address")
		if !strings.Contains(words[0], "containerd-shim") || address < 0 || address+1 >= len(words) || words[address+1] != d.path("containerd.sock") {
			continue
		}
		var pid int
		if _, err := fmt.Sscan(filepath.Base(filepath.Dir(file)), &pid); err != nil {
			continue
		}
		_, started, err := processStatus(pid)
		if err == nil && !(process{pid: pid, started: started}).ends(ctx, syscall.SIGKILL, killTimeout) {
			errs = append(errs, fmt.Errorf("process %d of containerd does not end", pid))
		}
	}
	return errors.Join(errs...)
}

// mountsUnder returns the mount points in a folder, the latest first.
func mountsUnder(dir string) []string {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	var found []string
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.SplitSeq(string(text), "\n") {
		const mountPoint = 4
		if fields := strings.Fields(line); len(fields) > mountPoint {
			if path := unescape.Replace(fields[mountPoint]); strings.HasPrefix(path, dir+"/") {
				found = append(found, path)
			}
		}
	}
	slices.Reverse(found)
	return found
}

// unmount takes away volumes, root file systems of containers and network
// namespaces.
func unmount(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	if !poll(ctx, func() bool {
		for _, path := range mountsUnder(dir) {
			_ = syscall.Unmount(path, syscall.MNT_DETACH) // repeated, and what is left reported
		}
		return len(mountsUnder(dir)) == 0
	}) {
		return fmt.Errorf("still mounted: %v", mountsUnder(dir))
	}
	return nil
}

// removeRuntimeFiles removes what containerd and the network plugins keep
// elsewhere.
func (d folder) removeRuntimeFiles() error {
	var errs []error
	remove := func(path string) { errs = append(errs, os.RemoveAll(path)) }
	tasks, _ := filepath.Glob(d.path("containerd-run", "io.containerd.runtime.v2.task", "k8s.io", "*"))
	for _, task := range tasks {
		if address, err := os.ReadFile(filepath.Join(task, "address")); err == nil {
			if socket, ok := strings.CutPrefix(string(address), "unix:///run/containerd/s/"); ok {
				remove(filepath.Join("/run/containerd/s", filepath.Base(socket)))
			}
		}
		remove(filepath.Join("/run/containerd/runc/k8s.io", filepath.Base(task)))
	}
	results, _ := filepath.Glob("/var/lib/cni/results/" + network + "-*")
	for _, result := range results {
		remove(result)
	}
	links, _ := filepath.Glob("/var/log/containers/*.log")
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, d.path("pods-log")+"/") {
			remove(link)
		}
	}
	return errors.Join(errs...)
}
