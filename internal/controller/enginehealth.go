// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
)

// Reasons that say whether engines bear their wiring and gain by it.
const (
	reasonEngineCrashLooping = "InjectedEngineCrashLooping"
	reasonT2ZeroHitRate      = "T2ZeroHitRate"
	reasonT2Serving          = "T2Serving"
)

// looping is the number of restarts after which a container that is not ready
// counts as crash looping also while it runs once more.
const looping = 3

// besides are containers of an engine pod that are ours.
var besides = map[string]bool{sidecarContainer: true, podServer: true}

// engineLoops says whether an engine keeps ending. Between two ends it seems to
// run. The engine is the container with a runtime's name, or every one that is
// not ours.
func engineLoops(pod *corev1.Pod) bool {
	named := slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return adapter.NamesEngine(s.Name) })
	for _, status := range pod.Status.ContainerStatuses {
		if besides[status.Name] || status.Ready || named && !adapter.NamesEngine(status.Name) {
			continue
		}
		waits := status.State.Waiting != nil && status.State.Waiting.Reason == "CrashLoopBackOff"
		ended := status.LastTerminationState.Terminated
		if waits || status.RestartCount >= looping && ended != nil && ended.ExitCode != 0 {
			return true
		}
	}
	return false
}

// judgeEngines says whether the engines of an offloading backend bear what was
// added to them, and whether the tier behind their memory is of use.
func judgeEngines(b *v1alpha1.CacheBackend, s *sighting) {
	conditions := &b.Status.Conditions
	if s.connector == nil {
		meta.RemoveStatusCondition(conditions, v1alpha1.ConditionEngineCompatibility)
		meta.RemoveStatusCondition(conditions, v1alpha1.ConditionT2Degraded)
		return
	}
	var crashing []string
	for _, pod := range s.pods.live {
		if s.pods.verified(pod) && engineLoops(pod) {
			crashing = append(crashing, pod.Name)
		}
	}
	if crashing == nil {
		meta.RemoveStatusCondition(conditions, v1alpha1.ConditionEngineCompatibility)
	} else {
		put(b, s.now, condition{
			v1alpha1.ConditionEngineCompatibility, reasonEngineCrashLooping,
			fmt.Sprintf("%d wired engines keep ending: %s; see their logs, and whether this version of the engine takes what was added", len(crashing), some(crashing, examplePods)),
			metav1.ConditionFalse,
		})
	}
	t2 := condition{v1alpha1.ConditionT2Degraded, reasonT2Serving, "no query of the tier behind the engines' memory yet", metav1.ConditionFalse}
	if rate := tier2Rate(b); rate == "0" {
		t2.status, t2.reason, t2.message = metav1.ConditionTrue, reasonT2ZeroHitRate, "the tier behind the engines' memory was asked and had nothing"
	} else if rate != "" {
		t2.message = "the tier behind the engines' memory has what is asked for"
	}
	put(b, s.now, t2)
}

// tier2Rate is the hit rate of the tier behind the engines' memory, "" before
// it was asked.
func tier2Rate(b *v1alpha1.CacheBackend) string {
	if p := b.Status.IndexParticipation; p != nil && p.T2HitRate != nil {
		return *p.T2HitRate
	}
	return ""
}
