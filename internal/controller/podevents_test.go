// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/controller"
)

// podEvents returns the events on pods of a namespace as
// "pod: Type Reason: note (related)".
func podEvents(t *testing.T, c client.Client, namespace string) (all []string) {
	t.Helper()
	var list eventsv1.EventList
	if err := c.List(t.Context(), &list, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Regarding.Kind != "Pod" {
			continue
		}
		text := e.Regarding.Name + ": " + e.Type + " " + e.Reason + ": " + e.Note
		if e.Related != nil {
			text += " (" + e.Related.Kind + " " + e.Related.Name + " " + string(e.Related.UID) + ")"
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return all
}

func TestPodEvents(t *testing.T) {
	const cb = " (CacheBackend cb uid-cb)"
	skipped := func(code, message string) *corev1.Pod {
		return somePod("p", v1alpha1.AnnotationInjectSkipped, code, v1alpha1.AnnotationInjectSkippedBy, "a/cb", v1alpha1.AnnotationInjectMessage, message)
	}
	warned := injectedPod("p", "hash")
	warned.Annotations[v1alpha1.AnnotationInjectWarnings] = "host-network"
	forged := injectedPod("p", "hash")
	forged.Annotations[v1alpha1.AnnotationInjectedByUID] = "uid-of-before"
	elsewhere := injectedPod("p", "hash")
	elsewhere.Annotations[v1alpha1.AnnotationInjectedBy] = "b/cb"
	moved := injectedPod("p", "hash")
	moved.Labels[v1alpha1.LabelCacheDomain] = "another"
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"injected":                   {injectedPod("p", "hash"), "p: Normal InjectedByCacheBackend: wired for CacheBackend cb" + cb},
		"injected with warnings":     {warned, "p: Normal InjectedByCacheBackend: wired for CacheBackend cb, with warnings: host-network" + cb},
		"opted out":                  {somePod("p", v1alpha1.AnnotationInjectSkipped, "skip-inject-annotation"), "p: Normal SkippedByOperator: the annotation inferencecache.io/skip-inject asks for no injection"},
		"skipped":                    {skipped("model-id-unset", "CacheBackend cb has none"), "p: Warning InjectionSkipped: model-id-unset: CacheBackend cb has none" + cb},
		"skipped without a message":  {skipped("breaker-open", ""), "p: Warning InjectionSkipped: breaker-open" + cb},
		"skipped by nobody known":    {somePod("p", v1alpha1.AnnotationInjectSkipped, "backend-lookup-failed"), "p: Warning InjectionSkipped: backend-lookup-failed"},
		"a stamp of another uid":     {forged, ""},
		"a stamp of another's space": {elsewhere, ""},
		"a stamp for another domain": {moved, ""},
		"no stamp":                   {somePod("p"), ""},
		"older than half an hour":    {bornAt(birth.Add(-31*time.Minute), injectedPod("p", "hash")), ""},
		"half an hour old":           {bornAt(birth.Add(-30*time.Minute), injectedPod("p", "hash")), "p: Normal InjectedByCacheBackend: wired for CacheBackend cb" + cb},
		"gone":                       {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []client.Object{someBackend()}
			if tc.pod != nil {
				objects = append(objects, tc.pod)
			}
			cluster := newCluster(t, objects...)
			for range 2 { // leaders after each other
				r := controller.NewPodEventReconciler(controller.PodEventOptions{Client: cluster, Now: func() time.Time { return birth }})
				if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key("a", "p")}); err != nil {
					t.Fatal(err)
				}
			}
			var want []string
			if tc.want != "" {
				want = []string{tc.want}
			}
			if got := podEvents(t, cluster, "a"); !slices.Equal(got, want) {
				t.Errorf("events %q, want %q", got, want)
			}
		})
	}
}

// A backend that the cache does not know yet is read from the API server, and
// an event that is refused is tried again.
func TestPodEventsAreNotLost(t *testing.T) {
	cluster := newCluster(t, injectedPod("p", "hash"), someBackend())
	refusal := errors.New("no right to write events")
	behind := interceptor.NewClient(cluster, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, name client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if _, ok := o.(*v1alpha1.CacheBackend); ok {
				name.Name = "absent"
			}
			return c.Get(ctx, name, o, options...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if refusal != nil {
				return refusal
			}
			return c.Create(ctx, o, options...)
		},
	})
	r := controller.NewPodEventReconciler(controller.PodEventOptions{Client: behind, Live: cluster, Now: func() time.Time { return birth }})
	request := reconcile.Request{NamespacedName: key("a", "p")}
	if _, err := r.Reconcile(t.Context(), request); !errors.Is(err, refusal) {
		t.Fatalf("error %v, want the refusal", err)
	}
	refusal = nil
	if _, err := r.Reconcile(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	if got := podEvents(t, cluster, "a"); len(got) != 1 {
		t.Errorf("events %q", got)
	}
}

// A name of the greatest length still gets an event.
func TestPodEventsFitLongNames(t *testing.T) {
	long := strings.Repeat("a", 235) + "." + strings.Repeat("b", 17)
	pod := injectedPod(long, "hash")
	cluster := newCluster(t, pod, someBackend())
	r := controller.NewPodEventReconciler(controller.PodEventOptions{Client: cluster, Now: func() time.Time { return birth }})
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key("a", long)}); err != nil {
		t.Fatal(err)
	}
	var list eventsv1.EventList
	if err := cluster.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 || len(list.Items[0].Name) > 253 || strings.Contains(list.Items[0].Name, "..") {
		t.Errorf("events %v", list.Items)
	}
}

// Pods that the webhook never saw are explained and counted once, also when
// leaders change and when events have been cleaned up since.
func TestUnseenPodsAreExplainedOnce(t *testing.T) {
	var counted []string
	b := newBench(t, someBackend(), somePod("p"), bornAt(birth, somePod("old"))).with(func(o *controller.BackendOptions) {
		o.Unseen = func(code string) { counted = append(counted, code) }
	})
	wantCounted := func(want ...string) {
		t.Helper()
		slices.Sort(counted)
		if !slices.Equal(counted, want) {
			t.Errorf("counted %q, want %q", counted, want)
		}
		counted = nil
	}
	b.pass()
	got := podEvents(t, b.cluster, "a")
	if len(got) != 2 || !strings.HasPrefix(got[0], "old: Warning InjectionSkipped: predates-backend: ") || !strings.HasPrefix(got[1], "p: Warning InjectionSkipped: webhook-not-called: ") {
		t.Errorf("events %q", got)
	}
	wantCounted("predates-backend", "webhook-not-called")
	b.pass()
	wantCounted()
	if err := b.cluster.DeleteAllOf(t.Context(), &eventsv1.Event{}, client.InNamespace("a")); err != nil {
		t.Fatal(err)
	}
	b.with(func(*controller.BackendOptions) {}) // another leader
	b.replace(bornAt(birth.Add(time.Hour), somePod("new")))
	b.pass()
	if got := podEvents(t, b.cluster, "a"); len(got) != 1 || !strings.HasPrefix(got[0], "new: ") {
		t.Errorf("events %q, want only that of the new pod", got)
	}
	wantCounted("webhook-not-called")
}

func TestUnseenPodIsExplainedOnceItCanBe(t *testing.T) {
	refusal := errors.New("no right to write events")
	counted := 0
	b := newBench(t, someBackend(), somePod("p"))
	b.with(func(o *controller.BackendOptions) {
		o.Unseen = func(string) { counted++ }
		o.Client = interceptor.NewClient(b.cluster.(client.WithWatch), interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
				if refusal != nil {
					return refusal
				}
				return c.Create(ctx, o, options...)
			},
		})
	})
	b.pass()
	if counted != 0 {
		t.Error("a pod counts before it is explained")
	}
	refusal = nil
	b.pass()
	if got := podEvents(t, b.cluster, "a"); len(got) != 1 || counted != 1 {
		t.Errorf("counted %d, events %q", counted, got)
	}
}
