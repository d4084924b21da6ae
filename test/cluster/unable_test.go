// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster

import (
	"strings"
	"testing"
	"time"
)

// absentServers tells publishers of servers that are not there.
const absentServers = "--set=controller.extraArgs={--publisher-server-address=dns:///absent." + installed + ".svc.cluster.local:9090}"

// Whatever a publisher lacks, its engine serves, and the backend tells.
func TestEnginesServeBesidePublishersThatCannotWork(t *testing.T) {
	foreignAuthority := func(e *env) {
		e.kubectl("create", "configmap", "inference-cache-server-ca", "--from-literal=ca.crt=none of ours")
	}
	otherPort := strings.NewReplacer("--events=tcp://*:5557", "--events=tcp://*:5999")
	for _, tc := range []struct {
		name    string
		release []string
		prepare func(*env)
		engine  *strings.Replacer
	}{
		{name: "no server has the address", release: []string{absentServers}},
		{name: "the namespace has another authority", prepare: foreignAuthority},
		{name: "the engine's events are elsewhere", engine: otherPort},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := newEnv(t, restricted)
			e.shareRelease()
			if tc.release != nil {
				e.changeRelease(tc.release...)
			}
			if tc.prepare != nil {
				tc.prepare(e)
			}
			e.startTool("client")
			e.eventually("the webhook for backends", func() error {
				_, err := e.try(strings.NewReplacer("NAME", "sim", "firstEventTimeout: 5m", "firstEventTimeout: 5s").Replace(backendYAML), "apply", "-f", "-")
				return err
			})
			pod := enginePod("sim-0", "sim")
			if tc.engine != nil {
				pod = tc.engine.Replace(pod)
			}
			started := time.Now()
			e.apply(pod)
			e.waitFor("pod/sim-0", "Ready")
			ready := time.Since(started)
			e.condition("cachebackend/sim", "InjectionHealthy", "True", "AllInjected")
			e.prompt("sim-0", longPrompt("served"))
			message := e.condition("cachebackend/sim", "Ready", "False", "NoKVEventsObserved")
			e.event("sim", "NoKVEventsObserved")
			e.prompt("sim-0", longPrompt("served again"))
			e.waitFor("pod/sim-0", "Ready")
			_, engine := e.containerState(e.namespace, "sim-0", "vllm")
			_, publisher := e.containerState(e.namespace, "sim-0", "kvevent-subscriber")
			if engine != "0" || publisher != "0" {
				t.Errorf("the engine was started again %s times, its publisher %s times", engine, publisher)
			}
			t.Logf("ready after %s: %s", ready.Round(100*time.Millisecond), message)
		})
	}
}
