// SPDX-License-Identifier: Apache-2.0

package inject_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/inject"
)

// Stamps with the right name and uid make no container or volume ours.
func TestWhatOnlyHasOurNameStays(t *testing.T) {
	emptied := func(p *corev1.Pod) {
		p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	}
	for name, tc := range map[string]struct {
		copied bool // from a wired pod, else a new one
		change func(*corev1.Pod)
		reason string // "" is injected with the publisher of today
	}{
		"a copy of a wired pod":             {true, func(*corev1.Pod) {}, ""},
		"a copy with an older publisher":    {true, func(p *corev1.Pod) { p.Spec.InitContainers[0].Image = "ic.test/publisher:0" }, ""},
		"a copy with a token mounted by us": {true, func(p *corev1.Pod) { mountToken(&p.Spec.InitContainers[0]) }, ""},
		"a copy without the publisher":      {true, func(p *corev1.Pod) { p.Spec.InitContainers = nil }, ""},
		"a copy with a program of its own":  {true, func(p *corev1.Pod) { p.Spec.InitContainers[0].Command = []string{"mine"} }, inject.ReasonSidecarPresent},
		"a copy with a volume of its own":   {true, emptied, inject.ReasonReservedNameConflict},
		"a container of its own": {false, func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: inject.SidecarName, Image: "mine"})
		}, inject.ReasonSidecarPresent},
		"an init container of its own": {false, func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: inject.SidecarName, Image: "mine", Args: []string{"--no-exit"}}}
		}, inject.ReasonSidecarPresent},
		"a volume of its own": {false, func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: inject.VolumeName}} }, inject.ReasonReservedNameConflict},
	} {
		t.Run(name, func(t *testing.T) {
			backend, pod := newBackend(vllm), newPod(vllm, forged)
			wired, _ := inject.Pod(newPod(vllm), backend, options())
			if tc.copied {
				pod = wired.DeepCopy()
			}
			tc.change(pod)
			got, outcome := inject.Pod(pod, backend, options())
			if outcome.Reason != tc.reason {
				t.Errorf("outcome %+v, want reason %q", outcome, tc.reason)
			}
			want := pod.Spec
			if tc.reason == "" {
				want = wired.Spec
			}
			if diff := cmp.Diff(want, got.Spec); diff != "" {
				t.Error(diff)
			}
			if _, stamped := got.Annotations[v1alpha1.AnnotationInjectedBy]; stamped != (tc.reason == "") {
				t.Errorf("annotations %v", got.Annotations)
			}
		})
	}
}

// mountToken does what the API server does to every container.
func mountToken(c *corev1.Container) {
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "kube-api-access-x", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"})
}

func TestPublishersOfTheUserAreFound(t *testing.T) {
	for name, c := range map[string]corev1.Container{
		"by its flags":        {Name: "events", Args: []string{"--engine-endpoint", "tcp://127.0.0.1:5557", "--server=elsewhere:9090"}},
		"by its name":         {Name: inject.SidecarName},
		"in a shell's script": {Name: "events", Command: []string{"sh", "-c", "exec publisher --engine-endpoint=$E --server=elsewhere:9090"}},
	} {
		if _, outcome := inject.Pod(newPod(vllm, sibling(c)), newBackend(vllm), options()); outcome.Reason != inject.ReasonSidecarPresent {
			t.Errorf("%s: outcome %+v", name, outcome)
		}
	}
}

// A publisher that takes a port of the engine would hold it back.
func TestPortsOfEvents(t *testing.T) {
	at := func(port, replay, ranks int32) func(*v1alpha1.CacheBackend) {
		return events(func(e *v1alpha1.KVEventsSpec) { e.Port, e.ReplayPort, e.DataParallelRanks = &port, &replay, &ranks })
	}
	nixl := func(variables ...corev1.EnvVar) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			moreArgs(`--kv-transfer-config={"kv_connector":"NixlConnector","kv_role":"kv_both"}`)(p)
			p.Spec.Containers[0].Env = variables
		}
	}
	const nixlHost, nixlPort = "VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT"
	address := corev1.EnvVar{Name: nixlHost, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}}
	everywhere := events(func(e *v1alpha1.KVEventsSpec) { e.Transport = v1alpha1.TransportWildcard })
	unwanted := events(func(e *v1alpha1.KVEventsSpec) { e.Inject = false })
	for name, tc := range map[string]struct {
		backend func(*v1alpha1.CacheBackend)
		pod     func(*corev1.Pod)
		message string // "" is injected
	}{
		"of a replay on that of NIXL":    {at(5557, 5600, 1), nixl(), "VLLM_NIXL_SIDE_CHANNEL_HOST"},
		"of a rank on that of NIXL":      {at(5599, 0, 2), nixl(corev1.EnvVar{Name: nixlHost, Value: "127.0.0.1"}), "port 5600"},
		"of NIXL on the pod's address":   {at(5557, 5600, 1), nixl(address), ""},
		"beside another one of NIXL":     {at(5557, 5600, 1), nixl(corev1.EnvVar{Name: nixlPort, Value: "5700"}), ""},
		"on one given to NIXL":           {at(5557, 5600, 1), nixl(corev1.EnvVar{Name: nixlPort, Value: "5557"}), "port 5557"},
		"on all addresses, as on NIXL's": {everywhere, nixl(address), "port 5600"},
		"without a flag, as on NIXL's":   {unwanted, nixl(), ""},
		"apart from the engine's":        {at(5557, 5600, 1), shapes["one-container"], ""},
		"on the publisher's":             {at(9095, 0, 1), shapes["one-container"], "port 9095"},
		"on the node, where it has none": {at(9095, 0, 1), shapes["host-network"], ""},
		"of a later rank":                {at(9090, 0, 8), shapes["one-container"], "port 9095"},
		"on the engine's":                {at(8001, 0, 1), shapes["one-container"], "port 8001"},
		"of a replay on the engine's":    {at(5557, 7998, 4), shapes["one-container"], "port 8001"},
		"in the engine's own flag":       {at(5557, 0, 1), engineArgs(`--kv-events-config={"enable_kv_cache_events":true,"endpoint":"tcp://127.0.0.1:8000"}`), "port 8000"},
		"on that of a shell's engine":    {at(8001, 0, 1), shapes["shell-command"], "port 8001"},
	} {
		t.Run(name, func(t *testing.T) {
			_, outcome := inject.Pod(newPod(vllm, tc.pod), newBackend(vllm, tc.backend), options())
			if (outcome.Reason == inject.ReasonReservedNameConflict) != (tc.message != "") || !strings.Contains(outcome.Message, tc.message) {
				t.Errorf("outcome %+v, want %q", outcome, tc.message)
			}
		})
	}
}

// The API server would refuse a pod with more.
func TestAPodFullOfAnnotationsGetsNone(t *testing.T) {
	pod := newPod(vllm, func(p *corev1.Pod) { p.Annotations = map[string]string{"mine": strings.Repeat("x", 256<<10-4)} })
	got, outcome := inject.Pod(pod, newBackend(vllm), options())
	if outcome.Result != inject.Failed || outcome.Reason != inject.ReasonInternalError || !strings.Contains(outcome.Message, "so many annotations") {
		t.Errorf("outcome %+v", outcome)
	}
	if diff := cmp.Diff(pod, got); diff != "" {
		t.Errorf("the pod was changed:\n%s", diff)
	}
}
