// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
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

// Events that have a reason of their own; others have that of a condition.
const (
	eventBackendDegraded   = "BackendDegraded"
	eventBackendRecovered  = "BackendRecovered"
	eventProbeFailed       = "ProbeFailed"
	eventProbeRecovered    = "ProbeRecovered"
	eventInjectionDegraded = "InjectionDegraded"
	eventInjectionHealed   = "InjectionRecovered"
	eventReplicasSilent    = "ReplicasSilent"
	eventSelectorUnmatched = "EngineSelectorUnmatched"
	eventFailClosed        = "FailClosedEnabled"
	eventFailOpen          = "FailOpenRestored"
)

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
		{v1alpha1.ConditionDegraded, metav1.ConditionTrue, eventBackendDegraded, eventBackendRecovered},
		{v1alpha1.ConditionFunctionalProbeOK, metav1.ConditionFalse, eventProbeFailed, eventProbeRecovered},
		{v1alpha1.ConditionInjectionHealthy, metav1.ConditionFalse, eventInjectionDegraded, eventInjectionHealed},
		{v1alpha1.ConditionReplicasReporting, metav1.ConditionFalse, eventReplicasSilent, ""},
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
		add(warning, eventInjectionDegraded, healthy.Reason+": "+healthy.Message)
	case wasOpen && !isOpen && healthy.Status == metav1.ConditionFalse:
		add(normal, eventInjectionHealed, "new pods get a publisher again")
	}
	if now := is(v1alpha1.ConditionInjectionHealthy); now.Reason == reasonSidecarUnavailable && was(now.Type).Reason != now.Reason {
		add(warning, reasonSidecarUnavailable, now.Message)
	}
	for _, kind := range []string{v1alpha1.ConditionConnectorReady, v1alpha1.ConditionRemoteStorageReady} {
		switch old, now := was(kind), is(kind); {
		case now.Reason == "" || now.Reason == old.Reason && now.Status == old.Status:
		case now.Status == metav1.ConditionTrue:
			add(normal, now.Reason, now.Message)
		default:
			add(warning, now.Reason, now.Message)
		}
	}
	if now := is(v1alpha1.ConditionEngineCompatibility); now.Reason != "" && was(now.Type).Reason != now.Reason {
		add(warning, now.Reason, now.Message)
	}
	if before.EngineSelectorMessage == "" && after.EngineSelectorMessage != "" {
		add(normal, eventSelectorUnmatched, after.EngineSelectorMessage)
	}
	if after.FailOpen != nil {
		switch open := before.FailOpen == nil || *before.FailOpen; {
		case open && !*after.FailOpen:
			add(warning, eventFailClosed, "engines do not serve while their storage tier fails")
		case !open && *after.FailOpen:
			add(normal, eventFailOpen, "engines serve without the storage tier when it fails")
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

// fresh returns the pods, given the oldest first, that are still to be
// explained, and forgets those that are gone. At the first look at a backend as
// many as its status counts have been explained by an earlier leader.
func (e *explained) fresh(backend types.NamespacedName, pods []types.UID, counted int) (fresh []types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pods == nil {
		e.pods = make(map[types.NamespacedName][]types.UID)
	}
	told, looked := e.pods[backend]
	if !looked {
		told = pods[:min(counted, len(pods))]
	}
	kept := []types.UID{}
	for _, uid := range pods {
		if slices.Contains(told, uid) {
			kept = append(kept, uid)
		} else {
			fresh = append(fresh, uid)
		}
	}
	e.pods[backend] = kept
	return fresh
}

func (e *explained) told(backend types.NamespacedName, pod types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pods[backend] = append(e.pods[backend], pod)
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
	codeWebhookNotCalled: "the API server did not ask the pod webhook about this pod: the webhook was away, " +
		"or the pod got its label, or the CacheBackend its selector, only later; restart the pod",
}

// explain tells on each pod once why it was never injected, and counts it.
func (r *BackendReconciler) explain(ctx context.Context, b *v1alpha1.CacheBackend, before *v1alpha1.InjectionStatus, f *podFacts) error {
	var (
		unseen []*corev1.Pod
		uids   []types.UID
		failed error
	)
	for _, pod := range f.live {
		if f.unseen[pod.Name] != "" {
			unseen = append(unseen, pod)
		}
	}
	slices.SortStableFunc(unseen, func(a, b *corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	for _, pod := range unseen {
		uids = append(uids, pod.UID)
	}
	counted := 0
	if before != nil {
		counted = int(before.UnseenPods)
	}
	name := client.ObjectKeyFromObject(b)
	fresh := r.explained.fresh(name, uids, counted)
	for _, pod := range unseen {
		if !slices.Contains(fresh, pod.UID) {
			continue
		}
		code := f.unseen[pod.Name]
		e := podEvent{corev1.EventTypeWarning, eventInjectionOff, code + ": " + unseenNotes[code], code, referenceTo(b)}
		if err := tellPod(ctx, r.options.Client, pod, e, r.options.Now()); err != nil {
			failed = errors.Join(failed, fmt.Errorf("write the event of pod %s: %w", pod.Name, err))
			continue
		}
		r.explained.told(name, pod.UID)
		r.options.Unseen(code)
	}
	return failed
}
