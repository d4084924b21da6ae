// SPDX-License-Identifier: Apache-2.0

package policy

import "time"

// Declared is one namespace's policy as written. A nil pointer is an absent
// field.
type Declared struct {
	// Namespace is the tenant the policy speaks for.
	Namespace string
	// EvictionTTL of 0 or below means the server's.
	EvictionTTL time.Duration
	// Eviction is "lru" or "lfu" in any case; anything else means lru.
	Eviction string
	// MinimumPrefixTokens of 0 or below means none.
	MinimumPrefixTokens int32
	// MinimumMatchedTokens of 0 or below means no floor. It has no absent
	// form: a policy that leaves it out has no floor.
	MinimumMatchedTokens int32
	// RoutingFloorScore below 0 counts as 0, which means no floor.
	RoutingFloorScore *float32
	// LookupTimeoutMillis of 0 or below means none.
	LookupTimeoutMillis int32
	EnableChainMatching *bool
	RequireChain        *bool
	EnableTenantHot     *bool
	AffinityRouting     *bool
}

// Quota bounds what one tenant may keep in the index.
type Quota struct {
	Tenant string
	// MaxKeys below 0 counts as 0, which admits nothing.
	MaxKeys int64
	// IsolationMode is carried along; only "Fairness" exists.
	IsolationMode string
}

// Snapshot is a full set of policies and quotas: what it leaves out reverts to
// the defaults. Entries with an empty key, and policies of the reserved
// tenant, do not count; of entries with equal keys the last one does.
type Snapshot struct {
	Origin
	Policies []Declared
	Quotas   []Quota
}

// Origin says where a set came from. It is zero before the first push.
type Origin struct {
	// Revision names the content. That of a Snapshot is the lower-case hex
	// SHA-256 of its wire form; that of an ExtensionSet is the sender's.
	Revision string
	// Version is the schema version of the wire form, Bytes its length.
	Version, Bytes int
	AppliedAt      time.Time
}
