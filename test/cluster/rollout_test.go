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

// inSystem runs kubectl in the namespace of the release.
func (e *env) inSystem(args ...string) string {
	e.t.Helper()
	return e.kubectl(append([]string{"-n", installed}, args...)...)
}

// component names the pods of server or controller that are not being deleted.
func (e *env) component(name string) []string {
	e.t.Helper()
	text := e.inSystem("get", "pods", "-l", "app.kubernetes.io/component="+name, "-o",
		`go-template={{range .items}}{{if not .metadata.deletionTimestamp}}{{.metadata.name}}{{"\n"}}{{end}}{{end}}`)
	return strings.Fields(text)
}

// address is that of a pod of the release.
func (e *env) address(pod string) string {
	e.t.Helper()
	return e.inSystem("get", "pod", pod, "-o", "jsonpath={.status.podIP}")
}

// rollOut waits until a deployment of the release runs as declared, and nothing
// else does.
func (e *env) rollOut(deployment string) {
	e.t.Helper()
	e.inSystem("rollout", "status", "deployment/"+deployment, "--timeout=120s")
}

// knownBy waits until each server by itself knows who holds a prompt.
func (e *env) knownBy(prompt, replica string, pods []string) time.Duration {
	e.t.Helper()
	started := time.Now()
	for _, pod := range pods {
		address := e.address(pod)
		e.eventually("PREFIX_MATCH by "+pod, func() error {
			answer, err := e.lookupAt(address, e.asked(prompt)...)
			if err != nil {
				return err
			}
			return isMatch(answer, replica)
		})
	}
	return time.Since(started)
}

func TestServersAreReplacedUnderLookups(t *testing.T) {
	e := newEnv(t, restricted)
	e.shareRelease()
	e.startReaders()
	e.startBackend("sim", 1)
	prompt := longPrompt("replaced")
	e.prompt("sim-0", prompt)
	t.Logf("known %s after the prompt", e.matched(prompt, "sim-0").Round(10*time.Millisecond))
	e.knownBy(prompt, "sim-0", e.component("server"))
	e.apply(policyYAML)
	e.condition("cachepolicy/default", "Programmed", "True", "Programmed")

	t.Run("all of them, one after the other", func(t *testing.T) {
		e := e.sub(t)
		before := e.component("server")
		e.startLookups("loop", prompt)
		started := time.Now()
		e.inSystem("rollout", "restart", "deployment/inference-cache-server")
		e.rollOut("inference-cache-server")
		took := time.Since(started)
		after := e.component("server")
		complete := e.knownBy(prompt, "sim-0", after)
		got := summarize(e.lookups("loop"))
		e.kubectl("delete", "pod", "loop")
		t.Logf("rolled out in %s, both complete %s later; %s", took.Round(time.Second), complete.Round(10*time.Millisecond), got)
		if len(got.failed) > 0 {
			t.Errorf("failed lookups, such as %+v", got.failed[0])
		}
		for _, pod := range after {
			if strings.Contains(strings.Join(before, " "), pod) {
				t.Errorf("%s was not replaced", pod)
			}
		}
		if got.reasons["PREFIX_MATCH"] != got.count {
			t.Errorf("answers without a match while one server at least was complete: %s", got)
		}
	})

	t.Run("one is lost, and both are programmed and complete again", func(t *testing.T) {
		e := e.sub(t)
		lost := e.component("server")[0]
		started := time.Now()
		e.inSystem("delete", "pod", lost, "--grace-period=0", "--force")
		e.rollOut("inference-cache-server")
		ready := time.Since(started)
		pods := e.component("server")
		e.knownBy(prompt, "sim-0", pods)
		complete := time.Since(started)
		e.programmed("default", 2)
		t.Logf("ready after %s, complete after %s, programmed after %s", ready.Round(100*time.Millisecond), complete.Round(100*time.Millisecond), time.Since(started).Round(100*time.Millisecond))
	})
}

const policyYAML = `
apiVersion: inferencecache.io/v1alpha1
kind: CachePolicy
metadata: {name: default}
spec: {minimumMatchedTokens: 128}
`

// programmed waits until a policy is in force in so many servers.
func (e *env) programmed(policy string, servers int) {
	e.t.Helper()
	e.eventually(fmt.Sprintf("the policy in %d servers", servers), func() error {
		text, err := e.try("", "get", "cachepolicy", policy, "-o", `jsonpath={.status.programmedServers}/{.status.desiredServers} {.status.conditions[?(@.type=="Programmed")].status}`)
		if err == nil && text != fmt.Sprintf("%d/%d True", servers, servers) {
			err = errors.New(text)
		}
		return err
	})
}
