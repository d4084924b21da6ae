// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/controller"
	"github.com/inferencecache/inference-cache/internal/storage"
)

// offloading serves every backend that offloads.
type offloading struct{ adapter.Adapter }

func (offloading) Supports(_ v1alpha1.EngineRuntime, b *v1alpha1.CacheBackend) bool {
	return !adapter.WatchesOnly(b)
}

func (offloading) SupportsBinding(*adapter.Binding) bool { return true }

// everyAdapter serves backends that offload, and those that only watch.
func everyAdapter(t *testing.T) *adapter.Registry {
	t.Helper()
	watching, ok := adapter.Core().For(someBackend())
	if !ok {
		t.Fatal("nobody watches")
	}
	return adapter.NewRegistry(offloading{watching}, watching)
}

// newOffloadBench looks at backend a/cb with storages. Pods are wired with the
// endpoint of their storage as hash.
func newOffloadBench(t *testing.T, b *bench) *bench {
	t.Helper()
	return b.with(func(o *controller.BackendOptions) {
		o.Adapters = everyAdapter(t)
		o.ConfigHash = func(_ *v1alpha1.CacheBackend, binding *adapter.Binding) string {
			if binding == nil {
				return "host-only"
			}
			return binding.Endpoint
		}
		o.Storages = controller.NewStorages(controller.StorageOptions{Client: b.cluster, Live: b.cluster, Providers: storage.All()})
	})
}

// offload makes a backend one of LMCache with a server in each pod.
func offload(b *v1alpha1.CacheBackend) {
	b.Spec.Type = v1alpha1.BackendLMCache
	b.Spec.LMCache = &v1alpha1.LMCacheSpec{Topology: v1alpha1.TopologyPodLocal, PodLocal: &v1alpha1.PodLocalLMCache{}}
}

func hiCache(b *v1alpha1.CacheBackend) {
	b.Spec.Runtime, b.Spec.Type = v1alpha1.RuntimeSGLang, v1alpha1.BackendSGLangHiCache
	b.Spec.HiCache = &v1alpha1.HiCacheSpec{SizeGB: ptr(int32(1))}
}

func onNodes(b *v1alpha1.CacheBackend) {
	offload(b)
	b.Spec.LMCache = &v1alpha1.LMCacheSpec{Topology: v1alpha1.TopologyNodeLocal, NodeLocal: &v1alpha1.NodeLocalLMCache{}}
}

func managedRedis(b *v1alpha1.CacheBackend) {
	b.Spec.RemoteStorage = &v1alpha1.RemoteStorageSpec{Provider: v1alpha1.ProviderRedis, Ownership: v1alpha1.OwnershipManaged}
}

func externalRedis(endpoint string) func(*v1alpha1.CacheBackend) {
	return func(b *v1alpha1.CacheBackend) {
		b.Spec.RemoteStorage = &v1alpha1.RemoteStorageSpec{Provider: v1alpha1.ProviderRedis, Ownership: v1alpha1.OwnershipExternal, Endpoint: endpoint}
	}
}

func failClosed(b *v1alpha1.CacheBackend) {
	b.Spec.Integration = &v1alpha1.BackendIntegration{FailOpen: ptr(false)}
}

func withoutEvents(b *v1alpha1.CacheBackend) {
	b.Annotations = map[string]string{v1alpha1.AnnotationRequireKVEvents: "false"}
}

// served gives a pod a running server beside its engine.
func served(pod *corev1.Pod, ready bool) *corev1.Pod {
	pod.Status.InitContainerStatuses = append(pod.Status.InitContainerStatuses, corev1.ContainerStatus{
		Name: "lmcache-mp-server", Ready: ready, Image: "lmcache", ImageID: "lmcache",
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(birth)}},
	})
	return pod
}

func notReady(pod *corev1.Pod) *corev1.Pod {
	pod.Status.Conditions[0].Status = corev1.ConditionFalse
	return pod
}

// crashing gives a pod an engine that keeps ending.
func crashing(pod *corev1.Pod, state corev1.ContainerState, restarts int32) *corev1.Pod {
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "vllm", RestartCount: restarts, State: state, Image: "vllm", ImageID: "vllm",
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}},
	}}
	return notReady(pod)
}

// besideEngine has it be a helper that crashes, beside an engine that runs.
func besideEngine(pod *corev1.Pod) *corev1.Pod {
	statuses := &pod.Status.ContainerStatuses
	(*statuses)[0].Name = "log-shipper"
	*statuses = append(*statuses, corev1.ContainerStatus{Name: "vllm", Ready: true, Image: "vllm", ImageID: "vllm", State: runsAgain})
	return pod
}

var (
	waitsToRestart = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	runsAgain      = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
)
