// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/controlclient"
	"github.com/inferencecache/inference-cache/internal/controller"
)

func TestBackendUnsupported(t *testing.T) {
	b := newBench(t, someBackend(), injectedPod("p", ""))
	b.pass()
	b.hear()
	b.pass()
	b.want("Ready=True/KVEventsObserved", "Progressing=False/Synced")
	b.change(func(c *v1alpha1.CacheBackend) { c.Spec.Type = v1alpha1.BackendSGLangHiCache })
	b.pass()
	b.want("Ready=False/Unsupported: VLLM/SGLangHiCache with mode Offload is not supported; supported are SGLang/External",
		"Progressing=", "Degraded=", "InjectionHealthy=", "ReplicasReporting=", "FunctionalProbeOK=")
	status := b.status()
	if status.FirstAvailableAt != nil || status.FirstKVEventObservedAt == nil || status.IndexParticipation == nil || status.ObservedGeneration != 2 {
		t.Errorf("want the anchor cleared, latch and participation kept: %+v", status)
	}
	b.change(func(c *v1alpha1.CacheBackend) { c.Spec.Type = v1alpha1.BackendMemory })
	b.advance(time.Hour)
	b.pass()
	b.want("Ready=True/KVEventsObserved", "Degraded=False/NotDegraded")
	if at := b.status().FirstAvailableAt; at == nil || !at.Time.Equal(b.clock()) {
		t.Errorf("the anchor is %v, want now", at)
	}
}

func TestBackendWaitsForTheFirstEvent(t *testing.T) {
	b := newBench(t, someBackend(), injectedPod("p", ""))
	if next := b.pass(); next != 30*time.Second {
		t.Errorf("next pass in %s, want 30s", next)
	}
	b.want("Ready=False/AwaitingFirstKVEvent", "Progressing=True/AwaitingFirstKVEvent", "Degraded=False/NotDegraded")
	b.wantEvents("Normal AwaitingFirstKVEvent")
	b.advance(5*time.Minute - 10*time.Second)
	if next := b.pass(); next != 10*time.Second {
		t.Errorf("next pass in %s, want at the end of the wait, 10s", next)
	}
	b.wantEvents("")
	b.advance(10 * time.Second)
	b.pass()
	b.want("Ready=False/NoKVEventsObserved: no KV event within 5m0s", "Progressing=False/NoKVEventsObserved", "Degraded=True/NoKVEventsObserved")
	b.wantEvents("Warning NoKVEventsObserved, Warning BackendDegraded")
	b.change(func(c *v1alpha1.CacheBackend) {
		c.Spec.Observation = &v1alpha1.BackendObservation{FirstEventTimeout: &metav1.Duration{Duration: time.Hour}}
	})
	b.pass()
	b.want("Ready=False/NoKVEventsObserved") // sticky, though an hour is not over
	b.hear()
	b.pass()
	b.want("Ready=True/KVEventsObserved", "Progressing=False/Synced", "Degraded=False/NotDegraded")
	b.wantEvents("Normal KVEventsObserved, Normal BackendRecovered")
	first := b.status().FirstKVEventObservedAt
	b.change(func(c *v1alpha1.CacheBackend) {})
	object := get[v1alpha1.CacheBackend](t, b.cluster, key("a", "cb"))
	object.Status.IndexParticipation.LastEventAt = nil
	if err := b.cluster.Status().Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	b.advance(time.Hour)
	b.pass()
	b.want("Ready=True/KVEventsObserved") // latched
	b.wantEvents("")
	if got := b.status().FirstKVEventObservedAt; !got.Equal(first) {
		t.Errorf("the latch moved from %v to %v", first, got)
	}
	before := b.patches
	b.pass()
	if b.patches != before {
		t.Error("a pass that finds nothing new writes")
	}
}

func TestBackendFirstEventTimeout(t *testing.T) {
	for name, tc := range map[string]struct {
		timeout time.Duration
		after   time.Duration
		want    string
	}{
		"a short one is over":         {time.Minute, time.Minute, "Ready=False/NoKVEventsObserved"},
		"a short one is not over":     {time.Minute, 59 * time.Second, "Ready=False/AwaitingFirstKVEvent"},
		"zero counts as five minutes": {0, 5*time.Minute - time.Second, "Ready=False/AwaitingFirstKVEvent"},
		"less counts as five minutes": {-time.Hour, 5 * time.Minute, "Ready=False/NoKVEventsObserved"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, someBackend(func(c *v1alpha1.CacheBackend) {
				c.Spec.Observation = &v1alpha1.BackendObservation{FirstEventTimeout: &metav1.Duration{Duration: tc.timeout}}
			}))
			b.pass()
			b.advance(tc.after)
			b.pass()
			b.want(tc.want)
		})
	}
}

func TestBackendWithoutEnginesSaysSo(t *testing.T) {
	for name, tc := range map[string]struct {
		objects []client.Object
		want    string
	}{
		"none":          {[]client.Object{someBackend()}, "there are no engine pods"},
		"a pod":         {[]client.Object{someBackend(), injectedPod("p", "")}, "engines send none"},
		"external ones": {[]client.Object{someBackend(func(c *v1alpha1.CacheBackend) { c.Spec.Observation = backend("b", "", "ext").Spec.Observation })}, "engines send none"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, tc.objects...)
			b.pass()
			b.advance(5 * time.Minute)
			b.pass()
			b.want("Ready=False/NoKVEventsObserved: no KV event within 5m0s: " + tc.want)
		})
	}
}

func TestBackendRequireKVEventsAnnotation(t *testing.T) {
	for value, want := range map[string]string{
		"false": "Ready=True/EventsOnlyActive", "true": "Ready=False/AwaitingFirstKVEvent", "False": "Ready=False/AwaitingFirstKVEvent",
	} {
		b := newBench(t, someBackend(annotated(v1alpha1.AnnotationRequireKVEvents, value)))
		b.pass()
		b.want(want)
	}
}

func TestBackendFailOpenIsEchoed(t *testing.T) {
	set := func(open *bool) func(*v1alpha1.CacheBackend) {
		return func(c *v1alpha1.CacheBackend) { c.Spec.Integration = &v1alpha1.BackendIntegration{FailOpen: open} }
	}
	b := newBench(t, someBackend(set(ptr(false))))
	b.pass()
	b.wantEvents("Normal AwaitingFirstKVEvent, Normal EngineSelectorUnmatched, Warning FailClosedEnabled")
	b.change(set(nil))
	b.pass()
	b.wantEvents("Normal FailOpenRestored")
	if got := b.status().FailOpen; got == nil || !*got {
		t.Errorf("failOpen %v, want true", got)
	}
}

func deployment(domain string, replicas *int32) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: object("a", "engines")}
	d.Spec.Replicas, d.Spec.Template.Labels = replicas, map[string]string{v1alpha1.LabelCacheDomain: domain}
	return d
}

func TestBackendMatchedPods(t *testing.T) {
	statefulSet := &appsv1.StatefulSet{ObjectMeta: object("a", "engines")}
	statefulSet.Spec.Replicas, statefulSet.Spec.Template.Labels = ptr(int32(0)), map[string]string{v1alpha1.LabelCacheDomain: "d"}
	replicaSet := &appsv1.ReplicaSet{ObjectMeta: object("a", "engines")}
	replicaSet.Spec.Replicas, replicaSet.Spec.Template.Labels = ptr(int32(0)), map[string]string{v1alpha1.LabelCacheDomain: "d"}
	const unmatched = "spec.engineSelector.matchLabels={inferencecache.io/cache-domain:d}; no Pods in namespace match"
	for name, tc := range map[string]struct {
		objects []client.Object
		edit    func(*v1alpha1.CacheBackend)
		matched *int32
		message string
		next    time.Duration
	}{
		"pods":                           {objects: []client.Object{injectedPod("p", ""), injectedPod("q", "")}, matched: ptr(int32(2)), next: 30 * time.Second},
		"no selector":                    {edit: func(c *v1alpha1.CacheBackend) { c.Spec.EngineSelector = nil }, next: 30 * time.Second},
		"no pods and no owners":          {matched: ptr(int32(0)), message: unmatched, next: 30 * time.Second},
		"a Deployment wants two":         {objects: []client.Object{deployment("d", ptr(int32(2)))}, matched: ptr(int32(0)), message: unmatched, next: 5 * time.Second},
		"a Deployment wants the usual":   {objects: []client.Object{deployment("d", nil)}, matched: ptr(int32(0)), message: unmatched, next: 5 * time.Second},
		"a Deployment wants none":        {objects: []client.Object{deployment("d", ptr(int32(0)))}, matched: ptr(int32(0)), next: 30 * time.Second},
		"a Deployment of something else": {objects: []client.Object{deployment("e", ptr(int32(0)))}, matched: ptr(int32(0)), message: unmatched, next: 30 * time.Second},
		"a StatefulSet wants none":       {objects: []client.Object{statefulSet}, matched: ptr(int32(0)), next: 30 * time.Second},
		"a bare ReplicaSet wants none":   {objects: []client.Object{replicaSet}, matched: ptr(int32(0)), next: 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.edit == nil {
				tc.edit = func(*v1alpha1.CacheBackend) {}
			}
			b := newBench(t, append(tc.objects, someBackend(tc.edit))...)
			if next := b.pass(); next != tc.next {
				t.Errorf("next pass in %s, want %s", next, tc.next)
			}
			status := b.status()
			if (status.MatchedEnginePods == nil) != (tc.matched == nil) || tc.matched != nil && *status.MatchedEnginePods != *tc.matched {
				t.Errorf("matched %v, want %v", status.MatchedEnginePods, tc.matched)
			}
			if status.EngineSelectorMessage != tc.message {
				t.Errorf("message %q, want %q", status.EngineSelectorMessage, tc.message)
			}
			if got := strings.Contains(b.events.take(), "EngineSelectorUnmatched"); got != (tc.message != "") {
				t.Errorf("event %v", got)
			}
			b.pass()
			b.wantEvents("")
		})
	}
}

func TestBackendInjectionHealthy(t *testing.T) {
	blocked := injectedPod("p", "new")
	blocked.Status.InitContainerStatuses = []corev1.ContainerStatus{{
		Name: "kvevent-subscriber", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}},
	}}
	ended, old := somePod("p"), somePod("p")
	ended.Status.Phase = corev1.PodSucceeded
	old.CreationTimestamp = metav1.NewTime(birth.Add(-time.Hour))
	forged := somePod("p", v1alpha1.AnnotationInjectedBy, "a/cb", v1alpha1.AnnotationInjectedByUID, "another")
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{v1alpha1.LabelInjection: "disabled"}}}
	open := someBackend()
	open.Status.Injection = &v1alpha1.InjectionStatus{Breaker: &v1alpha1.InjectionBreaker{Open: true, Reason: "ImagePullBackOff", Image: "pub:1", ConfigHash: "new"}}
	for name, tc := range map[string]struct {
		objects []client.Object
		backend *v1alpha1.CacheBackend
		want    string
	}{
		"all":                 {[]client.Object{injectedPod("p", "new")}, nil, "True/AllInjected: 1 of 1 injected"},
		"none there":          {nil, nil, "Unknown/NoEnginePods"},
		"only ended ones":     {[]client.Object{ended}, nil, "Unknown/NoEnginePods"},
		"a stale one":         {[]client.Object{injectedPod("p", "new"), injectedPod("q", "old")}, nil, "False/StaleInjection: 2 of 2 injected; restart 1 to wire them as declared: q"},
		"a skipped one":       {[]client.Object{somePod("p", v1alpha1.AnnotationInjectSkipped, "model-id-unset")}, nil, "False/PodsSkipped: 0 of 1 injected; model-id-unset: 1: p"},
		"one never seen":      {[]client.Object{somePod("p")}, nil, "False/PodsUnseen: 0 of 1 injected; webhook-not-called: 1: p"},
		"one older than it":   {[]client.Object{old}, nil, "False/PodsUnseen: 0 of 1 injected; predates-backend: 1: p"},
		"a namespace without": {[]client.Object{somePod("p"), namespace}, nil, "False/PodsUnseen: 0 of 1 injected; namespace-excluded: 1: p"},
		"a stamp of another":  {[]client.Object{forged}, nil, "False/PodsUnseen: 0 of 1 injected; webhook-not-called"},
		"a blocked publisher": {[]client.Object{blocked}, nil, "False/SidecarUnavailable: 1 of 1 injected; the publisher of 1 does not run (ImagePullBackOff): p; to unblock: kubectl -n a set image pod/p kvevent-subscriber=pub:1"},
		"an open breaker":     {[]client.Object{injectedPod("p", "new")}, open, "False/BreakerOpen: 1 of 1 injected; new pods get no publisher: ImagePullBackOff"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.backend == nil {
				tc.backend = someBackend()
			}
			b := newBench(t, append(tc.objects, tc.backend)...).with(func(o *controller.BackendOptions) {
				o.ConfigHash, o.SidecarImage = func(*v1alpha1.CacheBackend, *adapter.Binding) string { return "new" }, "pub:1"
			})
			b.pass()
			b.want("InjectionHealthy=" + tc.want)
			events := b.events.take()
			if got, want := strings.Contains(events, "InjectionDegraded"), strings.HasPrefix(tc.want, "False"); got != want {
				t.Errorf("events %q", events)
			}
			if got, want := strings.Contains(events, "Warning SidecarUnavailable"), strings.Contains(tc.want, "SidecarUnavailable"); got != want {
				t.Errorf("events %q", events)
			}
			if got, want := len(podEvents(t, b.cluster, "a")) == 1, strings.Contains(tc.want, "PodsUnseen"); got != want {
				t.Errorf("events on pods %q", podEvents(t, b.cluster, "a"))
			}
			b.pass()
			b.wantEvents("")
		})
	}
}

func TestBackendInjectionRecovers(t *testing.T) {
	b := newBench(t, someBackend(), somePod("p", v1alpha1.AnnotationInjectSkipped, "model-id-unset"), injectedPod("q", ""))
	b.pass()
	status := b.status().Injection
	if status.InjectedPods != 1 || status.SkippedPods != 1 || len(status.Skipped) != 1 || status.Skipped[0].ExamplePod != "p" {
		t.Errorf("injection %+v", status)
	}
	b.events.take()
	if err := b.cluster.Delete(t.Context(), somePod("p")); err != nil {
		t.Fatal(err)
	}
	b.pass()
	b.want("InjectionHealthy=True/AllInjected")
	b.wantEvents("Normal InjectionRecovered")
}

// A pod that the webhook did not see says what it likes.
func TestBackendStatusHoldsNoForgedText(t *testing.T) {
	long := strings.Repeat("x", 200<<10)
	b := newBench(t, someBackend(),
		somePod("p", v1alpha1.AnnotationInjectSkipped, long+"1"), somePod("q", v1alpha1.AnnotationInjectSkipped, long+"2"))
	b.pass()
	skipped := b.status().Injection.Skipped
	if len(skipped) != 1 || skipped[0].Count != 2 || len(skipped[0].Reason) > 64 {
		t.Errorf("%d reasons, the first of %d bytes for %d pods, want one short one for 2", len(skipped), len(skipped[0].Reason), skipped[0].Count)
	}
}

func snapshotOf(ids ...string) *controlclient.Snapshot {
	s := new(controlclient.Snapshot)
	for _, id := range ids {
		s.Replicas = append(s.Replicas, controlclient.Replica{Tenant: "a", ReplicaID: id})
	}
	return s
}

func TestBackendReplicasReporting(t *testing.T) {
	external := func(c *v1alpha1.CacheBackend) {
		c.Spec.EngineSelector = nil
		c.Spec.Observation = &v1alpha1.BackendObservation{ExternalReplicas: []v1alpha1.ExternalReplica{{ReplicaID: "far"}}}
	}
	b := newBench(t, someBackend(), injectedPod("p", ""), injectedPod("q", ""))
	b.pass()
	b.want("ReplicasReporting=") // no poll yet
	b.rows.Set(snapshotOf("p#0", "p#1"))
	b.pass()
	b.want("ReplicasReporting=True/AllReporting")
	b.events.take()
	b.advance(5*time.Minute + time.Second)
	b.pass()
	b.want("ReplicasReporting=False/SomeSilent: 1 are ready for more than 5m0s and not in the index: q")
	if events := b.events.take(); !strings.Contains(events, "Warning ReplicasSilent") {
		t.Errorf("events %q", events)
	}
	b.rows.Set(snapshotOf("p", "q"))
	b.pass()
	b.want("ReplicasReporting=True/AllReporting")

	b = newBench(t, someBackend())
	b.pass()
	b.want("ReplicasReporting=Unknown/NoEnginePods")
	b = newBench(t, someBackend(external))
	b.rows.Set(snapshotOf())
	b.pass()
	b.want("ReplicasReporting=True/AllReporting")
	b.advance(time.Hour)
	b.pass()
	b.want("ReplicasReporting=False/SomeSilent: 1 are ready for more than 5m0s and not in the index: far")
}

// A status that meets another's write is repeated on what that one left.
func TestBackendStatusConflict(t *testing.T) {
	b := newBench(t, someBackend())
	once := sync.Once{}
	b.with(func(o *controller.BackendOptions) {
		o.Client = interceptor.NewClient(b.cluster.(client.WithWatch), interceptor.Funcs{
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				once.Do(b.hear)
				return c.SubResource(sub).Patch(ctx, o, p, opts...)
			},
		})
	})
	if _, err := b.reconciler.Reconcile(t.Context(), reconcile.Request{NamespacedName: key("a", "cb")}); err != nil {
		t.Fatal(err)
	}
	b.want("Ready=True/KVEventsObserved")
	b.wantEvents("Normal KVEventsObserved, Normal EngineSelectorUnmatched")
}

func TestBackendGone(t *testing.T) {
	b := newBench(t)
	if next := b.pass(); next != 0 {
		t.Errorf("a backend that is gone is looked at again in %s", next)
	}
}
