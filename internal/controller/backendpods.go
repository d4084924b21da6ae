// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
)

// Reasons of the advisory conditions of a CacheBackend.
const (
	reasonAllInjected        = "AllInjected"
	reasonPodsSkipped        = "PodsSkipped"
	reasonPodsUnseen         = "PodsUnseen"
	reasonStaleInjection     = "StaleInjection"
	reasonSidecarUnavailable = "SidecarUnavailable"
	reasonBreakerOpen        = "BreakerOpen"
	reasonNoEnginePods       = "NoEnginePods"
	reasonAllReporting       = "AllReporting"
	reasonSomeSilent         = "SomeSilent"
)

// Codes of pods that the webhook never saw.
const (
	codePredatesBackend   = "predates-backend"
	codeNamespaceExcluded = "namespace-excluded"
	codeWebhookNotCalled  = "webhook-not-called"
)

const (
	// maxCodeBytes bounds a reason that a pod gives, which may be forged.
	maxCodeBytes = 64
	// maxSkipReasons is how many reasons a status lists.
	maxSkipReasons = 16
	// examplePods and silentNames bound the names in messages.
	examplePods = 3
	silentNames = 5
	// sidecarContainer is what the injected publisher is called.
	sidecarContainer = "kvevent-subscriber"
)

// podFacts is what the engine pods of a backend say.
type podFacts struct {
	matched *int32 // nil without a selector
	message string
	// desired is how many pods the owners want, -1 when nobody asked.
	desired int32

	live               []*corev1.Pod // neither going away nor ended
	external           []string
	injected, stale    []string
	publishers         []publisher // of the injected ones
	skipped            map[string][]string
	unseen             map[string]string // code by pod
	configHash, image  string
	rows               map[string]bool // replicas in the index, nil before a poll
	namespaceExcluded  bool
	repairs            bool // see BackendOptions.RepairSidecarImage
	skipCount, unseenN int32
}

// gather reads the pods of a backend and sorts them by their stamps.
func (r *BackendReconciler) gather(ctx context.Context, b *v1alpha1.CacheBackend, binding *adapter.Binding) (*podFacts, error) {
	f := &podFacts{desired: -1, skipped: map[string][]string{}, unseen: map[string]string{}, configHash: r.options.ConfigHash(b, binding), image: r.options.SidecarImage, repairs: r.options.RepairSidecarImage}
	f.rows = r.options.Rows.of(b.Namespace)
	if b.Spec.Observation != nil {
		for _, replica := range b.Spec.Observation.ExternalReplicas {
			f.external = append(f.external, replica.ReplicaID)
		}
	}
	domain := domainOf(b)
	if domain == "" {
		return f, nil
	}
	var pods corev1.PodList
	if err := r.options.Client.List(ctx, &pods, client.InNamespace(b.Namespace), client.MatchingLabels{v1alpha1.LabelCacheDomain: domain}); err != nil {
		return nil, fmt.Errorf("list engine pods: %w", err)
	}
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	matched := int32(len(pods.Items))
	f.matched = &matched
	if matched == 0 {
		return f, r.explainNoPods(ctx, b, f)
	}
	excluded, err := r.namespaceExcluded(ctx, b.Namespace)
	if err != nil {
		return nil, err
	}
	f.namespaceExcluded = excluded
	for i := range pods.Items {
		if live(&pods.Items[i]) {
			f.sort(b, &pods.Items[i])
		}
	}
	r.troubles.note(client.ObjectKeyFromObject(b), f.publishers, r.options.Now().Truncate(time.Second))
	return f, nil
}

// live says whether a pod runs or is about to.
func live(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodFailed && pod.Status.Phase != corev1.PodSucceeded
}

// sort puts a pod where its stamps say it belongs.
func (f *podFacts) sort(b *v1alpha1.CacheBackend, pod *corev1.Pod) {
	f.live = append(f.live, pod)
	if injectedBy(pod, b) {
		f.injected = append(f.injected, pod.Name)
		if hash := pod.Annotations[v1alpha1.AnnotationInjectedConfigHash]; f.configHash != "" && hash != f.configHash {
			f.stale = append(f.stale, pod.Name)
		}
		f.publishers = append(f.publishers, publisher{sidecar: sidecarOf(pod), pod: pod})
		return
	}
	code := clip(pod.Annotations[v1alpha1.AnnotationInjectSkipped], maxCodeBytes)
	if code != "" {
		f.skipCount++
	} else {
		code = codeWebhookNotCalled
		switch {
		case f.namespaceExcluded:
			code = codeNamespaceExcluded
		case !pod.CreationTimestamp.After(b.CreationTimestamp.Time):
			code = codePredatesBackend
		}
		f.unseenN++
		f.unseen[pod.Name] = code
	}
	f.skipped[code] = append(f.skipped[code], pod.Name)
}

// injectedBy trusts stamps only with the name and uid of the backend.
func injectedBy(pod *corev1.Pod, b *v1alpha1.CacheBackend) bool {
	return pod.Annotations[v1alpha1.AnnotationInjectedBy] == b.Namespace+"/"+b.Name &&
		pod.Annotations[v1alpha1.AnnotationInjectedByUID] == string(b.UID)
}

// excludedNamespaces are those that the pod webhook never sees.
var excludedNamespaces = []string{"kube-system", "kube-public", "kube-node-lease"}

func (r *BackendReconciler) namespaceExcluded(ctx context.Context, name string) (bool, error) {
	if slices.Contains(excludedNamespaces, name) || name == r.options.Namespace {
		return true, nil
	}
	namespace := metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := r.options.Client.Get(ctx, client.ObjectKey{Name: name}, &namespace); err != nil {
		return false, client.IgnoreNotFound(fmt.Errorf("read namespace: %w", err))
	}
	return namespace.Labels[v1alpha1.LabelInjection] == "disabled", nil
}

// explainNoPods asks the owners of the selector's pods: it is no news that
// none is there if none is wanted. They are read only in this case, and anew if
// there was a pod before: whoever wants none any more has said so just now.
func (r *BackendReconciler) explainNoPods(ctx context.Context, b *v1alpha1.CacheBackend, f *podFacts) error {
	age := ownersAge
	if before := b.Status.MatchedEnginePods; before != nil && *before > 0 {
		age = 0
	}
	wanted, err := r.owners.of(ctx, b.Namespace, domainOf(b), age)
	if err != nil {
		return err
	}
	f.desired = wanted.pods
	if wanted.owners == 0 || wanted.pods > 0 {
		f.message = fmt.Sprintf("spec.engineSelector.matchLabels={%s:%s}; no Pods in namespace match", v1alpha1.LabelCacheDomain, domainOf(b))
	}
	return nil
}

// injection counts the pods and moves the breaker on.
func (f *podFacts) injection(old *v1alpha1.InjectionStatus, now metav1.Time) *v1alpha1.InjectionStatus {
	next := &v1alpha1.InjectionStatus{
		ConfigHash: f.configHash, SidecarImage: f.image, InjectedPods: int32(len(f.injected)), StalePods: int32(len(f.stale)),
		SkippedPods: f.skipCount, UnseenPods: f.unseenN,
	}
	if old == nil {
		old = &v1alpha1.InjectionStatus{}
	}
	next.Breaker = f.breaker(old.Breaker, now)
	for _, reason := range sortedKeys(f.skipped) {
		if len(next.Skipped) == maxSkipReasons {
			break
		}
		pods := f.skipped[reason]
		next.Skipped = append(next.Skipped, v1alpha1.SkippedPods{Reason: reason, Count: int32(len(pods)), ExamplePod: pods[0]})
	}
	return next
}

func (f *podFacts) injectionHealthy(i *v1alpha1.InjectionStatus) condition {
	c := condition{kind: v1alpha1.ConditionInjectionHealthy, status: metav1.ConditionFalse}
	breaker, blocked := i.Breaker != nil && i.Breaker.Open, f.blocked()
	switch {
	case len(f.live) == 0 && !breaker:
		c.status, c.reason, c.message = metav1.ConditionUnknown, reasonNoEnginePods, "no engine pod to look at"
		return c
	case breaker:
		c.reason = reasonBreakerOpen
	case blocked != "":
		c.reason = reasonSidecarUnavailable
	case f.skipCount > 0:
		c.reason = reasonPodsSkipped
	case f.unseenN > 0:
		c.reason = reasonPodsUnseen
	case f.stale != nil:
		c.reason = reasonStaleInjection
	default:
		c.status, c.reason = metav1.ConditionTrue, reasonAllInjected
	}
	parts := []string{fmt.Sprintf("%d of %d injected", len(f.injected), len(f.live))}
	if breaker {
		parts = append(parts, "new pods get no publisher: "+i.Breaker.Reason)
	}
	if blocked != "" {
		parts = append(parts, blocked)
	}
	for _, reason := range sortedKeys(f.skipped) {
		parts = append(parts, fmt.Sprintf("%s: %d: %s", reason, len(f.skipped[reason]), some(f.skipped[reason], examplePods)))
	}
	if f.stale != nil {
		parts = append(parts, fmt.Sprintf("restart %d to wire them as declared: %s", len(f.stale), some(f.stale, examplePods)))
	}
	c.message = strings.Join(parts, "; ")
	return c
}

// blocked tells of the pods whose publisher does not start and how to help
// one, "" for none.
func (f *podFacts) blocked() string {
	var (
		names []string
		first *publisher
	)
	for i := range f.publishers {
		if p := &f.publishers[i]; p.reason != "" {
			names = append(names, p.pod.Name)
			if first == nil || p.grave && !first.grave {
				first = p
			}
		}
	}
	if first == nil {
		return ""
	}
	return fmt.Sprintf("the publisher of %d does not run (%s): %s; %s", len(names), first.reason, some(names, examplePods), f.unblocking(first))
}

// reporting names the engines that should be in the index and are not. Nil
// while no poll has told.
func (f *podFacts) reporting(b *v1alpha1.CacheBackend, now time.Time) *condition {
	c := &condition{kind: v1alpha1.ConditionReplicasReporting, status: metav1.ConditionTrue, reason: reasonAllReporting}
	if len(f.live)+len(f.external) == 0 {
		c.status, c.reason, c.message = metav1.ConditionUnknown, reasonNoEnginePods, "no engine to hear of"
		return c
	}
	if f.rows == nil {
		return nil
	}
	patience := firstEventTimeout(b)
	var silent []string
	for _, pod := range f.live {
		if since, ready := readySince(pod); ready && now.Sub(since) > patience && !f.rows[pod.Name] {
			silent = append(silent, pod.Name)
		}
	}
	for _, id := range f.external {
		if since := b.Status.FirstAvailableAt; since != nil && now.Sub(since.Time) > patience && !f.rows[id] {
			silent = append(silent, id)
		}
	}
	if silent != nil {
		c.status, c.reason = metav1.ConditionFalse, reasonSomeSilent
		c.message = fmt.Sprintf("%d are ready for more than %s and not in the index: %s", len(silent), patience, some(silent, silentNames))
	}
	return c
}

func readySince(pod *corev1.Pod) (time.Time, bool) {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.LastTransitionTime.Time, c.Status == corev1.ConditionTrue
		}
	}
	return time.Time{}, false
}

// some joins the first names.
func some(names []string, most int) string {
	if len(names) > most {
		return strings.Join(names[:most], ", ") + ", ..."
	}
	return strings.Join(names, ", ")
}
