// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

// action is what the events of backends say the controller did.
const action = "Reconcile"

// announcement is one event about a backend.
type announcement struct{ kind, reason, note string }

// announce tells of the transitions that a write has made.
func (r *BackendReconciler) announce(b *v1alpha1.CacheBackend, before *v1alpha1.CacheBackendStatus) {
	for _, a := range transitions(before, &b.Status) {
		r.options.Events.Eventf(b, nil, a.kind, a.reason, action, "%s", a.note)
	}
}

// transitions lists what became different between two statuses.
func transitions(before, after *v1alpha1.CacheBackendStatus) (all []announcement) {
	add := func(kind, reason, note string) { all = append(all, announcement{kind, reason, note}) }
	normal, warning := corev1.EventTypeNormal, corev1.EventTypeWarning
	was := func(kind string) metav1.Condition { return conditionIn(before, kind) }
	is := func(kind string) metav1.Condition { return conditionIn(after, kind) }

	ready := is(v1alpha1.ConditionReady)
	if ready.Reason != was(v1alpha1.ConditionReady).Reason {
		switch ready.Reason {
		case reasonAwaitingFirstKVEvent:
			add(normal, ready.Reason, ready.Message)
		case reasonNoKVEventsObserved:
			add(warning, ready.Reason, ready.Message)
		}
	}
	if before.FirstKVEventObservedAt == nil && after.FirstKVEventObservedAt != nil {
		add(normal, reasonKVEventsObserved, "the first KV event arrived in the index")
	}
	for _, c := range []struct {
		kind             string
		bad              metav1.ConditionStatus
		worse, recovered string
	}{
		{v1alpha1.ConditionDegraded, metav1.ConditionTrue, "BackendDegraded", "BackendRecovered"},
		{v1alpha1.ConditionFunctionalProbeOK, metav1.ConditionFalse, "ProbeFailed", "ProbeRecovered"},
		{v1alpha1.ConditionInjectionHealthy, metav1.ConditionFalse, "InjectionDegraded", "InjectionRecovered"},
		{v1alpha1.ConditionReplicasReporting, metav1.ConditionFalse, "ReplicasSilent", ""},
	} {
		old, now := was(c.kind), is(c.kind)
		switch {
		case now.Status == c.bad && old.Status != c.bad:
			add(warning, c.worse, now.Reason+": "+now.Message)
		case c.recovered != "" && old.Status == c.bad && now.Status != c.bad && now.Status != metav1.ConditionUnknown && now.Status != "":
			add(normal, c.recovered, c.kind+" is "+string(now.Status)+": "+now.Reason)
		}
	}
	switch healthy, wasOpen, isOpen := is(v1alpha1.ConditionInjectionHealthy), breakerOpen(before), breakerOpen(after); {
	case isOpen && !wasOpen && was(healthy.Type).Status == metav1.ConditionFalse:
		add(warning, "InjectionDegraded", healthy.Reason+": "+healthy.Message)
	case wasOpen && !isOpen && healthy.Status == metav1.ConditionFalse:
		add(normal, "InjectionRecovered", "new pods get a publisher again")
	}
	if now := is(v1alpha1.ConditionInjectionHealthy); now.Reason == reasonSidecarUnavailable && was(now.Type).Reason != now.Reason {
		add(warning, reasonSidecarUnavailable, now.Message)
	}
	if before.EngineSelectorMessage == "" && after.EngineSelectorMessage != "" {
		add(normal, "EngineSelectorUnmatched", after.EngineSelectorMessage)
	}
	if after.FailOpen != nil {
		switch open := before.FailOpen == nil || *before.FailOpen; {
		case open && !*after.FailOpen:
			add(warning, "FailClosedEnabled", "engines do not serve while their storage tier fails")
		case !open && *after.FailOpen:
			add(normal, "FailOpenRestored", "engines serve without the storage tier when it fails")
		}
	}
	return all
}

func breakerOpen(status *v1alpha1.CacheBackendStatus) bool {
	return status.Injection != nil && status.Injection.Breaker != nil && status.Injection.Breaker.Open
}

// conditionIn returns the zero Condition if there is none.
func conditionIn(status *v1alpha1.CacheBackendStatus, kind string) metav1.Condition {
	if c := meta.FindStatusCondition(status.Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{Type: kind}
}

// explained remembers which pods an event has explained.
type explained struct {
	mu   sync.Mutex
	pods map[types.NamespacedName][]types.UID // by backend, those alive
}

// first keeps the pods that are there and returns those that are new.
func (e *explained) first(backend types.NamespacedName, pods []types.UID) (fresh []types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, uid := range pods {
		if !slices.Contains(e.pods[backend], uid) {
			fresh = append(fresh, uid)
		}
	}
	if e.pods == nil {
		e.pods = make(map[types.NamespacedName][]types.UID)
	}
	e.pods[backend] = pods
	return fresh
}

func (e *explained) forget(backend types.NamespacedName) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.pods, backend)
}

// unseenNotes explain the codes of pods that the webhook never saw.
var unseenNotes = map[string]string{
	codePredatesBackend:   "the pod is older than the CacheBackend; restart it to have it injected",
	codeNamespaceExcluded: "pods of this namespace are not injected",
	codeWebhookNotCalled:  "the API server did not ask the pod webhook when the pod was created",
}

// explain tells on each pod once why it was never injected.
func (r *BackendReconciler) explain(b *v1alpha1.CacheBackend, f *podFacts) {
	var unseen []types.UID
	for _, pod := range f.live {
		if f.unseen[pod.Name] != "" {
			unseen = append(unseen, pod.UID)
		}
	}
	fresh := r.explained.first(client.ObjectKeyFromObject(b), unseen)
	for _, pod := range f.live {
		if code := f.unseen[pod.Name]; code != "" && slices.Contains(fresh, pod.UID) {
			r.options.Events.Eventf(pod, b, corev1.EventTypeWarning, "InjectionSkipped", action, "%s: %s", code, unseenNotes[code])
		}
	}
}
