// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster

import (
	"strings"
	"testing"
	"time"
)

// containers names those of a pod, sidecars last.
func (e *env) containers(pod string) string {
	e.t.Helper()
	return strings.TrimSpace(e.kubectl("get", "pod", pod, "-o", "jsonpath={.spec.containers[*].name} {.spec.initContainers[*].name}"))
}

// incarnations are the ids and restarts of all containers of pods.
func (e *env) incarnations(pods ...string) string {
	e.t.Helper()
	return e.kubectl(append([]string{"get", "pod", "-o",
		`go-template={{range .items}}{{.metadata.uid}}{{range .status.containerStatuses}} {{.containerID}}{{end}}{{range .status.initContainerStatuses}} {{.containerID}}{{end}}{{"\n"}}{{end}}`},
		pods...)...)
}

func TestUpgradeRollbackAndUninstallLeaveEnginesAlone(t *testing.T) {
	e := newEnv(t, restricted)
	e.installChart(sharedValues...)
	e.startReaders()
	e.startBackend("sim", 2)
	prompt := longPrompt("upgrade")
	e.prompt("sim-0", prompt)
	e.matched(prompt, "sim-0")
	e.apply(strings.Replace(policyYAML, "minimumMatchedTokens: 128", "minimumMatchedTokens: 100000", 1))
	e.programmed("default", 2)
	before := e.incarnations("sim-0", "sim-1")
	e.startLookups("loop", prompt)

	helm := func(args ...string) time.Duration {
		t.Helper()
		started := time.Now()
		if _, err := e.node.Helm(t.Context(), append(args, "-n", installed, "--wait", "--timeout=3m")...); err != nil {
			t.Fatal(err)
		}
		return time.Since(started)
	}
	stop := e.createPods("sim")
	upgraded := helm(append([]string{"upgrade", "inference-cache", chart, "--set=server.logLevel=debug", "--set=controller.logLevel=debug",
		"--set=injection.sidecarMode=native", "--set=server.resources.requests.memory=200Mi"}, sharedValues...)...)
	e.programmed("default", 2)
	rolledBack := helm("rollback", "inference-cache", "1")
	e.programmed("default", 2)
	admitted, got := stop(), summarize(e.lookups("loop"))
	t.Logf("upgraded in %s, rolled back in %s; %s; %s", upgraded.Round(time.Second), rolledBack.Round(time.Second), admitted, got)
	if len(got.failed) > 0 || got.reasons["PREFIX_MATCH"] > 0 {
		t.Errorf("lookups went without the policy, or failed: %s", got)
	}
	if len(admitted.failed) > 0 || admitted.uninjected > 0 {
		t.Errorf("pods were refused or went without a publisher: %s", admitted)
	}
	e.kubectl("delete", "cachepolicy", "default")
	e.matched(prompt, "sim-0")

	if _, err := e.node.Helm(t.Context(), "uninstall", "inference-cache", "-n", installed, "--wait"); err != nil {
		t.Fatal(err)
	}
	if after := e.incarnations("sim-0", "sim-1"); after != before {
		t.Errorf("engines were\n%s and are\n%s", before, after)
	}
	e.apply(enginePod("later", "sim"))
	e.waitFor("pod/later", "Ready")
	if got := e.containers("later"); got != "vllm" {
		t.Errorf("a pod after the uninstallation has the containers %s", got)
	}
	for _, kind := range []string{"mutatingwebhookconfigurations", "validatingwebhookconfigurations", "validatingadmissionpolicies"} {
		if left := e.kubectl("get", kind, "-o", "name"); strings.Contains(left, "inference-cache") {
			t.Errorf("left behind: %s", left)
		}
	}
	if left := strings.Fields(e.kubectl("get", "cachebackend", "-o", "name")); len(left) != 1 {
		t.Errorf("of one backend are left %v", left)
	}

	helm(append([]string{"install", "inference-cache", chart}, sharedValues...)...)
	started := time.Now()
	e.eventually("a hint of publishers that outlived the release", func() error {
		answer, err := e.lookup("client", e.asked(prompt)...)
		if err == nil {
			err = isMatch(answer, "sim-0")
		}
		return err
	})
	t.Logf("known again %s after another installation was ready", time.Since(started).Round(100*time.Millisecond))
}
