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
	byNamespace, known := make(map[string][]*v1alpha1.CacheBackend), make(map[string]bool)
	for i := range list.Items {
		backend := &list.Items[i]
		byNamespace[backend.Namespace] = append(byNamespace[backend.Namespace], backend)
		known[backend.Namespace+"/"+backend.Name] = true
	}
	p.options.Metrics.tier2Of(known)
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
		owner, counts, err := p.owner(ctx, backends, row)
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
		if counts {
			sums[owner.UID].reporting++
		}
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
		if err := p.writeBackend(ctx, backend, sum, rows); err != nil && failed == nil {
			failed = err
		}
	}
	return failed
}

// owner finds the backend that a row belongs to: the one that injected the
// pod, else the first whose selector fits, else the one that lists the
// replica. Nil when there is none. The row of a pod that has ended or is about
// to belongs to it too, but is none of those that are expected.
func (p *Poller) owner(ctx context.Context, backends []*v1alpha1.CacheBackend, row controlclient.Replica) (owner *v1alpha1.CacheBackend, expected bool, err error) {
	name, _, _ := strings.Cut(row.ReplicaID, "#")
	var pod corev1.Pod
	err = p.options.Client.Get(ctx, types.NamespacedName{Namespace: row.Tenant, Name: name}, &pod)
	switch {
	case err == nil:
		owner := ownerOfPod(backends, &pod)
		if owner != nil || stamped(&pod) {
			return owner, live(&pod), nil
		}
	case !apierrors.IsNotFound(err):
		return nil, false, fmt.Errorf("%w: read pod %s: %w", errTainted, name, err)
	}
	for _, backend := range backends {
		if backend.Spec.Observation == nil {
			continue
		}
		for _, external := range backend.Spec.Observation.ExternalReplicas {
			if external.ReplicaID == row.ReplicaID || external.ReplicaID == name {
				return backend, true, nil
			}
		}
	}
	return nil, false, nil
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

func (p *Poller) writeBackend(ctx context.Context, backend *v1alpha1.CacheBackend, sum *participation, rows []controlclient.Replica) error {
	expected, err := p.expected(ctx, backend, rows)
	if err != nil {
		return err
	}
	var object v1alpha1.CacheBackend
	return updateStatus(ctx, p.options.Client, client.ObjectKeyFromObject(backend), &object, func() bool {
		next, old := sum.render(), object.Status.IndexParticipation
		next.ExpectedReplicas = &expected
		object.Status.IndexParticipation = next
		return p.pace.due(object.UID, participationChange(next, old), p.options.Now())
	})
}

// expected counts the replicas that should report: of each engine pod that
// runs or is about to, and of each external replica, all data-parallel ranks.
func (p *Poller) expected(ctx context.Context, backend *v1alpha1.CacheBackend, rows []controlclient.Replica) (int32, error) {
	reported := make(map[string]int32) // by pod
	for _, row := range rows {
		pod, _, _ := strings.Cut(row.ReplicaID, "#")
		reported[pod]++
	}
	declared, n := declaredRanks(backend), int32(0)
	if backend.Spec.Observation != nil {
		for _, external := range backend.Spec.Observation.ExternalReplicas {
			if strings.Contains(external.ReplicaID, "#") {
				n++
				continue
			}
			n += firstAbove0(declared, reported[external.ReplicaID], 1)
		}
	}
	domain := domainOf(backend)
	if domain == "" {
		return n, nil
	}
	var pods corev1.PodList
	err := p.options.Client.List(ctx, &pods, client.InNamespace(backend.Namespace),
		client.MatchingLabels{v1alpha1.LabelCacheDomain: domain}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return 0, fmt.Errorf("list engine pods: %w", err)
	}
	for i := range pods.Items {
		if pod := &pods.Items[i]; live(pod) {
			n += firstAbove0(knownRanks(pod, backend), reported[pod.Name], 1)
		}
	}
	return n, nil
}

// participationChange compares two views of a backend. What conditions depend
// on is a turn: whether there was an event, whether the tier behind the memory
// has anything, and how many report.
func participationChange(next, old *v1alpha1.IndexParticipation) change {
	if old == nil || (next.LastEventAt == nil) != (old.LastEventAt == nil) || useless(next) != useless(old) ||
		!equal(next.ReportingReplicas, old.ReportingReplicas) || !equal(next.ExpectedReplicas, old.ExpectedReplicas) {
		return turn
	}
	return max(countChange(next.PrefixCount, old.PrefixCount), anyDrift(!next.LastEventAt.Equal(old.LastEventAt)),
		rateChange(next.HitRate, old.HitRate), rateChange(next.T2HitRate, old.T2HitRate))
}

func equal[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

// useless says whether the tier behind the memory was asked in vain.
func useless(p *v1alpha1.IndexParticipation) bool { return p.T2HitRate != nil && *p.T2HitRate == "0" }
