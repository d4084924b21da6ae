// SPDX-License-Identifier: Apache-2.0

package inject

import (
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
		return r
	}
	limits := quantities("100m", "256Mi")
	for _, list := range []corev1.ResourceList{r.Requests, r.Limits} {
		for name, quantity := range list {
			limits[name] = quantity // a limit, coming last, wins over the request
		}
	}
	return corev1.ResourceRequirements{Requests: limits, Limits: limits.DeepCopy()}
}

func quantities(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
}
