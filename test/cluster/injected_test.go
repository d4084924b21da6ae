// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

// workloadYAML is an object with a template of engine pods of the domain NAME.
const workloadYAML = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME}
spec:
  replicas: 1
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME, inferencecache.io/cache-domain: NAME}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: vllm
        image: ic.test/inferencecache:dev
        imagePullPolicy: Never
        args: ARGS
        readinessProbe: {httpGet: {path: /health, port: 8000}, periodSeconds: 1}
        securityContext:
          runAsNonRoot: true
          readOnlyRootFilesystem: true
          allowPrivilegeEscalation: false
          capabilities: {drop: [ALL]}
          seccompProfile: {type: RuntimeDefault}
`

// startDeployment starts one engine with flags besides those for its address
// and model, and returns its pod once that is ready.
func (e *env) startDeployment(name string, flags ...string) *corev1.Pod {
	e.t.Helper()
	args, err := json.Marshal(append([]string{"sim-engine", "--listen=:8000", "--model=sim", "--speed=50"}, flags...))
	if err != nil {
		e.t.Fatal(err)
	}
	e.apply(strings.NewReplacer("NAME", name, "ARGS", string(args)).Replace(workloadYAML))
	e.kubectl("rollout", "status", "deployment/"+name, "--timeout=120s")
	return e.onlyPod("app=" + name)
}

// onlyPod reads the one pod with a label.
func (e *env) onlyPod(label string) *corev1.Pod {
	e.t.Helper()
	name := strings.TrimSpace(e.kubectl("get", "pods", "-l", label, "-o", `jsonpath={.items[*].metadata.name}`))
	if name == "" || strings.Contains(name, " ") {
		e.t.Fatalf("pods with %s: %q, expected one", label, name)
	}
	pod := &corev1.Pod{}
	if err := e.get("pod/"+name, pod); err != nil {
		e.t.Fatal(err)
	}
	return pod
}

// publisherOf returns the native sidecar that a pod was given by a backend.
func publisherOf(t *testing.T, pod *corev1.Pod, backend string) *corev1.Container {
	t.Helper()
	for key, want := range map[string]string{v1alpha1.AnnotationInjectedBy: pod.Namespace + "/" + backend, v1alpha1.AnnotationInjectSkipped: ""} {
		if got := pod.Annotations[key]; got != want {
			t.Errorf("%s has %s=%q, want %q", pod.Name, key, got, want)
		}
	}
	i := slices.IndexFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == "kvevent-subscriber" })
	if i < 0 {
		t.Fatalf("%s has no publisher", pod.Name)
	}
	c := &pod.Spec.InitContainers[i]
	if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
		t.Errorf("the publisher of %s is no native sidecar", pod.Name)
	}
	return c
}

func TestDeploymentInARestrictedNamespaceIsInjectedAndFound(t *testing.T) {
	e := newEnv(t, restricted)
	e.shareRelease()
	e.startReaders()
	e.startBackend("chat", 0)
	started := time.Now()
	pod := e.startDeployment("chat", "--replay=tcp://*:5600")
	ready := time.Since(started)
	publisher := strings.Join(publisherOf(t, pod, "chat").Args, " ")
	for _, want := range []string{"--token-file=", "--server-ca-file="} {
		if !strings.Contains(publisher, want) {
			t.Errorf("the publisher goes without %s: %s", want, publisher)
		}
	}
	e.condition("cachebackend/chat", "Ready", "False", "AwaitingFirstKVEvent")
	e.condition("cachebackend/chat", "InjectionHealthy", "True", "AllInjected")
	prompt := longPrompt("restricted")
	started = time.Now()
	e.prompt(pod.Name, prompt)
	known := e.matched(prompt, pod.Name)
	e.condition("cachebackend/chat", "Ready", "True", "KVEventsObserved")
	t.Logf("the engine was ready after %s, PREFIX_MATCH %s after its prompt, KVEventsObserved after %s",
		ready.Round(100*time.Millisecond), known.Round(10*time.Millisecond), time.Since(started).Round(100*time.Millisecond))
}

func TestEnginesAreGivenTheFlagOfTheirEvents(t *testing.T) {
	e := newEnv(t, restricted)
	e.shareRelease()
	e.startReaders()
	for _, tc := range []struct {
		name, events string
		flags        []string
		// endpoint is in the engine's arguments, socket in the publisher's.
		endpoint, socket string
		replicas         []string
	}{
		{"loopback", "{inject: true}", nil, "tcp://127.0.0.1:5557", "--engine-socket=bind", []string{""}},
		{"wildcard", "{inject: true, transport: Wildcard}", nil, "tcp://*:5557", "--engine-socket=connect", []string{""}},
		{"ranks", "{inject: true}", []string{"--data-parallel-size=2"}, "tcp://127.0.0.1:5557", "--data-parallel-ranks=2", []string{"#0", "#1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := e.sub(t)
			e.apply(strings.NewReplacer("NAME", tc.name, "modelID: sim,", "modelID: sim, kvEvents: "+tc.events+",").Replace(backendYAML))
			pod := e.startDeployment(tc.name, tc.flags...)
			if got := strings.Join(pod.Spec.Containers[0].Args, " "); !strings.Contains(got, "--kv-events-config") || !strings.Contains(got, tc.endpoint) {
				t.Errorf("the engine's arguments are %s", got)
			}
			if got := strings.Join(publisherOf(t, pod, tc.name).Args, " "); !strings.Contains(got, tc.socket) {
				t.Errorf("the publisher goes without %s: %s", tc.socket, got)
			}
			for rank, suffix := range tc.replicas {
				prompt := longPrompt(fmt.Sprintf("%s%d", tc.name, rank))
				e.prompt(pod.Name, prompt, fmt.Sprintf("--header=X-Data-Parallel-Rank: %d", rank))
				took := e.matched(prompt, pod.Name+suffix)
				t.Logf("%s: PREFIX_MATCH of POD%s after %s", tc.name, suffix, took.Round(10*time.Millisecond))
			}
			e.condition("cachebackend/"+tc.name, "Ready", "True", "KVEventsObserved")
		})
	}
}

func TestJobEndsWithItsEngine(t *testing.T) {
	e := newEnv(t, restricted)
	e.shareRelease()
	e.startBackend("batch", 0)
	started := time.Now()
	// The engine ends at once: nobody has its standard input open.
	e.apply(strings.NewReplacer(
		"apps/v1", "batch/v1", "Deployment", "Job", "  replicas: 1\n  selector: {matchLabels: {app: NAME}}\n", "  backoffLimit: 0\n",
		"terminationGracePeriodSeconds: 1", "restartPolicy: Never", "NAME", "batch", "ARGS", `[sim-engine, "--listen=:8000", --exit-with-stdin]`,
	).Replace(workloadYAML))
	e.waitFor("job/batch", "Complete")
	pod := e.onlyPod("app=batch")
	publisherOf(t, pod, "batch")
	e.eventually("a pod that succeeded", func() error {
		if phase, err := e.try("", "get", "pod", pod.Name, "-o", "jsonpath={.status.phase}"); err != nil || phase != "Succeeded" {
			return errors.Join(err, fmt.Errorf("it is %s", phase))
		}
		return nil
	})
	t.Logf("complete after %s", time.Since(started).Round(100*time.Millisecond))
}
