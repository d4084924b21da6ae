// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestPodsStartWithoutTheController(t *testing.T) {
	e := newEnv(t, restricted)
	e.shareRelease()
	e.startBackend("sim", 1)
	e.inSystem("scale", "deployment/inference-cache-controller-manager", "--replicas=0")
	t.Cleanup(func() {
		e.afterwards("-n", installed, "scale", "deployment/inference-cache-controller-manager", "--replicas=2")
		e.afterwards("-n", installed, "rollout", "status", "deployment/inference-cache-controller-manager", "--timeout=120s")
	})
	// They answer for a while after their deletion.
	e.inSystem("wait", "--for=delete", "pod", "-l", "app.kubernetes.io/component=controller", "--timeout=60s")
	started := time.Now()
	e.apply(enginePod("unseen", "sim"))
	created := time.Since(started)
	e.waitFor("pod/unseen", "Ready")
	t.Logf("created in %s, ready after %s", created.Round(10*time.Millisecond), time.Since(started).Round(100*time.Millisecond))
	if got := e.containers("unseen"); got != "vllm" {
		t.Errorf("it has the containers %s", got)
	}
	if _, err := e.try(strings.ReplaceAll(backendYAML, "NAME", "other"), "apply", "-f", "-"); err == nil {
		t.Error("a backend is taken that nobody checked")
	}

	e.inSystem("scale", "deployment/inference-cache-controller-manager", "--replicas=2")
	started = time.Now()
	message := e.condition("cachebackend/sim", "InjectionHealthy", "False", "PodsUnseen")
	t.Logf("told %s after the controller was asked for again: %s", time.Since(started).Round(100*time.Millisecond), message)
	if !strings.Contains(message, "webhook-not-called") || !strings.Contains(message, "unseen") {
		t.Errorf("message %q", message)
	}
	e.eventually("an event on the pod", func() error {
		text, err := e.try("", "get", "events", "--field-selector=involvedObject.name=unseen,reason=InjectionSkipped", "-o", "jsonpath={.items[*].message}")
		if err == nil && !strings.Contains(text, "webhook-not-called") {
			err = fmt.Errorf("events say %q", text)
		}
		return err
	})
}
