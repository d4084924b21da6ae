// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package inject_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/inject"
	"github.com/inferencecache/inference-cache/internal/kubetest"
)

// Engines that are wired to a tier inside their pod stay fit for a namespace
// with restricted pods, and keep their quality of service.
func TestEnvtestTiersInARestrictedNamespace(t *testing.T) {
	for mode, change := range map[string]func(*inject.Options){"native sidecars": allAdapters, "ordinary containers": ordinary} {
		t.Run(mode, func(t *testing.T) {
			o := options()
			change(&o)
			cluster, _ := startWith(t, o)
			for name, kind := range map[string]tier{
				"lmcache": {both, podLocal, nil, nil}, "redis": {both, withRedis, nil, nil}, "hicache": {both[1:], hiCache, nil, nil},
			} {
				for _, runtime := range kind.runtimes {
					checkRestricted(t, cluster, runtime, name, kind.change)
				}
			}
		})
	}
}

func checkRestricted(t *testing.T, cluster *kubetest.Cluster, runtime v1alpha1.EngineRuntime, name string, change func(*v1alpha1.CacheBackend)) {
	t.Helper()
	domain := name + "-" + map[v1alpha1.EngineRuntime]string{vllm: "vllm", sglang: "sglang"}[runtime]
	backend := newBackend(runtime, change, named(domain))
	backend.UID, backend.Generation = "", 0
	backend.Spec.EngineSelector.MatchLabels[v1alpha1.LabelCacheDomain] = domain
	must(t, cluster.Client.Create(t.Context(), backend))
	for shape, change := range map[string]func(*corev1.Pod){"usual": func(*corev1.Pod) {}, "guaranteed": shapes["guaranteed"]} {
		pod := restricted(newPod(runtime, change))
		pod.Labels[v1alpha1.LabelCacheDomain] = domain
		must(t, cluster.Client.Create(t.Context(), pod))
		if pod.Annotations[v1alpha1.AnnotationInjectedByUID] != string(backend.UID) {
			t.Errorf("%s, %s: not wired: %v", domain, shape, pod.Annotations)
			continue
		}
		served := slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), func(c corev1.Container) bool { return c.Name == adapter.ServerContainer })
		if served != (backend.Spec.LMCache != nil) || served != (pod.Labels[v1alpha1.LabelLMCacheMetrics] == "true") {
			t.Errorf("%s, %s: server %t, labels %v", domain, shape, served, pod.Labels)
		}
		if shape == "guaranteed" && pod.Status.QOSClass != corev1.PodQOSGuaranteed {
			t.Errorf("%s: a guaranteed pod became %s", domain, pod.Status.QOSClass)
		}
	}
}
