// SPDX-License-Identifier: Apache-2.0

package controller

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/kernelcheck"
)

// reasonEngineKernelDegraded is Ready's while broken kernels keep an engine from
// starting.
const reasonEngineKernelDegraded = "EngineKernelDegraded"

// checkKernels reads the checks of the engines that the backend has wired.
// Broken kernels that keep an engine from starting say more than what follows
// from it.
func (s *sighting) checkKernels() {
	if s.connector == nil {
		return
	}
	var wired []*corev1.Pod
	for _, pod := range s.pods.live {
		if s.pods.verified(pod) {
			wired = append(wired, pod)
		}
	}
	verdict, checked := kernelcheck.Judge(wired)
	if !checked {
		return
	}
	s.kernels = &verdict
	if verdict.Strict {
		s.base = condition{v1alpha1.ConditionReady, reasonEngineKernelDegraded, verdict.Message, metav1.ConditionFalse}
	}
}

// judgeKernels writes what the checks say into the status.
func judgeKernels(b *v1alpha1.CacheBackend, s *sighting) {
	if s.kernels == nil {
		meta.RemoveStatusCondition(&b.Status.Conditions, v1alpha1.ConditionEngineKernelsHealthy)
		return
	}
	c := condition{v1alpha1.ConditionEngineKernelsHealthy, s.kernels.Reason, s.kernels.Message, metav1.ConditionUnknown}
	switch c.reason {
	case kernelcheck.ReasonHealthy:
		c.status = metav1.ConditionTrue
	case kernelcheck.ReasonFailed:
		c.status = metav1.ConditionFalse
	}
	put(b, s.now, c)
}
