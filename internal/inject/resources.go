// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/inferencecache/inference-cache/internal/adapter"
)

// sidecarResources keeps the quality of service of the pod: a Guaranteed one
// stays so. A pod with resources of its own as a whole bounds the sidecar by
// them.
func sidecarResources(spec *corev1.PodSpec, wanted *corev1.ResourceRequirements) corev1.ResourceRequirements {
	if spec.Resources != nil {
		return corev1.ResourceRequirements{}
	}
	r := corev1.ResourceRequirements{Requests: quantities("10m", "64Mi"), Limits: quantities("500m", "256Mi")}
	guaranteed := adapter.Guaranteed(spec)
	switch {
	case wanted != nil:
		r = *wanted.DeepCopy()
	case guaranteed:
		r.Limits = quantities("100m", "256Mi")
	}
	if !guaranteed {
		return withBasics(r)
	}
	limits := quantities("100m", "256Mi")
	for _, list := range []corev1.ResourceList{r.Requests, r.Limits} {
		for name, quantity := range list {
			limits[name] = quantity // a limit, coming last, wins over the request
		}
	}
	return corev1.ResourceRequirements{Requests: limits, Limits: limits.DeepCopy()}
}

// withBasics adds requests of cpu and memory where huge pages are asked for
// alone: pods with those are refused.
func withBasics(r corev1.ResourceRequirements) corev1.ResourceRequirements {
	huge := false
	for _, list := range []corev1.ResourceList{r.Requests, r.Limits} {
		for name := range list {
			if name == corev1.ResourceCPU || name == corev1.ResourceMemory {
				return r
			}
			huge = huge || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
		}
	}
	if huge {
		if r.Requests == nil {
			r.Requests = corev1.ResourceList{}
		}
		maps.Copy(r.Requests, quantities("10m", "64Mi"))
	}
	return r
}

func quantities(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
}
