// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster

import (
	"regexp"
	"strings"
	"testing"
	"time"
)

// publisherImage is the one that works.
const publisherImage = "ic.test/kvevent-subscriber:dev"

// changeRelease upgrades the release that tests share, and puts it back when
// the test ends.
func (e *env) changeRelease(flags ...string) {
	e.t.Helper()
	upgrade := func(flags ...string) []string {
		return append(append([]string{"upgrade", "inference-cache", chart, "-n", installed, "--reset-values", "--wait", "--timeout=3m"}, sharedValues...), flags...)
	}
	e.t.Cleanup(func() {
		if e.t.Failed() {
			return // it is removed
		}
		ctx, cancel := e.later()
		defer cancel()
		if _, err := e.node.Helm(ctx, upgrade()...); err != nil {
			e.t.Error(err)
		}
		e.awaitTermination()
	})
	if _, err := e.node.Helm(e.t.Context(), upgrade(flags...)...); err != nil {
		e.t.Fatal(err)
	}
	e.awaitTermination()
}

// awaitTermination waits for pods of the release that end: until then they may
// wire pods in the way of before.
func (e *env) awaitTermination() {
	e.t.Helper()
	text := e.afterwards("-n", installed, "get", "pods", "-o",
		`go-template={{range .items}}{{if .metadata.deletionTimestamp}}pod/{{.metadata.name}} {{end}}{{end}}`)
	if pods := strings.Fields(text); len(pods) > 0 {
		e.afterwards(append([]string{"-n", installed, "wait", "--for=delete", "--timeout=60s"}, pods...)...)
	}
}

// annotation returns one of a pod's annotations of ours.
func (e *env) annotation(pod, name string) string {
	e.t.Helper()
	return e.kubectl("get", "pod", pod, "-o", `jsonpath={.metadata.annotations.inferencecache\.io/`+name+`}`)
}

// unblocking is the command in a condition's message.
var unblocking = regexp.MustCompile(`to unblock: kubectl (-n \S+ set image pod/\S+ kvevent-subscriber=)IMAGE-THAT-WORKS`)

func TestPublisherWithoutImageHoldsBackTheFirstPodsOnly(t *testing.T) {
	e := newEnv(t, restricted)
	e.shareRelease()
	e.changeRelease("--set=injection.image.repository=ic.test/absent", "--set=injection.image.tag=none")
	e.eventually("the webhook for backends", func() error {
		_, err := e.try(strings.ReplaceAll(backendYAML, "NAME", "held"), "apply", "-f", "-")
		return err
	})
	e.apply(enginePod("first", "held"))
	started := time.Now()
	message := e.condition("cachebackend/held", "InjectionHealthy", "False", "BreakerOpen")
	t.Logf("the breaker opened after %s: %s", time.Since(started).Round(time.Second), message)
	e.eventOn("cachebackend", "held", "SidecarUnavailable")
	e.event("held", "InjectionDegraded")
	if got := e.kubectl("get", "cachebackend", "held", "-o", "jsonpath={.status.injection.breaker.open} {.status.injection.breaker.image}"); got != "true ic.test/absent:none" {
		t.Errorf("the status says of the breaker %q", got)
	}

	e.apply(enginePod("second", "held"))
	e.waitFor("pod/second", "Ready")
	if got := e.annotation("second", "inject-skipped"); got != "breaker-open" {
		t.Errorf("the pod after it was skipped for %q", got)
	}
	e.eventOn("pod", "second", "InjectionSkipped")

	command := unblocking.FindStringSubmatch(message)
	if command == nil {
		t.Fatalf("no command in %q", message)
	}
	e.kubectl(strings.Fields(command[1] + publisherImage)...)
	e.waitFor("pod/first", "Ready")
}

func TestControllerRepairsThePublisherOfPodsThatWait(t *testing.T) {
	e := newEnv(t, restricted)
	e.shareRelease()
	e.changeRelease("--set=injection.image.repository=ic.test/absent", "--set=injection.image.tag=none")
	e.eventually("the webhook for backends", func() error {
		_, err := e.try(strings.ReplaceAll(backendYAML, "NAME", "held"), "apply", "-f", "-")
		return err
	})
	e.apply(enginePod("first", "held"))
	e.condition("cachebackend/held", "InjectionHealthy", "False", "BreakerOpen", "SidecarUnavailable")
	e.changeRelease("--set=injection.repairSidecarImage=true")
	started := time.Now()
	e.waitFor("pod/first", "Ready")
	t.Logf("repaired %s after the image was set right", time.Since(started).Round(time.Second))
	e.condition("cachebackend/held", "InjectionHealthy", "True", "AllInjected")
	e.eventOn("pod", "first", "SidecarRepaired")
}
