// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/kernelcheck"
)

// Reasons of a CacheBackend's conditions. Those of a failing self-test stand
// on Ready too.
const (
	reasonUnsupported          = "Unsupported"
	reasonEventsOnlyActive     = "EventsOnlyActive"
	reasonAwaitingFirstKVEvent = "AwaitingFirstKVEvent"
	reasonKVEventsObserved     = "KVEventsObserved"
	reasonNoKVEventsObserved   = "NoKVEventsObserved"
	reasonSynced               = "Synced"
	reasonNotDegraded          = "NotDegraded"
	reasonProbeOK              = "ProbeOK"
	reasonProbeBypassed        = "ProbeBypassed"
	reasonProbeIngestFailed    = "ProbeIngestFailed"
	reasonProbeRoutingFailed   = "ProbeRoutingFailed"
	reasonProbeT2Failed        = "ProbeT2Failed"
	reasonProbeGRPCFailed      = "ProbeGRPCFailed"
	reasonProbeError           = "ProbeError"
)

// defaultFirstEventTimeout is how long a backend may stay without an event.
const defaultFirstEventTimeout = 5 * time.Minute

// firstEventTimeout is that of a backend; what is not positive is the default.
func firstEventTimeout(b *v1alpha1.CacheBackend) time.Duration {
	if o := b.Spec.Observation; o != nil && o.FirstEventTimeout != nil && o.FirstEventTimeout.Duration > 0 {
		return o.FirstEventTimeout.Duration
	}
	return defaultFirstEventTimeout
}

// sighting is what one pass has found out beside the backend itself.
type sighting struct {
	now metav1.Time
	// supported says that an adapter serves the backend, else why none does.
	supported   bool
	unsupported string
	pods        *podFacts
	remote      *remote    // nil without a storage
	connector   *connector // nil for a backend that only watches
	// nodesNext is when servers on nodes want to be looked at; 0 is never.
	nodesNext time.Duration
	// kernels is what the checks of the engines' kernels say, nil for none.
	kernels *kernelcheck.Verdict
	// base is Ready before all gates.
	base condition
	// probing is set when self-tests run at all; tested is a result that has
	// not been written yet.
	probing bool
	tested  *testResult
}

// judgeBackend writes what a pass has found into the status. It returns how
// long the gate on KV events still waits, 0 for not at all.
func judgeBackend(b *v1alpha1.CacheBackend, s *sighting) time.Duration {
	status := &b.Status
	status.ObservedGeneration = b.Generation
	status.MatchedEnginePods, status.EngineSelectorMessage = s.pods.matched, s.pods.message
	if !s.supported {
		status.Conditions = keepOnly(status.Conditions, v1alpha1.ConditionReady)
		status.FirstAvailableAt, status.Injection, status.FailOpen = nil, nil, nil
		status.Connector, status.RemoteStorage = nil, nil
		put(b, s.now, condition{v1alpha1.ConditionReady, reasonUnsupported, s.unsupported, metav1.ConditionFalse})
		return 0
	}
	open := adapter.FailsOpen(b)
	status.FailOpen = &open
	anew := status.Connector != nil && (s.connector == nil || s.connector.status == nil)
	if anew {
		status.FirstAvailableAt = nil
	}
	if status.FirstAvailableAt == nil && s.base.status == metav1.ConditionTrue {
		status.FirstAvailableAt = &s.now
	}
	judgeRemote(b, s)
	judgeConnector(b, s)
	judgeEngines(b, s)
	judgeKernels(b, s)
	ready, wait := gateOnEvents(b, s, anew)
	if test := judgeTest(b, ready.status == metav1.ConditionTrue, s); test != nil {
		put(b, s.now, *test)
		if ready.status == metav1.ConditionTrue && test.status == metav1.ConditionFalse {
			ready.status, ready.reason, ready.message = metav1.ConditionFalse, test.reason, test.message
		}
	}
	put(b, s.now, ready)
	put(b, s.now, progressing(ready))
	put(b, s.now, degraded(ready))
	status.Injection = s.pods.injection(status.Injection, s.now)
	put(b, s.now, s.pods.injectionHealthy(status.Injection))
	if reporting := s.pods.reporting(b, s.now.Time); reporting != nil {
		put(b, s.now, *reporting)
	}
	return wait
}

// gateOnEvents says whether the engines of a backend whose base is sound are
// heard of. Once an event was seen the answer stays yes; after too long without
// one it stays no until then, unless the backend is watched anew.
func gateOnEvents(b *v1alpha1.CacheBackend, s *sighting, anew bool) (ready condition, wait time.Duration) {
	status := &b.Status
	seen := status.IndexParticipation != nil && status.IndexParticipation.LastEventAt != nil
	if seen && status.FirstKVEventObservedAt == nil {
		status.FirstKVEventObservedAt = &s.now
	}
	if s.base.status != metav1.ConditionTrue {
		return s.base, 0
	}
	ready.kind = v1alpha1.ConditionReady
	if b.Annotations[v1alpha1.AnnotationRequireKVEvents] == "false" {
		ready = s.base
		ready.message += "; KV events are not required"
		return ready, 0
	}
	if status.FirstKVEventObservedAt != nil {
		ready.status, ready.reason, ready.message = metav1.ConditionTrue, reasonKVEventsObserved, "KV events arrive in the index"
		return ready, 0
	}
	timeout := firstEventTimeout(b)
	left := status.FirstAvailableAt.Add(timeout).Sub(s.now.Time)
	old := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)
	ready.status = metav1.ConditionFalse
	if left <= 0 || !anew && old != nil && old.Reason == reasonNoKVEventsObserved {
		ready.reason = reasonNoKVEventsObserved
		ready.message = "no KV event within " + timeout.String() + ": " + whyNoEvents(b)
		return ready, 0
	}
	ready.reason = reasonAwaitingFirstKVEvent
	ready.message = "no KV event yet; waiting for " + timeout.String() + " since " + status.FirstAvailableAt.UTC().Format(time.RFC3339)
	return ready, left
}

func whyNoEvents(b *v1alpha1.CacheBackend) string {
	matched, o := b.Status.MatchedEnginePods, b.Spec.Observation
	if matched != nil && *matched == 0 && (o == nil || len(o.ExternalReplicas) == 0) {
		return "there are no engine pods"
	}
	return "engines send none, or publishers do not reach the server"
}

func progressing(ready condition) condition {
	c := condition{v1alpha1.ConditionProgressing, ready.reason, ready.message, metav1.ConditionFalse}
	switch {
	case ready.status == metav1.ConditionTrue:
		c.reason, c.message = reasonSynced, ""
	case ready.reason == reasonAwaitingFirstKVEvent, ready.reason == reasonRolloutInProgress:
		c.status = metav1.ConditionTrue
	case ready.reason == reasonReplicasUnavailable:
		c.reason = v1alpha1.ConditionDegraded
	}
	return c
}

func degraded(ready condition) condition {
	if ready.reason == reasonNoKVEventsObserved || ready.reason == reasonReplicasUnavailable {
		return condition{v1alpha1.ConditionDegraded, ready.reason, ready.message, metav1.ConditionTrue}
	}
	return condition{v1alpha1.ConditionDegraded, reasonNotDegraded, "", metav1.ConditionFalse}
}

// judgeTest returns what FunctionalProbeOK is to be, nil where there is none.
func judgeTest(b *v1alpha1.CacheBackend, ready bool, s *sighting) *condition {
	old := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionFunctionalProbeOK)
	switch {
	case !ready:
		return nil // as it is
	case probeBypassed(b):
		return &condition{
			v1alpha1.ConditionFunctionalProbeOK, reasonProbeBypassed,
			"the annotation " + v1alpha1.AnnotationSkipFunctionalProbe + " waives the self-test", metav1.ConditionTrue,
		}
	case !s.probing:
		meta.RemoveStatusCondition(&b.Status.Conditions, v1alpha1.ConditionFunctionalProbeOK)
		return nil
	}
	if s.tested != nil && (s.tested.answered() || old == nil || old.Status != metav1.ConditionFalse) {
		c := s.tested.condition
		return &c
	}
	if old == nil || old.Reason == reasonProbeBypassed {
		meta.RemoveStatusCondition(&b.Status.Conditions, v1alpha1.ConditionFunctionalProbeOK)
		return nil
	}
	return &condition{old.Type, old.Reason, old.Message, old.Status}
}

func probeBypassed(b *v1alpha1.CacheBackend) bool {
	return b.Annotations[v1alpha1.AnnotationSkipFunctionalProbe] == "true"
}

// put writes a condition about the backend as it is now.
func put(b *v1alpha1.CacheBackend, now metav1.Time, c condition) {
	setConditionUpTo(maxBackendMessageBytes, &b.Status.Conditions, b.Generation, now, c)
}

func keepOnly(conditions []metav1.Condition, kind string) (kept []metav1.Condition) {
	for _, c := range conditions {
		if c.Type == kind {
			kept = append(kept, c)
		}
	}
	return kept
}

// probeOf says what the self-test of a backend puts into the index.
func probeOf(b *v1alpha1.CacheBackend, adapters *adapter.Registry) testRequest {
	r := testRequest{model: "functional-self-test", scheme: "vllm", kind: string(adapter.Type(b))}
	if o := b.Spec.Observation; o != nil && o.ModelID != "" {
		r.model = o.ModelID
	}
	if a, ok := adapters.For(b); ok {
		r.scheme = a.Engine().HashScheme
	}
	return r
}
