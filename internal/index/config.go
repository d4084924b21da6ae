// SPDX-License-Identifier: Apache-2.0

package index

import "time"

// Config sets what an Index may hold. Its zero value is a usable index without
// bounds other than DefaultTTLMillis.
type Config struct {
	// MaxMemoryBytes bounds the memory of the index by its own account;
	// 0 = no bound.
	MaxMemoryBytes int64
	// MaxMemberships bounds memberships, reserved tenant left out; 0 = no
	// bound.
	MaxMemberships int64
	// MaxTenants bounds tenants; 0 = 10,000.
	MaxTenants int
	// MaxPartitions bounds (tenant, model, scheme, adapter); 0 = 100,000.
	MaxPartitions int
	// DefaultRules are the rules of tenants that SetRules does not name.
	DefaultRules TenantRules
	// ReservedTenant is held, but neither counted, capped nor reported;
	// "" = none.
	ReservedTenant string
	// SilenceTimeoutMillis is how long a replica that used to talk regularly
	// may say nothing before it is silent; 0 = never silent.
	SilenceTimeoutMillis int64
	// AffinitySilenceTimeoutMillis is the same for affinity candidates that
	// have a session; 0 = never.
	AffinitySilenceTimeoutMillis int64
	// LFUHalfLifeMillis is after how long LFU counts have halved, at least
	// MinLFUHalfLifeMillis; 0 = they never do.
	LFUHalfLifeMillis int64
	// Observe is told the length of each exclusive section; nil = nobody.
	// It must not block and not call the index.
	Observe func(op string, critical time.Duration)
	// ObserveRun is told the length of each whole run of "cap", "quota" and
	// "snapshot", lookups let through in between; nil = nobody. It must not
	// block and not call the index.
	ObserveRun func(task string, took time.Duration)
	// ObserveWait is told of one in 64 waits for a lock, those of no length
	// included; nil = nobody. It is called with locks held: it must not block
	// and not call the index.
	ObserveWait func(side WaitSide, waited time.Duration)
	// Feed is told of changes; nil = nobody.
	Feed Feed
	// Seed spreads keys over tables; 0 = random.
	Seed uint64
}

// Defaults of Config.
const (
	DefaultMaxTenants    = 10_000
	DefaultMaxPartitions = 100_000
	DefaultTTLMillis     = 30 * 60 * 1000
	MinLFUHalfLifeMillis = 60 * 1000
	// MaxReplicasPerScope bounds the replica ids of one scope.
	MaxReplicasPerScope = 8_192
)

// regularGapMillis and regularPayloads say which replicas talk regularly.
const (
	regularGapMillis = 60_000
	regularPayloads  = 3
)

func (c Config) withDefaults() Config {
	if c.MaxTenants <= 0 {
		c.MaxTenants = DefaultMaxTenants
	}
	if c.MaxPartitions <= 0 {
		c.MaxPartitions = DefaultMaxPartitions
	}
	if c.LFUHalfLifeMillis > 0 {
		c.LFUHalfLifeMillis = max(c.LFUHalfLifeMillis, MinLFUHalfLifeMillis)
	}
	c.DefaultRules = c.DefaultRules.withDefaults()
	return c
}

func (r TenantRules) withDefaults() TenantRules {
	if r.TTLMillis <= 0 {
		r.TTLMillis = DefaultTTLMillis
	}
	return r
}
