// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// kernels gives a pod a kernel check that has ended with a message.
func kernels(pod *corev1.Pod, message string, exit int32) *corev1.Pod {
	state := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}
	if message != "" {
		state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: message, ExitCode: exit}}
	}
	pod.Status.InitContainerStatuses = append(pod.Status.InitContainerStatuses, corev1.ContainerStatus{Name: "lmcache-kernel-check", State: state})
	return pod
}

func TestBackendKernels(t *testing.T) {
	engine := func(name string) *corev1.Pod { return served(injectedPod(name, "host-only"), true) }
	for name, tc := range map[string]struct {
		pods []client.Object
		want []string
	}{
		"no check":                   {[]client.Object{engine("a")}, []string{"EngineKernelsHealthy=", "Ready=False/AwaitingFirstKVEvent"}},
		"a check of others' engines": {[]client.Object{kernels(served(somePod("a"), true), "FAIL: x", 1)}, []string{"EngineKernelsHealthy="}},
		"kernels that load":          {[]client.Object{kernels(engine("a"), "OK", 0)}, []string{"EngineKernelsHealthy=True/KernelsHealthy"}},
		"a check under way":          {[]client.Object{kernels(engine("a"), "OK", 0), kernels(engine("b"), "", 0)}, []string{"EngineKernelsHealthy=Unknown/KernelCheckPending: 1 engines are not checked yet: b"}},
		"a check that did not work": {
			[]client.Object{kernels(engine("a"), "ERROR: killed", 0), kernels(engine("b"), "", 0)},
			[]string{"EngineKernelsHealthy=Unknown/KernelCheckError: 1 engines could not be checked: a: killed", "Ready=False/AwaitingFirstKVEvent"},
		},
		"kernels that do not load": {
			[]client.Object{kernels(engine("a"), "FAIL: no symbol", 0), kernels(engine("b"), "ERROR: killed", 0)},
			[]string{"EngineKernelsHealthy=False/KernelLoadFailed: 1 engines cannot load", "Ready=False/AwaitingFirstKVEvent"},
		},
		"kernels that must load": {
			[]client.Object{kernels(notReady(engine("a")), "FAIL: no symbol", 1)},
			[]string{"EngineKernelsHealthy=False/KernelLoadFailed", "Ready=False/EngineKernelDegraded: 1 engines cannot load", "ConnectorReady=False/MPServersNotReady"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newOffloadBench(t, newBench(t, append(tc.pods, someBackend(offload))...))
			b.pass()
			b.want(tc.want...)
		})
	}
}
