// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"time"
)

// ReservedTenant is the tenant of the self-test. Nobody else may read or write
// under it and no policy applies to it.
const ReservedTenant = "inferencecache.io/probe"

// The contract's defaults.
const (
	DefaultTTL                  = 30 * time.Minute
	DefaultMinimumMatchedTokens = 64
	DefaultRoutingFloorScore    = float32(0.1)
)

// Effective is what holds for one namespace after every absent field was
// filled in.
type Effective struct {
	// TTLMillis is above 0.
	TTLMillis int64
	LFU       bool
	// MinimumPrefixTokens, MinimumMatchedTokens and LookupTimeoutMillis are
	// 0 when they do not apply, as is RoutingFloorScore.
	MinimumPrefixTokens  int32
	MinimumMatchedTokens int32
	LookupTimeoutMillis  int32
	RoutingFloorScore    float32
	ChainMatching        bool
	RequireChain         bool
	TenantHot            bool
	Affinity             bool
	Extensions           Extensions
}

// unset returns what holds for a namespace without a policy.
func unset(ttl time.Duration) Effective {
	if ttl <= 0 {
		ttl = DefaultTTL
	}
	return Effective{
		TTLMillis:            millis(ttl),
		MinimumMatchedTokens: DefaultMinimumMatchedTokens,
		RoutingFloorScore:    DefaultRoutingFloorScore,
		ChainMatching:        true,
		TenantHot:            true,
		Affinity:             true,
	}
}

// resolve fills in what d leaves open.
func (d Declared) resolve(defaults Effective) Effective {
	effective := Effective{
		TTLMillis:            defaults.TTLMillis,
		LFU:                  strings.EqualFold(d.Eviction, "lfu"),
		MinimumPrefixTokens:  max(d.MinimumPrefixTokens, 0),
		MinimumMatchedTokens: max(d.MinimumMatchedTokens, 0),
		LookupTimeoutMillis:  max(d.LookupTimeoutMillis, 0),
		RoutingFloorScore:    max(orDefault(d.RoutingFloorScore, defaults.RoutingFloorScore), 0),
		ChainMatching:        orDefault(d.EnableChainMatching, defaults.ChainMatching),
		RequireChain:         orDefault(d.RequireChain, defaults.RequireChain),
		TenantHot:            orDefault(d.EnableTenantHot, defaults.TenantHot),
		Affinity:             orDefault(d.AffinityRouting, defaults.Affinity),
	}
	if d.EvictionTTL > 0 {
		effective.TTLMillis = millis(d.EvictionTTL)
	}
	return effective
}

// millis rounds a positive duration down, but never to 0.
func millis(d time.Duration) int64 { return max(d.Milliseconds(), 1) }

func orDefault[T any](value *T, otherwise T) T {
	if value == nil {
		return otherwise
	}
	return *value
}
