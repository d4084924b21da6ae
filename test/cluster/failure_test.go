// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster

import (
	"os"
	"path/filepath"
	"strings"
)

// keepDir is where the records of failed tests go: $IC_CLUSTER_FAILURES, or
// bin/cluster-failures of the repository.
func keepDir() string {
	if dir := os.Getenv("IC_CLUSTER_FAILURES"); dir != "" {
		return dir
	}
	return filepath.Join(root, "bin", "cluster-failures")
}

// keep records a namespace of a failed test: objects, events, logs of all
// containers, and the logs of the cluster's own parts.
func (e *env) keep(namespace string) {
	dir := filepath.Join(keepDir(), strings.ReplaceAll(e.t.Name(), "/", "_"), namespace)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		e.t.Log(err)
		return
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			e.t.Log(err)
		}
	}
	in := func(args ...string) string { return e.afterwards(append([]string{"-n", namespace}, args...)...) }
	write("events.txt", in("get", "events", "--sort-by=.lastTimestamp"))
	write("pods.yaml", in("get", "pods", "-o", "yaml"))
	write("objects.yaml", in("get", "deployments,replicasets,jobs,services,endpointslices,configmaps", "-o", "yaml"))
	for resource := range strings.FieldsSeq(e.afterwards("api-resources", "--api-group=inferencecache.io", "--namespaced", "-o", "name")) {
		write(resource+".yaml", in("get", resource, "-o", "yaml"))
	}
	for pod := range strings.FieldsSeq(in("get", "pods", "-o", "name")) {
		name := filepath.Base(pod)
		write(name+".log", in("logs", pod, "--all-containers", "--prefix", "--timestamps", "--ignore-errors"))
		if restarts := in("get", pod, "-o", "jsonpath={.status.containerStatuses[*].restartCount}{.status.initContainerStatuses[*].restartCount}"); strings.Trim(restarts, "0 ") != "" {
			write(name+".previous.log", in("logs", pod, "--all-containers", "--prefix", "--timestamps", "--previous", "--ignore-errors"))
		}
	}
	write("cluster.txt", e.node.Logs())
	for _, file := range e.node.LogFiles() {
		if text, err := os.ReadFile(file); err == nil {
			write(filepath.Base(file), string(text))
		}
	}
	e.t.Logf("what there was in %s is kept in %s", namespace, dir)
}
