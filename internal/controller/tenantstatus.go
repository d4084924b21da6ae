// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/controlclient"
	"github.com/inferencecache/inference-cache/internal/policy"
	"github.com/inferencecache/inference-cache/internal/propagate"
)

// Reasons of the conditions of a CacheTenant.
const (
	reasonObserved          = "Observed"
	reasonDuplicateTenantID = "DuplicateTenantID"
	reasonOverEntryBudget   = "OverEntryBudget"
	reasonWithinBudget      = "WithinBudget"
)

// writeTenants shows on every CacheTenant what its tenant keeps. A tenant that
// no server knows keeps nothing.
func (p *Poller) writeTenants(ctx context.Context, merged *controlclient.Snapshot) error {
	var list v1alpha1.CacheTenantList
	if err := p.options.Client.List(ctx, &list); err != nil {
		if meta.IsNoMatchError(err) {
			return nil
		}
		return fmt.Errorf("list CacheTenants: %w", err)
	}
	resolved, err := propagate.Policies(nil, list.Items, policy.CurrentVersion)
	if err != nil {
		return err
	}
	entries := make(map[string]int64, len(merged.Tenants))
	for _, row := range merged.Tenants {
		entries[row.TenantID] = row.IndexEntries
	}
	now := metav1.NewTime(p.options.Now())
	var failed error
	for _, v := range resolved.Tenants {
		var object v1alpha1.CacheTenant
		err := updateStatus(ctx, p.options.Client, v.Name, &object, func() bool {
			status, before := &object.Status, object.Status.DeepCopy()
			held := entries[object.Spec.TenantID]
			status.IndexEntries, status.ObservedGeneration = &held, object.Generation
			for _, c := range tenantConditions(v, object.Spec.Quota.MaxIndexEntries, held) {
				setCondition(&status.Conditions, object.Generation, now, c)
			}
			return p.pace.due(object.UID, tenantChange(status, before), now.Time)
		})
		if err != nil && failed == nil {
			failed = fmt.Errorf("write the status of CacheTenant %s: %w", v.Name, err)
		}
	}
	return failed
}

// tenantChange compares two statuses. That the count in a message moves is no
// more than drift.
func tenantChange(next, old *v1alpha1.CacheTenantStatus) change {
	sayTheSame := func(a, b metav1.Condition) bool {
		if a.Reason == reasonOverEntryBudget {
			a.Message = b.Message
		}
		return a == b
	}
	if old.IndexEntries == nil || next.ObservedGeneration != old.ObservedGeneration || !slices.EqualFunc(next.Conditions, old.Conditions, sayTheSame) {
		return turn
	}
	return countChange(*next.IndexEntries, *old.IndexEntries)
}

func tenantConditions(v propagate.TenantVerdict, budget *int64, held int64) []condition {
	ready := condition{v1alpha1.ConditionReady, reasonObserved, "", metav1.ConditionTrue}
	quota := condition{v1alpha1.ConditionQuotaExceeded, reasonWithinBudget, "", metav1.ConditionFalse}
	switch {
	case v.Winner != types.NamespacedName{}:
		text := fmt.Sprintf("the quota of CacheTenant %s is in force", v.Winner)
		ready = condition{v1alpha1.ConditionReady, reasonDuplicateTenantID, text, metav1.ConditionFalse}
		quota.reason, quota.message = reasonNotEffective, text
	case budget == nil:
		quota.reason = reasonNoQuota
	case held > *budget:
		quota.status, quota.reason = metav1.ConditionTrue, reasonOverEntryBudget
		quota.message = fmt.Sprintf("%d entries, %d allowed", held, *budget)
	}
	return []condition{ready, quota}
}
