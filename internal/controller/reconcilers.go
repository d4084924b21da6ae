// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/storage"
)

// DefaultReconciles is how many objects of a kind are looked at at once.
const DefaultReconciles = 4

// definitionPatience is how long a kind that is not installed is waited for.
const definitionPatience = 10 * 365 * 24 * time.Hour

func reconcilerOptions(concurrent int) controller.Options {
	skip := true // names count in one process only
	return controller.Options{
		MaxConcurrentReconciles: concurrent, CacheSyncTimeout: definitionPatience, SkipNameValidation: &skip,
	}
}

// register has a manager run the reconciler after changes, those of other
// sources and results of self-tests.
func (r *BackendReconciler) register(mgr ctrl.Manager, concurrent int, more ...source.Source) error {
	build := builder.ControllerManagedBy(mgr).Named("cachebackend").
		For(&v1alpha1.CacheBackend{}, builder.WithPredicates(backendChanged())).
		Watches(&corev1.Pod{}, podHandler(r.ofPod), builder.WithPredicates(podChanged())).
		WithOptions(reconcilerOptions(concurrent))
	if r.options.Storages != nil {
		watchStorages(build)
	}
	for _, changes := range more {
		build = build.WatchesRawSource(changes)
	}
	if prober := r.options.Prober; prober != nil {
		build = build.WatchesRawSource(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			prober.notify(func(name types.NamespacedName) { queue.Add(reconcile.Request{NamespacedName: name}) })
			return nil
		}))
	}
	if err := build.Complete(recovering{r, r.options.Metrics}); err != nil {
		return fmt.Errorf("set up the reconciler of CacheBackends: %w", err)
	}
	return nil
}

// cacheStorages keeps only those objects of the kinds of managed storages that
// belong to one.
func cacheStorages(byObject map[client.Object]cache.ByObject) {
	for _, kind := range storageKinds() {
		object := &metav1.PartialObjectMetadata{}
		object.SetGroupVersionKind(kind)
		byObject[object] = cache.ByObject{Label: labels.SelectorFromSet(storage.SelectorLabels())}
	}
}

// watchStorages has changes of the objects of managed storages looked at. Only
// their metadata is kept, which changes with all else.
func watchStorages(build *builder.Builder) {
	for _, kind := range storageKinds() {
		object := &metav1.PartialObjectMetadata{}
		object.SetGroupVersionKind(kind)
		build.Owns(object, builder.OnlyMetadata)
	}
}

// register has a manager run the reconciler after changes.
func (r *TopologyReconciler) register(mgr ctrl.Manager, concurrent int, metrics *Metrics) error {
	err := builder.ControllerManagedBy(mgr).Named("pdtopology").
		For(&v1alpha1.PDTopology{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&corev1.Pod{}, podHandler(r.ofPod), builder.WithPredicates(podChanged())).
		WithOptions(reconcilerOptions(concurrent)).Complete(recovering{r, metrics})
	if err != nil {
		return fmt.Errorf("set up the reconciler of PDTopologies: %w", err)
	}
	return nil
}

// register has a manager run it after changes of backends, of copies and of
// the authority.
func (s *ServerCA) register(mgr ctrl.Manager) error {
	inNamespace := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, object client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(), Name: s.options.ConfigMap}}}
	})
	comesAndGoes := predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }}
	err := builder.ControllerManagedBy(mgr).Named("serverca").
		Watches(&v1alpha1.CacheBackend{}, inNamespace, builder.WithPredicates(comesAndGoes)).
		Watches(&corev1.ConfigMap{}, &handler.EnqueueRequestForObject{}).
		WatchesRawSource(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			s.notify(func(name types.NamespacedName) { queue.Add(reconcile.Request{NamespacedName: name}) })
			return nil
		})).
		WithOptions(reconcilerOptions(1)).Complete(s)
	if err != nil {
		return fmt.Errorf("set up the servers' authority: %w", err)
	}
	return nil
}

func podHandler(of func(context.Context, *corev1.Pod) []reconcile.Request) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, object client.Object) []reconcile.Request {
		pod, ok := object.(*corev1.Pod)
		if !ok {
			return nil
		}
		return of(ctx, pod)
	})
}

// backendChanged passes changes of the spec and the annotations, and the first
// event that is heard of. Other statuses are our own.
func backendChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, okBefore := e.ObjectOld.(*v1alpha1.CacheBackend)
		after, okAfter := e.ObjectNew.(*v1alpha1.CacheBackend)
		if !okBefore || !okAfter {
			return true
		}
		return before.Generation != after.Generation || before.UID != after.UID ||
			!maps.Equal(before.Annotations, after.Annotations) || !heard(before) && heard(after) ||
			(tier2Rate(before) == "0") != (tier2Rate(after) == "0")
	}}
}

func heard(b *v1alpha1.CacheBackend) bool {
	return b.Status.IndexParticipation != nil && b.Status.IndexParticipation.LastEventAt != nil
}

// podChanged passes what the reconcilers read of pods.
func podChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, okBefore := e.ObjectOld.(*corev1.Pod)
		after, okAfter := e.ObjectNew.(*corev1.Pod)
		if !okBefore || !okAfter {
			return true
		}
		_, wasReady := readySince(before)
		_, isReady := readySince(after)
		return wasReady != isReady || before.UID != after.UID || live(before) != live(after) ||
			before.Spec.NodeName != after.Spec.NodeName || sidecarOf(before) != sidecarOf(after) ||
			serverReady(before) != serverReady(after) || engineLoops(before) != engineLoops(after) ||
			checksOf(before) != checksOf(after) ||
			!maps.Equal(before.Labels, after.Labels) || !maps.Equal(before.Annotations, after.Annotations)
	}}
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

func sortedNames[V any](m map[types.NamespacedName]V) []types.NamespacedName {
	return slices.SortedFunc(maps.Keys(m), func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
}
