// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"slices"
	"time"

	"github.com/inferencecache/inference-cache/internal/controlclient"
)

// merge makes one view of what several servers know. Every server is complete
// or on its way there, so the larger count and the newer row are the better
// ones.
func merge(snapshots []*controlclient.Snapshot) *controlclient.Snapshot {
	type replicaKey struct{ tenant, replica string }
	replicas := make(map[replicaKey]controlclient.Replica)
	tenants := make(map[string]controlclient.Tenant)
	merged := new(controlclient.Snapshot)
	for _, s := range snapshots {
		for _, row := range s.Replicas {
			key := replicaKey{row.Tenant, row.ReplicaID}
			old, seen := replicas[key]
			prefixes := max(old.PrefixCount, row.PrefixCount)
			if seen && !newest(row).After(newest(old)) {
				row = old
			}
			row.PrefixCount = prefixes
			replicas[key] = row
		}
		for _, row := range s.Tenants {
			if old, seen := tenants[row.TenantID]; !seen || row.IndexEntries > old.IndexEntries {
				tenants[row.TenantID] = row
			}
		}
		merged.HotPrefixes = max(merged.HotPrefixes, s.HotPrefixes)
	}
	for _, row := range replicas {
		merged.Replicas = append(merged.Replicas, row)
	}
	for _, row := range tenants {
		merged.Tenants = append(merged.Tenants, row)
		merged.TotalPrefixes += row.IndexEntries
	}
	slices.SortFunc(merged.Replicas, func(a, b controlclient.Replica) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.ReplicaID, b.ReplicaID))
	})
	slices.SortFunc(merged.Tenants, func(a, b controlclient.Tenant) int { return cmp.Compare(a.TenantID, b.TenantID) })
	return merged
}

// newest returns when a replica was last heard of.
func newest(row controlclient.Replica) time.Time {
	if row.LastEventAt.After(row.LastUpdate) {
		return row.LastEventAt
	}
	return row.LastUpdate
}
