// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// kill ends the processes of a container of a pod at once, and waits until the
// kubelet has started it again. It returns the time since the end.
func (e *env) kill(namespace, pod, container string) time.Duration {
	e.t.Helper()
	id, restarts := e.containerState(namespace, pod, container)
	if id == "" {
		e.t.Fatalf("container %s of %s does not run", container, pod)
	}
	started := time.Now()
	if err := e.node.Signal(e.t.Context(), id, "SIGKILL"); err != nil {
		e.t.Fatal(err)
	}
	e.eventually("another start of "+container+" in "+pod, func() error {
		if again, count := e.containerState(namespace, pod, container); again == "" || count == restarts {
			return errors.New("not started again")
		}
		return nil
	})
	return time.Since(started)
}

// containerState returns the id of a container of a pod and how often it was
// started again; nothing while it does not run.
func (e *env) containerState(namespace, pod, container string) (id, restarts string) {
	e.t.Helper()
	for _, list := range []string{"containerStatuses", "initContainerStatuses"} {
		text := e.kubectl("-n", namespace, "get", "pod", pod, "-o", fmt.Sprintf(
			`jsonpath={range .status.%s[?(@.name=="%s")]}{.containerID} {.restartCount} {.state.running.startedAt}{end}`, list, container))
		if fields := strings.Fields(text); len(fields) == 3 {
			return fields[0], fields[1]
		}
	}
	return "", ""
}

func TestLeaderIsKilledAndAnotherTakesOver(t *testing.T) {
	e := newEnv(t, restricted)
	e.shareRelease()
	e.startReaders()
	e.startBackend("sim", 1)
	prompt := longPrompt("leader")
	e.prompt("sim-0", prompt)
	e.matched(prompt, "sim-0")
	// No match is long enough for this policy: a server without it shows, since
	// it answers PREFIX_MATCH.
	e.apply(strings.Replace(policyYAML, "minimumMatchedTokens: 128", "minimumMatchedTokens: 100000", 1))
	e.programmed("default", 2)
	e.startLookups("loop", prompt)
	before := e.leader()
	started := time.Now()
	e.inSystem("delete", "pod", before, "--grace-period=0", "--force", "--wait=false")
	var after string
	// A lease of 15 s, a retry of up to 4.4 s, and what a busy machine takes.
	e.within(30*time.Second, "another leader", func() error {
		if after = e.leader(); after == before || after == "" {
			return fmt.Errorf("%q leads", after)
		}
		return nil
	})
	took := time.Since(started)
	e.apply(strings.Replace(policyYAML, "minimumMatchedTokens: 128", "minimumMatchedTokens: 99999", 1))
	e.eventually("a change in force", func() error {
		text, err := e.try("", "get", "cachepolicy", "default", "-o", `jsonpath={.metadata.generation} {.status.observedGeneration} {.status.conditions[?(@.type=="Programmed")].status}`)
		if err == nil && text != "2 2 True" {
			err = errors.New(text)
		}
		return err
	})
	e.rollOut("inference-cache-controller-manager")
	got := summarize(e.lookups("loop"))
	t.Logf("%s took over after %s, a change was in force after %s; %s", after, took.Round(100*time.Millisecond), time.Since(started).Round(100*time.Millisecond), got)
	if len(got.failed) > 0 || got.reasons["PREFIX_MATCH"] > 0 {
		t.Errorf("lookups went without the policy, or failed: %s", got)
	}
}

func TestWhatIsKilledRecovers(t *testing.T) {
	e := newEnv(t, restricted)
	e.shareRelease()
	e.startReaders()
	e.startBackend("sim", 2)
	prompt := longPrompt("killed")
	e.prompt("sim-0", prompt)
	e.matched(prompt, "sim-0")
	e.condition("cachebackend/sim", "Ready", "True", "KVEventsObserved")
	e.condition("cachebackend/sim", "FunctionalProbeOK", "True", "ProbeOK")

	t.Run("server", func(t *testing.T) {
		e := e.sub(t)
		server := e.component("server")[0]
		started := time.Now()
		running := e.kill(installed, server, "server")
		e.knownBy(prompt, "sim-0", []string{server})
		complete := time.Since(started)
		e.eventually("a ready server", func() error { return e.podReady(installed, server) })
		t.Logf("started again after %s, complete after %s, ready after %s", running.Round(100*time.Millisecond), complete.Round(100*time.Millisecond), time.Since(started).Round(100*time.Millisecond))
	})
	t.Run("controller", func(t *testing.T) {
		e := e.sub(t)
		leader := e.leader()
		started := time.Now()
		running := e.kill(installed, leader, "manager")
		e.eventually("a ready controller", func() error { return e.podReady(installed, leader) })
		t.Logf("started again after %s, ready after %s", running.Round(100*time.Millisecond), time.Since(started).Round(100*time.Millisecond))
		e.condition("cachebackend/sim", "Ready", "True", "KVEventsObserved")
	})
	t.Run("publisher", func(t *testing.T) {
		e := e.sub(t)
		started := time.Now()
		running := e.kill(e.namespace, "sim-0", "kvevent-subscriber")
		again := longPrompt("after its publisher")
		e.prompt("sim-0", again)
		e.matched(again, "sim-0")
		e.matched(prompt, "sim-0")
		t.Logf("started again after %s, complete after %s", running.Round(100*time.Millisecond), time.Since(started).Round(100*time.Millisecond))
	})
	t.Run("engine", func(t *testing.T) {
		e := e.sub(t)
		started := time.Now()
		running := e.kill(e.namespace, "sim-0", "vllm")
		e.waitFor("pod/sim-0", "Ready")
		again := longPrompt("after its engine")
		e.prompt("sim-0", again)
		e.matched(again, "sim-0")
		answer, err := e.lookup("client", e.asked(prompt)...)
		if err != nil || isMatch(answer, "sim-0") == nil {
			t.Errorf("what the engine held before its end: %v, %v", answer, err)
		}
		t.Logf("started again after %s, known with its new cache after %s", running.Round(100*time.Millisecond), time.Since(started).Round(100*time.Millisecond))
	})
	t.Run("an engine's pod", func(t *testing.T) {
		e := e.sub(t)
		mine := longPrompt("pod of the second")
		e.prompt("sim-1", mine)
		e.matched(mine, "sim-1")
		started := time.Now()
		e.kubectl("delete", "pod", "sim-1", "--grace-period=0", "--force")
		e.eventually("forgetting the pod", func() error {
			answer, err := e.lookup("client", e.asked(mine)...)
			if err == nil && isMatch(answer, "sim-1") == nil {
				err = errors.New("still a hint to it")
			}
			return err
		})
		t.Logf("no hint to it after %s", time.Since(started).Round(100*time.Millisecond))
		e.eventually("one matched pod", func() error {
			text, err := e.try("", "get", "cachebackend", "sim", "-o", "jsonpath={.status.matchedEnginePods}")
			if err == nil && text != "1" {
				err = fmt.Errorf("%s pods match", text)
			}
			return err
		})
		// Another takes its name, and starts with an empty cache.
		e.apply(enginePod("sim-1", "sim"))
		e.waitFor("pod/sim-1", "Ready")
		if answer, err := e.lookup("client", e.asked(mine)...); err != nil || isMatch(answer, "sim-1") == nil {
			t.Errorf("what the pod before it held: %v, %v", answer, err)
		}
		e.prompt("sim-1", mine)
		e.matched(mine, "sim-1")
	})
}

// podReady says whether a pod of a namespace is ready.
func (e *env) podReady(namespace, pod string) error {
	status, err := e.try("", "-n", namespace, "get", "pod", pod, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
	if err == nil && status != "True" {
		err = fmt.Errorf("%s is not ready", pod)
	}
	return err
}
