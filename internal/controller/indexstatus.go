// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
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

// decimal is the shortest text of a float32, without an exponent.
func decimal(v float32) string { return strconv.FormatFloat(float64(v), 'f', -1, 32) }

// writeIndex shows the merged view. Differences in times alone are not written,
// and drift is written now and then.
func (p *Poller) writeIndex(ctx context.Context, answers []polled, merged *controlclient.Snapshot) error {
	var index v1alpha1.CacheIndex
	if err := p.options.Client.Get(ctx, client.ObjectKey{Name: v1alpha1.CacheIndexName}, &index); err != nil {
		if meta.IsNoMatchError(err) {
			return nil
		}
		return fmt.Errorf("read CacheIndex: %w", err)
	}
	next, now := p.renderIndex(answers, merged), metav1.NewTime(p.options.Now())
	if !p.pace.due(index.UID, indexChange(&next, &index.Status), now.Time) {
		return nil
	}
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
		} else {
			row.Message = clip(a.err.Error(), maxMessageBytes)
		}
		status.Servers = append(status.Servers, row)
	}
	status.ObservedServer = strings.Join(observed, ",")
	status.Replicas, status.ReplicasTotal = renderReplicas(merged.Replicas)
	status.Replicas = status.Replicas[:min(len(status.Replicas), p.options.MaxReplicas)]
	status.Truncated = status.ReplicasTotal > int64(len(status.Replicas))
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

// renderReplicas returns the replicas that ever reported, by id, and how many
// there are. The list is keyed by id: of equal ids in several namespaces the one
// of the last namespace is shown, the others are counted.
func renderReplicas(rows []controlclient.Replica) (shown []v1alpha1.CacheIndexReplica, total int64) {
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
		total++
	}
	for _, replica := range byID {
		shown = append(shown, replica)
	}
	slices.SortFunc(shown, func(a, b v1alpha1.CacheIndexReplica) int { return strings.Compare(a.ID, b.ID) })
	return shown, total
}

// indexChange compares two views. Rows alone are no turn: of many, some always
// move.
func indexChange(next, old *v1alpha1.CacheIndexStatus) change {
	if !reflect.DeepEqual(outline(next), outline(old)) {
		return turn
	}
	found := max(countChange(next.Prefixes.Summary.Total, old.Prefixes.Summary.Total), anyDrift(next.Prefixes.Summary.Hot != old.Prefixes.Summary.Hot))
	for i := range next.Servers {
		found = max(found, anyDrift(next.Servers[i].Prefixes != old.Servers[i].Prefixes))
	}
	for i := range next.Tenants {
		row, was := &next.Tenants[i], &old.Tenants[i]
		found = max(found, anyDrift(*row.IndexEntries != *was.IndexEntries), rateChange(row.HitRate, was.HitRate))
	}
	for i := range next.Replicas {
		row, was := &next.Replicas[i], &old.Replicas[i]
		found = max(found, sizeChange(row.CacheMemoryBytes, was.CacheMemoryBytes),
			rateChange(row.HitRate, was.HitRate), rateChange(&row.Pressure, &was.Pressure))
	}
	return found
}

func anyDrift(differs bool) change {
	if differs {
		return drift
	}
	return same
}

// outline returns a copy without what traffic moves: times, counts and the
// values of rates.
func outline(status *v1alpha1.CacheIndexStatus) v1alpha1.CacheIndexStatus {
	known, zero := "", int64(0)
	shape := func(rate *string) *string {
		if rate == nil {
			return nil
		}
		return &known
	}
	o := *status
	o.LastUpdated, o.Prefixes = nil, v1alpha1.CacheIndexPrefixes{}
	o.Servers, o.Tenants, o.Replicas = nil, nil, nil
	for _, row := range status.Servers {
		row.Prefixes = 0
		o.Servers = append(o.Servers, row)
	}
	for _, row := range status.Tenants {
		row.HitRate = shape(row.HitRate)
		if row.IndexEntries != nil {
			row.IndexEntries = &zero
		}
		o.Tenants = append(o.Tenants, row)
	}
	for _, row := range status.Replicas {
		row.HitRate, row.Pressure = shape(row.HitRate), ""
		row.CacheMemoryBytes, row.LastUpdate = 0, metav1.Time{}
		o.Replicas = append(o.Replicas, row)
	}
	return o
}
