// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
)

const (
	// restInterval is the longest time between two looks at a backend.
	restInterval = 30 * time.Second
	// podsInterval is the time between looks while pods are missing.
	podsInterval = 5 * time.Second
)

// BackendOptions of a BackendReconciler. Fields without a default are
// required.
type BackendOptions struct {
	// Client reads backends and pods, and writes status.
	Client client.Client
	// Workloads reads the owners of pods, and only where no pod is found, every
	// few minutes at most for the backends of a namespace; default Client.
	Workloads client.Reader
	// Adapters say which backends are served; default adapter.Core.
	Adapters *adapter.Registry
	// ConfigHash is what pods injected now are stamped with, by the storage
	// that they are bound to; default "", and no pod is stale.
	ConfigHash func(*v1alpha1.CacheBackend, *adapter.Binding) string
	// Storages runs managed storages; default none, and nothing is known of
	// storages.
	Storages *Storages
	// NodeServers keeps servers on nodes; default none, and engines wait.
	NodeServers NodeServers
	// SidecarImage is that of the injected publisher; default none.
	SidecarImage string
	// RepairSidecarImage gives publishers whose other image keeps their pods
	// from serving the SidecarImage; default false.
	RepairSidecarImage bool
	// Prober runs the self-tests; default none, and there is no condition.
	Prober *Prober
	// Rows are the replicas in the index; default unknown.
	Rows *Rows
	// Namespace is the controller's own, in which nothing is injected.
	Namespace string
	// Unseen is told once of each pod that the webhook never saw, with the code
	// of why; default nobody.
	Unseen func(code string)
	// Events takes the events about backends; default nobody.
	Events events.EventRecorder
	// Metrics of what is gone are removed; default none.
	Metrics *Metrics
	// Logger takes the logs; default none.
	Logger *slog.Logger
	// Now is the clock; default time.Now.
	Now func() time.Time
}

// BackendReconciler says on each CacheBackend whether its engines are wired,
// heard of and of use. It is safe for concurrent use.
type BackendReconciler struct {
	options   BackendOptions
	owners    *owners
	explained explained
	troubles  troubles
}

var _ reconcile.Reconciler = (*BackendReconciler)(nil)

// NewBackendReconciler returns a reconciler of CacheBackends.
func NewBackendReconciler(o BackendOptions) *BackendReconciler {
	if o.Workloads == nil {
		o.Workloads = o.Client
	}
	if o.Adapters == nil {
		o.Adapters = adapter.Core()
	}
	if o.ConfigHash == nil {
		o.ConfigHash = func(*v1alpha1.CacheBackend, *adapter.Binding) string { return "" }
	}
	if o.Unseen == nil {
		o.Unseen = func(string) {}
	}
	if o.Events == nil {
		o.Events = noEvents{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &BackendReconciler{options: o, owners: newOwners(o.Workloads, o.Now)}
}

// noEvents drops events.
type noEvents struct{}

// Eventf implements events.EventRecorder.
func (noEvents) Eventf(_, _ runtime.Object, _, _, _, _ string, _ ...any) {}

// Reconcile looks at one backend and writes its status at most once.
func (r *BackendReconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var b v1alpha1.CacheBackend
	if err := r.options.Client.Get(ctx, request.NamespacedName, &b); err != nil {
		if err = client.IgnoreNotFound(err); err == nil {
			r.gone(request.NamespacedName)
		}
		return reconcile.Result{}, err
	}
	if b.DeletionTimestamp != nil {
		return reconcile.Result{}, nil
	}
	found, err := r.find(ctx, &b)
	if err != nil {
		return reconcile.Result{}, err
	}
	var (
		object  v1alpha1.CacheBackend
		before  v1alpha1.CacheBackendStatus
		s       *sighting
		wait    time.Duration
		changed bool
	)
	err = updateStatus(ctx, r.options.Client, request.NamespacedName, &object, func() bool {
		s = r.look(&object, found)
		before = *object.Status.DeepCopy()
		wait = judgeBackend(&object, s)
		changed = !equality.Semantic.DeepEqual(before, object.Status)
		return changed
	})
	if err != nil {
		return reconcile.Result{}, err
	}
	if s == nil { // deleted meanwhile
		return reconcile.Result{}, nil
	}
	if changed {
		r.announce(&object, &before)
	}
	r.afterTest(&object, s)
	if s.supported {
		// Tried again at the next look: what pods lack must not delay that.
		if err := errors.Join(r.explain(ctx, &object, before.Injection, found.pods), r.repair(ctx, &object, found.pods, s.now.Time)); err != nil && ctx.Err() == nil {
			r.options.Logger.Error("cannot do all for the pods of a backend", "backend", request.String(), "error", err)
		}
	}
	if found.retry != nil {
		return reconcile.Result{}, found.retry
	}
	return reconcile.Result{RequeueAfter: r.next(request.NamespacedName, s, wait)}, nil
}

// findings are what one pass has found in the cluster.
type findings struct {
	pods   *podFacts
	remote *remote
	nodes  *NodeReport
	// retry is an error that the status does not wait for.
	retry error
}

// find brings about what the backend has the controller run, and reads the
// engine pods.
func (r *BackendReconciler) find(ctx context.Context, b *v1alpha1.CacheBackend) (*findings, error) {
	f := &findings{}
	if r.options.Storages != nil {
		if _, supported := r.options.Adapters.For(b); supported {
			f.remote, f.retry = r.options.Storages.keep(ctx, b)
		} else {
			f.retry = r.options.Storages.remove(ctx, b, storageKinds()...)
		}
	}
	var binding *adapter.Binding
	if f.remote != nil {
		binding = f.remote.binding
	}
	var err error
	if f.pods, err = r.gather(ctx, b, binding); err != nil {
		return nil, errors.Join(err, f.retry)
	}
	if r.options.NodeServers != nil {
		if f.nodes, err = r.options.NodeServers.Keep(ctx, b, binding); err != nil {
			f.retry = errors.Join(f.retry, err)
		}
	}
	return f, nil
}

// look takes in what lies outside the status. A self-test begins if one is due.
func (r *BackendReconciler) look(b *v1alpha1.CacheBackend, found *findings) *sighting {
	s := &sighting{now: metav1.NewTime(r.options.Now().Truncate(time.Second)), pods: found.pods, probing: r.options.Prober != nil}
	if _, s.supported = r.options.Adapters.For(b); !s.supported {
		s.unsupported = r.options.Adapters.Unsupported(b)
	} else {
		s.remote, s.connector = found.remote, connect(b, found.pods, found.nodes)
		s.base = s.baseOf(b)
		if found.nodes != nil {
			s.nodesNext = found.nodes.Next
		}
		s.checkKernels()
	}
	if r.tests(b, s) {
		s.tested = r.options.Prober.take(client.ObjectKeyFromObject(b), probeOf(b, r.options.Adapters))
	}
	return s
}

// tests says whether the backend is to be tested now.
func (r *BackendReconciler) tests(b *v1alpha1.CacheBackend, s *sighting) bool {
	if !s.supported || !s.probing || s.base.status != metav1.ConditionTrue || probeBypassed(b) {
		return false
	}
	heard := b.Status.FirstKVEventObservedAt != nil || b.Status.IndexParticipation != nil && b.Status.IndexParticipation.LastEventAt != nil
	return heard || b.Annotations[v1alpha1.AnnotationRequireKVEvents] == "false"
}

// afterTest uses up a result that is written now.
func (r *BackendReconciler) afterTest(b *v1alpha1.CacheBackend, s *sighting) {
	name := client.ObjectKeyFromObject(b)
	switch {
	case !s.probing:
	case s.tested != nil:
		r.options.Prober.written(name, s.tested)
	case !r.tests(b, s):
		r.options.Prober.discard(name)
	}
}

func (r *BackendReconciler) next(name types.NamespacedName, s *sighting, gate time.Duration) time.Duration {
	next := restInterval
	if gate > 0 {
		next = min(next, gate)
	}
	if overdue := s.pods.untilOverdue(s.now.Time); overdue > 0 {
		next = min(next, overdue)
	}
	if s.nodesNext > 0 {
		next = min(next, s.nodesNext)
	}
	if s.pods.desired > 0 {
		next = min(next, podsInterval)
	}
	if s.probing && s.supported {
		next = min(next, r.options.Prober.wait(name))
	}
	return next
}

func (r *BackendReconciler) gone(name types.NamespacedName) {
	if r.options.Prober != nil {
		r.options.Prober.forget(name)
	}
	r.explained.forget(name)
	r.owners.forget(name.Namespace)
	r.options.Storages.forget(name)
	if r.options.NodeServers != nil {
		r.options.NodeServers.Forget(name)
	}
	r.troubles.forget(name)
	r.options.Metrics.backendGone(name)
}

// ofPod says which backends of a namespace select a pod.
func (r *BackendReconciler) ofPod(ctx context.Context, pod *corev1.Pod) (requests []reconcile.Request) {
	var list v1alpha1.CacheBackendList
	if err := r.options.Client.List(ctx, &list, client.InNamespace(pod.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		r.options.Logger.Error("cannot list the backends of a pod", "namespace", pod.Namespace, "error", err)
		return nil
	}
	for i := range list.Items {
		if domain := domainOf(&list.Items[i]); domain != "" && domain == pod.Labels[v1alpha1.LabelCacheDomain] {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}
