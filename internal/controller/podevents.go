// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

const (
	// reporter is who reports events.
	reporter = "inference-cache-controller"
	// newPodAge is the age up to which a pod is told of. Events live longer
	// than that, an hour by default, so that one that was written by another
	// leader is still there.
	newPodAge = 30 * time.Minute

	maxNoteBytes      = 1024
	maxEventPodName   = 236 // leaves room for the dot and the hash
	codeSkipInject    = "skip-inject-annotation"
	eventInjected     = "InjectedByCacheBackend"
	eventByOperator   = "SkippedByOperator"
	eventInjectionOff = "InjectionSkipped"
	eventRepaired     = "SidecarRepaired"
)

// podEvent is what is said on a pod.
type podEvent struct {
	kind, reason, note string
	// about distinguishes events of one reason on one pod.
	about   string
	related *corev1.ObjectReference
}

// tellPod writes an event whose name follows from the pod and what is said, so
// that whoever says it again finds it said.
func tellPod(ctx context.Context, c client.Client, pod *corev1.Pod, e podEvent, now time.Time) error {
	sum := sha256.Sum256([]byte(strings.Join([]string{string(pod.UID), e.reason, e.about}, "\n")))
	name := strings.TrimRight(pod.Name[:min(len(pod.Name), maxEventPodName)], ".-")
	err := c.Create(ctx, &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: pod.Namespace, Name: name + "." + hex.EncodeToString(sum[:8])},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: reporter, ReportingInstance: reporter,
		Action: action, Reason: e.reason, Type: e.kind, Note: clip(e.note, maxNoteBytes), Related: e.related,
		Regarding: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		},
	})
	if apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	return err
}

func referenceTo(b *v1alpha1.CacheBackend) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "CacheBackend", Namespace: b.Namespace, Name: b.Name, UID: b.UID, ResourceVersion: b.ResourceVersion,
	}
}

// PodEventOptions of a PodEventReconciler. Client is required.
type PodEventOptions struct {
	// Client reads pods and backends, and writes events.
	Client client.Client
	// Live reads a backend that the cache does not have yet; default Client.
	Live client.Reader
	// Logger takes the logs; default none.
	Logger *slog.Logger
	// Now is the clock; default time.Now.
	Now func() time.Time
}

// PodEventReconciler tells on each new pod, once, what admission made of it.
type PodEventReconciler struct{ options PodEventOptions }

var _ reconcile.Reconciler = (*PodEventReconciler)(nil)

// NewPodEventReconciler returns a reconciler of the events on pods.
func NewPodEventReconciler(o PodEventOptions) *PodEventReconciler {
	if o.Live == nil {
		o.Live = o.Client
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &PodEventReconciler{o}
}

// Reconcile tells of one pod.
func (r *PodEventReconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var pod corev1.Pod
	if err := r.options.Client.Get(ctx, request.NamespacedName, &pod); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	now := r.options.Now()
	if now.Sub(pod.CreationTimestamp.Time) > newPodAge {
		return reconcile.Result{}, nil
	}
	e, err := r.eventOf(ctx, &pod)
	if err != nil || e == nil {
		return reconcile.Result{}, err
	}
	if err := tellPod(ctx, r.options.Client, &pod, *e, now); err != nil {
		return reconcile.Result{}, fmt.Errorf("write the event of pod %s: %w", request, err)
	}
	return reconcile.Result{}, nil
}

// eventOf returns nil for a pod that admission has not stamped, or whose
// stamps name a backend that does not stand behind them.
func (r *PodEventReconciler) eventOf(ctx context.Context, pod *corev1.Pod) (*podEvent, error) {
	code := pod.Annotations[v1alpha1.AnnotationInjectSkipped]
	backend, err := r.backend(ctx, pod, cmp.Or(pod.Annotations[v1alpha1.AnnotationInjectedBy], pod.Annotations[v1alpha1.AnnotationInjectSkippedBy]))
	if err != nil {
		return nil, err
	}
	var related *corev1.ObjectReference
	if backend != nil {
		related = referenceTo(backend)
	}
	switch {
	case code == codeSkipInject:
		return &podEvent{corev1.EventTypeNormal, eventByOperator, "the annotation " + v1alpha1.AnnotationSkipInject + " asks for no injection", code, related}, nil
	case code != "":
		note := clip(code, maxMessageBytes)
		if message := pod.Annotations[v1alpha1.AnnotationInjectMessage]; message != "" {
			note += ": " + message
		}
		return &podEvent{corev1.EventTypeWarning, eventInjectionOff, note, code, related}, nil
	case backend == nil || !injectedBy(pod, backend):
		return nil, nil
	}
	note := "wired for CacheBackend " + backend.Name
	if warnings := pod.Annotations[v1alpha1.AnnotationInjectWarnings]; warnings != "" {
		note += ", with warnings: " + warnings
	}
	return &podEvent{corev1.EventTypeNormal, eventInjected, note, string(backend.UID), related}, nil
}

// backend returns the one that a stamp names if it selects the pod, else nil.
func (r *PodEventReconciler) backend(ctx context.Context, pod *corev1.Pod, stamp string) (*v1alpha1.CacheBackend, error) {
	namespace, name, ok := strings.Cut(stamp, "/")
	if !ok || namespace != pod.Namespace || name == "" {
		return nil, nil
	}
	key, b := types.NamespacedName{Namespace: namespace, Name: name}, &v1alpha1.CacheBackend{}
	err := r.options.Client.Get(ctx, key, b)
	if apierrors.IsNotFound(err) {
		err = r.options.Live.Get(ctx, key, b)
	}
	if apierrors.IsNotFound(err) || err == nil && (domainOf(b) == "" || domainOf(b) != pod.Labels[v1alpha1.LabelCacheDomain]) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read CacheBackend %s: %w", key, err)
	}
	return b, nil
}

// register has a manager run the reconciler for pods that are new to it.
func (r *PodEventReconciler) register(mgr ctrl.Manager, concurrent int, metrics *Metrics) error {
	created := predicate.Funcs{
		UpdateFunc: func(event.UpdateEvent) bool { return false }, DeleteFunc: func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
	err := builder.ControllerManagedBy(mgr).Named("podevents").
		Watches(&corev1.Pod{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(created)).
		WithOptions(reconcilerOptions(concurrent)).Complete(recovering{r, metrics})
	if err != nil {
		return fmt.Errorf("set up the reconciler of events on pods: %w", err)
	}
	return nil
}
