// SPDX-License-Identifier: Apache-2.0

package index

// ViewCounts are the counters a miss is classified by. A count of keys is 0
// exactly when nothing is held.
type ViewCounts struct {
	// Memberships counts the whole index, reserved tenant left out.
	Memberships int64
	// TenantKeys, ModelKeys count distinct keys of the view's tenant and of
	// its (tenant, model).
	TenantKeys, ModelKeys int64
	// ScopeMemberships, PartitionMemberships count what the view's scope and
	// partition hold, silent replicas included.
	ScopeMemberships, PartitionMemberships int64
}

// Evictions counts memberships removed by a bound, by the algorithm of their
// tenant at that moment.
type Evictions struct {
	CapLRU, CapLFU, TTLLRU, TTLLFU int64
}

// ReplicaStates counts replicas, one for each (tenant, model, replica).
type ReplicaStates struct {
	// Live hold keys and report stats; EventsOnly hold keys without stats;
	// StatsOnly report stats without holding a key; Silent are none of them.
	Live, Silent, StatsOnly, EventsOnly int64
}

// Bytes is the memory of the index by its own account.
type Bytes struct {
	// Table holds the keys, Arena the holder sets, Names the strings and
	// their records, Stats the stats rows.
	Table, Arena, Names, Stats int64
}

// Total returns the sum.
func (b Bytes) Total() int64 { return b.Table + b.Arena + b.Names + b.Stats }

// Counters sums up the index; the reserved tenant is left out.
type Counters struct {
	Memberships, MaxMemberships int64
	Keys                        int64
	Tenants, Partitions         int64
	Replicas                    ReplicaStates
	Bytes                       Bytes
	MaxBytes                    int64
	Evictions                   Evictions
	// OldestExpiredMillis is how late expiry is; 0 = nothing is due.
	OldestExpiredMillis int64
}

// TenantRow is what one tenant holds.
type TenantRow struct {
	Tenant string
	Keys   int64
	// HasStats is set when a replica of the tenant has a stats row.
	HasStats bool
	// QuotaEvicted counts distinct keys dropped to meet the quota.
	QuotaEvicted int64
	Rules        TenantRules
}

// ReplicaRow is what one replica holds over all models, schemes and adapters
// of a tenant.
type ReplicaRow struct {
	Tenant, Replica string
	Memberships     int64
	// LastSeenMillis is the newest stored time; 0 when nothing is held.
	LastSeenMillis int64
	// Stats is the row with the newest liveness, when HasStats is set.
	Stats    Stats
	HasStats bool
}

// ServingRow is what one replica holds for one model, over all schemes and
// adapters.
type ServingRow struct {
	Tenant, Model, Replica string
	Memberships            int64
	// LastEventMillis is when its newest batch or snapshot came; 0 = never.
	LastEventMillis int64
}

// ReplicaState is what is known of one replica and model apart from its keys.
type ReplicaState struct {
	// Memberships counts what it holds.
	Memberships int64
	// Stats is its row, when HasStats is set.
	Stats    Stats
	HasStats bool
	// Silent is set when nothing came for a while from a replica that used
	// to talk.
	Silent bool
}

// ReplicaStatsRow is the stats row of one replica.
type ReplicaStatsRow struct {
	Replica string
	Stats   Stats
}

// SessionRef names a session.
type SessionRef struct {
	Scope   Scope
	Replica string
}
