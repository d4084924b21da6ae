// SPDX-License-Identifier: Apache-2.0

//go:build scale

package scale

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

// Sizes of the measured cluster.
const (
	namespaces  = 20
	perSpace    = 25 // backends of a namespace
	engines     = 2000
	nodes       = 200
	idle        = 3 // backends of a namespace without a pod
	otherSpaces = 40
	writers     = 6 // of the population
)

// image is a digest that nothing runs.
const image = "example.com/lmcache@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// each calls f for 0 to n-1, some at once.
func each(t *testing.T, n int, f func(context.Context, int) error) {
	t.Helper()
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(writers)
	for i := range n {
		group.Go(func() error { return f(ctx, i) })
	}
	must(t, group.Wait())
}

func space(i int) string { return fmt.Sprintf("team-%02d", i) }

// shape names what a backend of a namespace is.
func shape(adapters string, n int) string {
	switch {
	case adapters == "core" || n >= 15:
		return "watch"
	case n < 6:
		return "podlocal"
	case n < 10:
		return "managed"
	}
	return "nodelocal"
}

// backend is the n-th of a namespace. The last few have no pods.
func backend(adapters string, namespace, n int) *v1alpha1.CacheBackend {
	name := fmt.Sprintf("backend-%02d", n)
	b := &v1alpha1.CacheBackend{ObjectMeta: metav1.ObjectMeta{Namespace: space(namespace), Name: name}}
	b.Spec.Runtime, b.Spec.Type = v1alpha1.RuntimeVLLM, v1alpha1.BackendLMCache
	b.Spec.EngineSelector = &v1alpha1.EngineSelector{MatchLabels: map[string]string{v1alpha1.LabelCacheDomain: name}}
	b.Spec.Observation = &v1alpha1.BackendObservation{ModelID: "m"}
	resources := corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("22Gi")},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("22Gi")},
	}
	switch kind := shape(adapters, n); kind {
	case "podlocal", "managed":
		b.Spec.LMCache = &v1alpha1.LMCacheSpec{Topology: v1alpha1.TopologyPodLocal, PodLocal: &v1alpha1.PodLocalLMCache{
			Server: v1alpha1.PodLocalServer{Image: image, Port: 6555, L1Capacity: resource.MustParse("20Gi"), MaxWorkers: 4, Resources: resources},
		}}
		if kind == "managed" {
			b.Spec.RemoteStorage = &v1alpha1.RemoteStorageSpec{Provider: v1alpha1.ProviderRedis, Ownership: v1alpha1.OwnershipManaged}
		}
	case "nodelocal":
		port := int32(7000 + 10*n)
		b.Spec.LMCache = &v1alpha1.LMCacheSpec{Topology: v1alpha1.TopologyNodeLocal, NodeLocal: &v1alpha1.NodeLocalLMCache{
			Server: v1alpha1.NodeLocalServer{
				Image: image, Port: port, HTTPPort: port + 1, L1Capacity: resource.MustParse("20Gi"), MaxGPUWorkers: 8, MaxCPUWorkers: 16, Resources: resources,
			},
		}}
	default:
		b.Spec.Type = v1alpha1.BackendMemory
	}
	return b
}

// engineOf places the i-th engine: a namespace, one of its backends with pods,
// a node.
func engineOf(i int) (namespace, n, node int) {
	return i % namespaces, i / namespaces % (perSpace - idle), i % nodes
}

func enginePod(namespace, n, node int, name string) *corev1.Pod {
	domain := fmt.Sprintf("backend-%02d", n)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: space(namespace), Name: name, Labels: map[string]string{v1alpha1.LabelCacheDomain: domain, "app": domain}}}
	pod.Spec.NodeName, pod.Spec.ServiceAccountName = fmt.Sprintf("node-%03d", node), "default"
	pod.Spec.Containers = []corev1.Container{{
		Name: "vllm", Image: "vllm/vllm-openai:v0.11.0", Command: []string{"vllm", "serve", "m"}, Args: []string{"--port=8000", "--tensor-parallel-size=4"},
		Env: environment(12),
	}}
	return pod
}

// environment is about as much as containers have.
func environment(n int) (all []corev1.EnvVar) {
	for i := range n {
		all = append(all, corev1.EnvVar{Name: "SETTING_" + strconv.Itoa(i), Value: strings.Repeat("v", 32)})
	}
	return all
}

func created(err error) error { return client.IgnoreAlreadyExists(err) }

// populateOthers fills the cluster with pods that are no engines.
func (b *bed) populateOthers(t *testing.T, n int) {
	t.Helper()
	each(t, otherSpaces, func(ctx context.Context, i int) error {
		return created(b.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("other-%02d", i)}}))
	})
	each(t, n, func(ctx context.Context, i int) error {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: fmt.Sprintf("other-%02d", i%otherSpaces), Name: fmt.Sprintf("web-%05d", i), Labels: map[string]string{"app": "web", "tier": "front"},
		}}
		pod.Spec.NodeName = fmt.Sprintf("node-%03d", i%nodes)
		pod.Spec.Containers = []corev1.Container{{Name: "web", Image: "example.com/web:1", Env: environment(20)}}
		return created(b.Client.Create(ctx, pod))
	})
}

// populateBackends creates backends, their namespaces and the Deployments that
// own engines: those of backends without pods want none, want some that do not
// come, or are not there.
func (b *bed) populateBackends(t *testing.T, adapters string) {
	t.Helper()
	each(t, namespaces, func(ctx context.Context, i int) error {
		return created(b.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: space(i)}}))
	})
	each(t, namespaces*perSpace, func(ctx context.Context, i int) error {
		namespace, n := i%namespaces, i/namespaces
		if err := b.Client.Create(ctx, backend(adapters, namespace, n)); err != nil || n == perSpace-1 {
			return err
		}
		wanted, pod := int32(4), enginePod(namespace, n, 0, "")
		if n == perSpace-2 {
			wanted = 0
		}
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: fmt.Sprintf("engine-%02d", n)}}
		d.Spec.Replicas, d.Spec.Selector = &wanted, &metav1.LabelSelector{MatchLabels: map[string]string{"app": pod.Labels["app"]}}
		d.Spec.Template = corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}, Spec: pod.Spec}
		d.Spec.Template.Spec.NodeName = ""
		return created(b.Client.Create(ctx, d))
	})
}

// populateEngines creates engine pods, through the webhook, that run.
func (b *bed) populateEngines(t *testing.T) {
	t.Helper()
	each(t, engines, func(ctx context.Context, i int) error {
		namespace, n, node := engineOf(i)
		pod := enginePod(namespace, n, node, engineName(i))
		if err := b.Client.Create(ctx, pod); err != nil {
			return err
		}
		if pod.Annotations[v1alpha1.AnnotationInjectedByUID] == "" {
			return fmt.Errorf("pod %s/%s was not injected: %v", pod.Namespace, pod.Name, pod.Annotations)
		}
		return b.setRunning(ctx, pod, true)
	})
}

func engineName(i int) string { return fmt.Sprintf("engine-%04d", i) }

// setRunning says of a pod what its kubelet would.
func (b *bed) setRunning(ctx context.Context, pod *corev1.Pod, ready bool) error {
	before := pod.DeepCopy()
	now := metav1.Now()
	state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}
	pod.Status.Phase, pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses = corev1.PodRunning, nil, nil
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	pod.Status.Conditions = nil
	for _, kind := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady, corev1.PodInitialized, corev1.PodScheduled} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: status, LastTransitionTime: now})
	}
	for _, c := range pod.Spec.InitContainers {
		pod.Status.InitContainerStatuses = append(pod.Status.InitContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image, ImageID: c.Image, Ready: true, State: state})
	}
	for _, c := range pod.Spec.Containers {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image, ImageID: c.Image, Ready: ready, State: state})
	}
	return b.Client.Status().Patch(ctx, pod, client.MergeFrom(before))
}

// clear removes backends, engines and what the controller made of them.
func (b *bed) clear(t *testing.T) {
	t.Helper()
	now := client.GracePeriodSeconds(0)
	each(t, namespaces, func(ctx context.Context, i int) error {
		for _, object := range []client.Object{&v1alpha1.CacheBackend{}, &v1alpha1.CachePolicy{}, &corev1.Pod{}, &appsv1.Deployment{}} {
			if err := b.Client.DeleteAllOf(ctx, object, client.InNamespace(space(i)), now); err != nil {
				return err
			}
		}
		return nil
	})
}

// forgetStatus makes every backend one that no controller has looked at.
func (b *bed) forgetStatus(t *testing.T) {
	t.Helper()
	each(t, namespaces*perSpace, func(ctx context.Context, i int) error {
		object := &v1alpha1.CacheBackend{ObjectMeta: metav1.ObjectMeta{Namespace: space(i % namespaces), Name: fmt.Sprintf("backend-%02d", i/namespaces)}}
		return b.Client.Status().Patch(ctx, object, client.RawPatch("application/merge-patch+json", []byte(`{"status":null}`)))
	})
}
