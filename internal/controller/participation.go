// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/controlclient"
)

// errTainted is returned for a namespace that keeps its statuses for a tick.
var errTainted = errors.New("the namespace is left alone")

// participation sums one backend's rows.
type participation struct {
	prefixes    int64
	lastEvent   time.Time
	rateSum     float64 // of rates weighted by prefixes
	rateWeight  int64
	hits, asked int64
	reporting   int32
}

func (s *participation) add(row controlclient.Replica) {
	s.prefixes += row.PrefixCount
	s.reporting++
	if row.LastEventAt.After(s.lastEvent) {
		s.lastEvent = row.LastEventAt
	}
	if row.HasRates() {
		weight := max(row.PrefixCount, 1)
		s.rateSum += float64(row.HitRate) * float64(weight)
		s.rateWeight += weight
	}
	s.hits += row.T2HitTokens
	s.asked += row.T2QueryTokens
}

func (s *participation) render() *v1alpha1.IndexParticipation {
	out := &v1alpha1.IndexParticipation{PrefixCount: s.prefixes, ReportingReplicas: &s.reporting}
	if !s.lastEvent.IsZero() {
		at := metav1.NewTime(s.lastEvent.Truncate(time.Second))
		out.LastEventAt = &at
	}
	if s.rateWeight > 0 {
		rate := decimal(float32(s.rateSum / float64(s.rateWeight)))
		out.HitRate = &rate
	}
	if s.asked > 0 {
		rate := decimal(float32(min(max(float64(s.hits)/float64(s.asked), 0), 1)))
		out.T2HitRate = &rate
	}
	return out
}

// writeParticipation shows on every CacheBackend what the index knows of its
// engines. A namespace whose pods cannot be read keeps its statuses.
func (p *Poller) writeParticipation(ctx context.Context, merged *controlclient.Snapshot) error {
	var list v1alpha1.CacheBackendList
	if err := p.options.Client.List(ctx, &list); err != nil {
		if meta.IsNoMatchError(err) {
			return nil
		}
		return fmt.Errorf("list CacheBackends: %w", err)
	}
	byNamespace := make(map[string][]*v1alpha1.CacheBackend)
	for i := range list.Items {
		backend := &list.Items[i]
		byNamespace[backend.Namespace] = append(byNamespace[backend.Namespace], backend)
	}
	rows := make(map[string][]controlclient.Replica)
	for _, row := range merged.Replicas {
		rows[row.Tenant] = append(rows[row.Tenant], row)
	}
	var failed error
	tainted := 0
	for _, namespace := range slices.Sorted(maps.Keys(byNamespace)) {
		err := p.writeNamespace(ctx, byNamespace[namespace], rows[namespace])
		if errors.Is(err, errTainted) {
			tainted++
		}
		if err != nil && failed == nil {
			failed = fmt.Errorf("participation in namespace %s: %w", namespace, err)
		}
	}
	p.options.Metrics.setTainted(tainted)
	return failed
}

func (p *Poller) writeNamespace(ctx context.Context, backends []*v1alpha1.CacheBackend, rows []controlclient.Replica) error {
	slices.SortFunc(backends, func(a, b *v1alpha1.CacheBackend) int { return strings.Compare(a.Name, b.Name) })
	sums := make(map[types.UID]*participation)
	for _, row := range rows {
		owner, err := p.owner(ctx, backends, row)
		if err != nil {
			return err
		}
		if owner == nil {
			continue
		}
		if sums[owner.UID] == nil {
			sums[owner.UID] = new(participation)
		}
		sums[owner.UID].add(row)
	}
	var failed error
	for _, backend := range backends {
		sum := sums[backend.UID]
		if sum != nil {
			p.options.Metrics.tier2(backend.Namespace+"/"+backend.Name, sum.hits, sum.asked)
		} else {
			p.options.Metrics.tier2(backend.Namespace+"/"+backend.Name, 0, 0)
			if domainOf(backend) == "" {
				continue
			}
			sum = new(participation)
		}
		if err := p.writeBackend(ctx, backend, sum); err != nil && failed == nil {
			failed = err
		}
	}
	return failed
}

// owner finds the backend that a row belongs to: the one that injected the
// pod, else the first whose selector fits, else the one that lists the
// replica. Nil when there is none.
func (p *Poller) owner(ctx context.Context, backends []*v1alpha1.CacheBackend, row controlclient.Replica) (*v1alpha1.CacheBackend, error) {
	name, _, _ := strings.Cut(row.ReplicaID, "#")
	var pod corev1.Pod
	err := p.options.Client.Get(ctx, types.NamespacedName{Namespace: row.Tenant, Name: name}, &pod)
	switch {
	case err == nil:
		owner := ownerOfPod(backends, &pod)
		if owner != nil || stamped(&pod) {
			return owner, nil
		}
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%w: read pod %s: %w", errTainted, name, err)
	}
	for _, backend := range backends {
		if backend.Spec.Observation == nil {
			continue
		}
		for _, external := range backend.Spec.Observation.ExternalReplicas {
			if external.ReplicaID == row.ReplicaID || external.ReplicaID == name {
				return backend, nil
			}
		}
	}
	return nil, nil
}

// stamped says whether a pod's stamp counts, which it does only with a domain.
func stamped(pod *corev1.Pod) bool {
	return pod.Annotations[v1alpha1.AnnotationInjectedBy] != "" && pod.Labels[v1alpha1.LabelCacheDomain] != ""
}

func ownerOfPod(backends []*v1alpha1.CacheBackend, pod *corev1.Pod) *v1alpha1.CacheBackend {
	domain := pod.Labels[v1alpha1.LabelCacheDomain]
	if stamped(pod) {
		stamp := pod.Annotations[v1alpha1.AnnotationInjectedBy]
		for _, backend := range backends {
			if stamp == backend.Namespace+"/"+backend.Name && pod.Annotations[v1alpha1.AnnotationInjectedByUID] == string(backend.UID) {
				return backend
			}
		}
		return nil // a stamp that nothing stands behind
	}
	for _, backend := range backends {
		if domain != "" && domainOf(backend) == domain {
			return backend
		}
	}
	return nil
}

// domainOf returns the cache domain that a backend selects, "" for none.
func domainOf(backend *v1alpha1.CacheBackend) string {
	if backend.Spec.EngineSelector == nil {
		return ""
	}
	return backend.Spec.EngineSelector.MatchLabels[v1alpha1.LabelCacheDomain]
}

func (p *Poller) writeBackend(ctx context.Context, backend *v1alpha1.CacheBackend, sum *participation) error {
	expected, err := p.expected(ctx, backend)
	if err != nil {
		return err
	}
	var object v1alpha1.CacheBackend
	return updateStatus(ctx, p.options.Client, client.ObjectKeyFromObject(backend), &object, func() bool {
		next, old := sum.render(), object.Status.IndexParticipation
		next.ExpectedReplicas = &expected
		if old != nil {
			next.HitRate = steadyRate(next.HitRate, old.HitRate)
			next.T2HitRate = steadyRate(next.T2HitRate, old.T2HitRate)
			if equalParticipation(next, old) {
				return false
			}
		}
		object.Status.IndexParticipation = next
		return true
	})
}

// expected counts the pods that should report, and the external replicas.
func (p *Poller) expected(ctx context.Context, backend *v1alpha1.CacheBackend) (int32, error) {
	n := 0
	if backend.Spec.Observation != nil {
		n = len(backend.Spec.Observation.ExternalReplicas)
	}
	if domain := domainOf(backend); domain != "" {
		var pods corev1.PodList
		err := p.options.Client.List(ctx, &pods, client.InNamespace(backend.Namespace), client.MatchingLabels{v1alpha1.LabelCacheDomain: domain})
		if err != nil {
			return 0, fmt.Errorf("list engine pods: %w", err)
		}
		for i := range pods.Items {
			if phase := pods.Items[i].Status.Phase; pods.Items[i].DeletionTimestamp == nil && phase != corev1.PodFailed && phase != corev1.PodSucceeded {
				n++
			}
		}
	}
	return int32(n), nil
}

func equalParticipation(a, b *v1alpha1.IndexParticipation) bool {
	text := func(p *string) string {
		if p == nil {
			return ""
		}
		return *p
	}
	number := func(p *int32) int32 {
		if p == nil {
			return -1
		}
		return *p
	}
	return a.PrefixCount == b.PrefixCount && a.LastEventAt.Equal(b.LastEventAt) &&
		text(a.HitRate) == text(b.HitRate) && text(a.T2HitRate) == text(b.T2HitRate) &&
		number(a.ReportingReplicas) == number(b.ReportingReplicas) && number(a.ExpectedReplicas) == number(b.ExpectedReplicas)
}
