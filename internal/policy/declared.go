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
	Extensions          Extensions
}

// Extensions are opt-in changes to how a namespace's fallback works. The zero
// value is the contract's behaviour.
type Extensions struct {
	Hash AffinityHash
	// SeedBlocks bounds the affinity seed to the first blocks of a chain.
	// 0 = the whole chain.
	SeedBlocks int
	// MaxPressure is the pressure from which on affinity passes a replica
	// over, in (0, 1]. 0 = never.
	MaxPressure float32
	// EqualHolders says what happens when everyone holds the prefix.
	EqualHolders EqualHolders
}

// AffinityHash is how affinity maps a seed to a replica.
type AffinityHash uint8

// Affinity hashes.
const (
	HashModulo     AffinityHash = iota // index into the sorted candidates
	HashRendezvous                     // largest weight wins; moves 1/n of seeds per change
)

// EqualHolders is what to do with a match that singles no replica out.
type EqualHolders uint8

// Ways to treat equal holders.
const (
	EqualHoldersAffinity EqualHolders = iota // the score floor withholds the hint
	EqualHoldersLoad                         // the least loaded of the longest matches
)

// Quota bounds what one tenant may keep in the index.
type Quota struct {
	Tenant string
	// MaxKeys below 0 counts as 0, which admits nothing.
	MaxKeys int64
}
