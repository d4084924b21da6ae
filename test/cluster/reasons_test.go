// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster

import (
	"strings"
	"testing"
)

func TestEnginesThatNobodyHearsOfAreNamed(t *testing.T) {
	e := newEnv(t, restricted)
	e.shareRelease()
	e.startReaders()
	e.eventually("the webhook for backends", func() error {
		_, err := e.try(strings.NewReplacer("NAME", "sim", "firstEventTimeout: 5m", "firstEventTimeout: 5s").Replace(backendYAML), "apply", "-f", "-")
		return err
	})
	e.apply(enginePod("heard", "sim"))
	e.apply(strings.Replace(enginePod("silent", "sim"), "metadata: {", `metadata: {annotations: {inferencecache.io/skip-inject: "true"}, `, 1))
	e.waitFor("pod/heard", "Ready")
	e.waitFor("pod/silent", "Ready")
	e.condition("cachebackend/sim", "Ready", "False", "NoKVEventsObserved")
	e.condition("cachebackend/sim", "Degraded", "True", "NoKVEventsObserved")
	e.prompt("heard", longPrompt("heard"))
	e.condition("cachebackend/sim", "Ready", "True", "KVEventsObserved")
	if message := e.condition("cachebackend/sim", "ReplicasReporting", "False", "SomeSilent"); !strings.Contains(message, "silent") || strings.Contains(message, "heard") {
		t.Errorf("silent engines: %q", message)
	}
	if message := e.condition("cachebackend/sim", "InjectionHealthy", "False", "PodsSkipped"); !strings.Contains(message, "skip-inject-annotation") {
		t.Errorf("skipped engines: %q", message)
	}
	for _, reason := range []string{"AwaitingFirstKVEvent", "NoKVEventsObserved", "KVEventsObserved", "ReplicasSilent", "InjectionDegraded"} {
		e.event("sim", reason)
	}
	e.kubectl("delete", "pod", "silent")
	e.condition("cachebackend/sim", "ReplicasReporting", "True", "AllReporting")
	e.condition("cachebackend/sim", "InjectionHealthy", "True", "AllInjected")
	e.event("sim", "InjectionRecovered")
}

// hierarchicalYAML has an engine get flags that the simulated one does not know.
const hierarchicalYAML = `
apiVersion: inferencecache.io/v1alpha1
kind: CacheBackend
metadata: {name: sim}
spec:
  runtime: SGLang
  type: SGLangHiCache
  engineSelector: {matchLabels: {inferencecache.io/cache-domain: sim}}
  observation: {modelID: sim}
  hiCache: {sizeGB: 1}
`

func TestEnginesThatDoNotBearTheirFlagsAreTold(t *testing.T) {
	e := newEnv(t, restricted)
	e.installChart(append([]string{"--set=adapters.enabled=true"}, sharedValues...)...)
	e.eventually("the webhook for backends", func() error {
		_, err := e.try(hierarchicalYAML, "apply", "-f", "-")
		return err
	})
	e.apply(strings.NewReplacer("- name: vllm", "- name: sglang", "--model=sim,", "--model=sim, --runtime=sglang,").Replace(enginePod("sim-0", "sim")))
	message := e.condition("cachebackend/sim", "EngineCompatibility", "False", "InjectedEngineCrashLooping")
	if !strings.Contains(message, "sim-0") {
		t.Errorf("message %q", message)
	}
	e.event("sim", "InjectedEngineCrashLooping")
}
