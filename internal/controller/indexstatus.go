// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/controlclient"
)

// Steady load must not rewrite a status at every poll: rates that differ by
// less, and sizes by a smaller share, count as equal.
const (
	// rateTolerance is a little below 0.01, so that 0.28 and 0.29 differ.
	rateTolerance = 0.01 - 1e-6
	sizeTolerance = 0.01
)

// decimal is the shortest text of a float32, without an exponent.
func decimal(v float32) string { return strconv.FormatFloat(float64(v), 'f', -1, 32) }

// writeIndex shows the merged view; only a difference other than in times is
// written.
func (p *Poller) writeIndex(ctx context.Context, answers []polled, merged *controlclient.Snapshot) error {
	var index v1alpha1.CacheIndex
	if err := p.options.Client.Get(ctx, client.ObjectKey{Name: v1alpha1.CacheIndexName}, &index); err != nil {
		if meta.IsNoMatchError(err) {
			return nil
		}
		return fmt.Errorf("read CacheIndex: %w", err)
	}
	next := p.renderIndex(answers, merged)
	steady(&next, &index.Status)
	if reflect.DeepEqual(timeless(next), timeless(index.Status)) {
		return nil
	}
	now := metav1.NewTime(p.options.Now())
	next.LastUpdated = &now
	index.Status = next
	if err := p.options.Client.Status().Update(ctx, &index); err != nil {
		return fmt.Errorf("write CacheIndex: %w", err)
	}
	return nil
}

func (p *Poller) renderIndex(answers []polled, merged *controlclient.Snapshot) v1alpha1.CacheIndexStatus {
	status := v1alpha1.CacheIndexStatus{
		Prefixes: v1alpha1.CacheIndexPrefixes{Summary: v1alpha1.CacheIndexPrefixSummary{Total: merged.TotalPrefixes, Hot: merged.HotPrefixes}},
	}
	var observed []string
	for _, a := range answers {
		row := v1alpha1.CacheIndexServer{Name: a.server.Name, Reachable: a.err == nil}
		if a.err == nil {
			row.Epoch, row.PolicyRevision, row.Prefixes = a.identity.Epoch, a.identity.PolicyRevision, a.snapshot.TotalPrefixes
			observed = append(observed, a.server.Name)
		}
		status.Servers = append(status.Servers, row)
	}
	status.ObservedServer = strings.Join(observed, ",")
	status.Replicas = renderReplicas(merged.Replicas)
	status.ReplicasTotal = int64(len(status.Replicas))
	if len(status.Replicas) > p.options.MaxReplicas {
		status.Replicas, status.Truncated = status.Replicas[:p.options.MaxReplicas], true
	}
	for _, t := range merged.Tenants {
		entries := t.IndexEntries
		row := v1alpha1.CacheIndexTenant{ID: t.TenantID, IndexEntries: &entries}
		if t.HasRate() {
			rate := decimal(t.HitRate)
			row.HitRate = &rate
		}
		status.Tenants = append(status.Tenants, row)
	}
	return status
}

// renderReplicas returns the replicas that ever reported, by id. Of equal ids
// the one of the later tenant stays: the list is keyed by id.
func renderReplicas(rows []controlclient.Replica) []v1alpha1.CacheIndexReplica {
	byID := make(map[string]v1alpha1.CacheIndexReplica)
	for _, row := range rows { // sorted by tenant
		if row.LastUpdate.IsZero() {
			continue
		}
		replica := v1alpha1.CacheIndexReplica{
			ID: row.ReplicaID, Tenant: row.Tenant, CacheMemoryBytes: row.CacheMemoryBytes,
			Pressure: decimal(row.Pressure), LastUpdate: metav1.NewTime(row.LastUpdate),
		}
		if row.HasRates() {
			rate := decimal(row.HitRate)
			replica.HitRate = &rate
		}
		byID[row.ReplicaID] = replica
	}
	all := make([]v1alpha1.CacheIndexReplica, 0, len(byID))
	for _, replica := range byID {
		all = append(all, replica)
	}
	slices.SortFunc(all, func(a, b v1alpha1.CacheIndexReplica) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// steady keeps the values of old that next hardly differs from.
func steady(next, old *v1alpha1.CacheIndexStatus) {
	replicas := make(map[string]*v1alpha1.CacheIndexReplica, len(old.Replicas))
	for i := range old.Replicas {
		replicas[old.Replicas[i].ID] = &old.Replicas[i]
	}
	for i := range next.Replicas {
		row, was := &next.Replicas[i], replicas[next.Replicas[i].ID]
		if was == nil {
			continue
		}
		row.HitRate = steadyRate(row.HitRate, was.HitRate)
		row.Pressure = *steadyRate(&row.Pressure, &was.Pressure)
		if d := math.Abs(float64(row.CacheMemoryBytes - was.CacheMemoryBytes)); d < sizeTolerance*float64(was.CacheMemoryBytes) {
			row.CacheMemoryBytes = was.CacheMemoryBytes
		}
	}
	tenants := make(map[string]*v1alpha1.CacheIndexTenant, len(old.Tenants))
	for i := range old.Tenants {
		tenants[old.Tenants[i].ID] = &old.Tenants[i]
	}
	for i := range next.Tenants {
		if was := tenants[next.Tenants[i].ID]; was != nil {
			next.Tenants[i].HitRate = steadyRate(next.Tenants[i].HitRate, was.HitRate)
		}
	}
}

func steadyRate(next, old *string) *string {
	if next == nil || old == nil {
		return next
	}
	a, errNext := strconv.ParseFloat(*next, 64)
	b, errOld := strconv.ParseFloat(*old, 64)
	if errNext == nil && errOld == nil && math.Abs(a-b) < rateTolerance {
		return old
	}
	return next
}

// timeless returns a copy without times, for comparison.
func timeless(status v1alpha1.CacheIndexStatus) v1alpha1.CacheIndexStatus {
	status.LastUpdated = nil
	status.Replicas = slices.Clone(status.Replicas)
	for i := range status.Replicas {
		status.Replicas[i].LastUpdate = metav1.Time{}
	}
	if len(status.Replicas) == 0 {
		status.Replicas = nil
	}
	return status
}
