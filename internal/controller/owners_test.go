// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/controller"
)

// ownersBench is a bench that counts the kinds of workloads read.
func ownersBench(t *testing.T, objects ...client.Object) (b *bench, reads *int) {
	b, reads = newBench(t, objects...), new(int)
	live := interceptor.NewClient(newWatching(t, b.cluster), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
			*reads++
			return c.List(ctx, list, o...)
		},
	})
	return b.with(func(o *controller.BackendOptions) { o.Workloads = live }), reads
}

func newWatching(t *testing.T, c client.Client) client.WithWatch {
	t.Helper()
	watching, ok := c.(client.WithWatch)
	if !ok {
		t.Fatalf("%T does not watch", c)
	}
	return watching
}

func TestBackendsShareWhatWorkloadsWant(t *testing.T) {
	other := someBackend(func(c *v1alpha1.CacheBackend) {
		c.Name, c.UID = "other", "uid-other"
		c.Spec.EngineSelector.MatchLabels[v1alpha1.LabelCacheDomain] = "e"
	})
	b, reads := ownersBench(t, someBackend(), other, deployment("d", ptr(int32(2))))
	passes := func() {
		t.Helper()
		b.pass()
		if _, err := b.reconciler.Reconcile(t.Context(), reconcile.Request{NamespacedName: key("a", "other")}); err != nil {
			t.Fatal(err)
		}
	}
	passes()
	for range 4 * 60 / 5 {
		b.advance(5 * time.Second)
		passes()
	}
	if *reads != 3 {
		t.Errorf("%d lists in four minutes, want one of each of 3 kinds", *reads)
	}
	b.advance(time.Minute)
	passes()
	if *reads != 6 {
		t.Errorf("%d lists in five minutes, want two of each of 3 kinds", *reads)
	}
}

func TestBackendLooksAtWorkloadsWhenItsPodsGo(t *testing.T) {
	pod := injectedPod("p", "")
	b, reads := ownersBench(t, someBackend(), deployment("d", ptr(int32(2))))
	b.pass() // without pods, and two are wanted
	if err := b.cluster.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	b.pass()
	b.events.take()
	wanted := deployment("d", ptr(int32(0)))
	if err := b.cluster.Update(t.Context(), wanted); err != nil {
		t.Fatal(err)
	}
	if err := b.cluster.Delete(t.Context(), &corev1.Pod{ObjectMeta: object("a", "p")}); err != nil {
		t.Fatal(err)
	}
	if next := b.pass(); next != 30*time.Second {
		t.Errorf("next pass in %s, want 30s", next)
	}
	if message := b.status().EngineSelectorMessage; message != "" {
		t.Errorf("scaled to zero: %q", message)
	}
	b.wantEvents("")
	if *reads != 6 {
		t.Errorf("%d lists, want 3 at first and 3 when the pods were gone", *reads)
	}
}
