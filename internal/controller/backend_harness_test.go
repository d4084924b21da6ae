// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/controller"
)

// recorded keeps events as "Type Reason".
type recorded struct {
	mu  sync.Mutex
	all []string
}

func (r *recorded) Eventf(_, _ runtime.Object, kind, reason, _, note string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if text := fmt.Sprintf(note, args...); text == "" || strings.Contains(text, "%!") {
		reason += " with a broken note"
	}
	r.all = append(r.all, kind+" "+reason)
}

func (r *recorded) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := strings.Join(r.all, ", ")
	r.all = nil
	return all
}

// bench is a reconciler over one backend, on its own clock.
type bench struct {
	t          *testing.T
	cluster    client.Client
	events     *recorded
	rows       *controller.Rows
	prober     *controller.Prober
	options    controller.BackendOptions
	reconciler *controller.BackendReconciler
	patches    int
	mu         sync.Mutex
	now        time.Time
}

var birth = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func (b *bench) clock() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

func (b *bench) advance(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = b.now.Add(d)
}

// newBench looks at backend a/cb.
func newBench(t *testing.T, objects ...client.Object) *bench {
	b := &bench{t: t, events: new(recorded), rows: new(controller.Rows), now: birth}
	b.cluster = interceptor.NewClient(newCluster(t, objects...), interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			b.patches++
			return c.SubResource(sub).Patch(ctx, o, p, opts...)
		},
	})
	b.options = controller.BackendOptions{Client: b.cluster, Rows: b.rows, Events: b.events, Now: b.clock, Namespace: "inference-cache-system"}
	b.reconciler = controller.NewBackendReconciler(b.options)
	return b
}

// with changes the options.
func (b *bench) with(change func(*controller.BackendOptions)) *bench {
	change(&b.options)
	b.reconciler = controller.NewBackendReconciler(b.options)
	return b
}

// pass reconciles once and returns after how long the next pass is due.
func (b *bench) pass() time.Duration {
	b.t.Helper()
	before := b.patches
	result, err := b.reconciler.Reconcile(b.t.Context(), reconcile.Request{NamespacedName: key("a", "cb")})
	if err != nil {
		b.t.Fatal(err)
	}
	if n := b.patches - before; n > 1 {
		b.t.Errorf("one pass patched the status %d times", n)
	}
	return result.RequeueAfter
}

func (b *bench) status() v1alpha1.CacheBackendStatus {
	b.t.Helper()
	return get[v1alpha1.CacheBackend](b.t, b.cluster, key("a", "cb")).Status
}

// want checks that conditions begin as given, "Type=Status/Reason".
func (b *bench) want(conditions ...string) {
	b.t.Helper()
	status := b.status()
	for _, want := range conditions {
		kind, value, _ := strings.Cut(want, "=")
		got := conditionOf(status.Conditions, kind)
		if value == "" && got != "" || !strings.HasPrefix(got, value) {
			b.t.Errorf("%s is %q, want %q", kind, got, value)
		}
	}
}

func (b *bench) wantEvents(want string) {
	b.t.Helper()
	if got := b.events.take(); got != want {
		b.t.Errorf("events %q, want %q", got, want)
	}
}

// change edits the backend and counts a generation.
func (b *bench) change(edit func(*v1alpha1.CacheBackend)) {
	b.t.Helper()
	object := get[v1alpha1.CacheBackend](b.t, b.cluster, key("a", "cb"))
	edit(object)
	object.Generation++
	if err := b.cluster.Update(b.t.Context(), object); err != nil {
		b.t.Fatal(err)
	}
}

// hear puts an event into the status, as the poller does.
func (b *bench) hear() {
	b.t.Helper()
	object := get[v1alpha1.CacheBackend](b.t, b.cluster, key("a", "cb"))
	at := metav1.NewTime(b.clock())
	object.Status.IndexParticipation = &v1alpha1.IndexParticipation{PrefixCount: 3, LastEventAt: &at}
	if err := b.cluster.Status().Update(b.t.Context(), object); err != nil {
		b.t.Fatal(err)
	}
}

// someBackend watches the engines of domain d.
func someBackend(edits ...func(*v1alpha1.CacheBackend)) *v1alpha1.CacheBackend {
	b := &v1alpha1.CacheBackend{ObjectMeta: object("a", "cb")}
	b.UID, b.CreationTimestamp = "uid-cb", metav1.NewTime(birth)
	b.Spec.Runtime, b.Spec.Type = v1alpha1.RuntimeVLLM, v1alpha1.BackendMemory
	b.Spec.EngineSelector = &v1alpha1.EngineSelector{MatchLabels: map[string]string{v1alpha1.LabelCacheDomain: "d"}}
	for _, edit := range edits {
		edit(b)
	}
	return b
}

func annotated(name, value string) func(*v1alpha1.CacheBackend) {
	return func(b *v1alpha1.CacheBackend) { b.Annotations = map[string]string{name: value} }
}

// somePod is a Ready pod of domain d, with annotations in pairs.
func somePod(name string, annotations ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: object("a", name)}
	pod.UID, pod.CreationTimestamp = types.UID("uid-"+name), metav1.NewTime(birth.Add(time.Second))
	pod.Labels = map[string]string{v1alpha1.LabelCacheDomain: "d"}
	pod.Annotations = map[string]string{}
	for i := 0; i+1 < len(annotations); i += 2 {
		pod.Annotations[annotations[i]] = annotations[i+1]
	}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(birth)}}
	return pod
}

// injectedPod carries the stamps of someBackend.
func injectedPod(name, hash string) *corev1.Pod {
	return somePod(name, v1alpha1.AnnotationInjectedBy, "a/cb", v1alpha1.AnnotationInjectedByUID, "uid-cb",
		v1alpha1.AnnotationInjectedConfigHash, hash)
}
