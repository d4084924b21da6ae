// SPDX-License-Identifier: Apache-2.0

package index

// Scope is the space in which block keys are compared.
type Scope struct {
	Tenant, Model, Scheme string
}

// Tier says where a replica keeps a block; a larger value is colder.
type Tier uint8

// Tiers. TierOther stands for every tier the contract does not name; it is
// colder than the others and reported as unspecified.
const (
	TierT1    Tier = 1
	TierT2    Tier = 2
	TierT3    Tier = 3
	TierOther Tier = 4
)

// Keys is a list of block keys. Short is used for keys of exactly 8 bytes
// (big-endian on the wire); Long, when not nil, replaces Short and may mix
// lengths from 1 to MaxKeyBytes. An 8-byte key is the same key in both forms.
type Keys struct {
	Short []uint64
	Long  [][]byte
}

// Len returns the number of keys.
func (k Keys) Len() int {
	if k.Long != nil {
		return len(k.Long)
	}
	return len(k.Short)
}

// MaxKeyBytes is the longest key the index takes.
const MaxKeyBytes = 64

// Tokens gives each key of a list its token count: Counts[i], or
// First + i*Step when Counts is empty.
type Tokens struct {
	Counts      []int32
	First, Step int32
}

// At returns the count of key i.
func (t Tokens) At(i int) int32 {
	if len(t.Counts) > 0 {
		return t.Counts[i]
	}
	return t.First + int32(i)*t.Step
}

// OpKind says what an Op does.
type OpKind uint8

// Kinds of Op.
const (
	OpStore  OpKind = iota // insert or overwrite memberships
	OpRemove               // remove memberships of one adapter; absent keys are no error
	OpClear                // remove everything of the replica in the scope
)

// Op is one change to what a replica holds in a scope.
type Op struct {
	Kind    OpKind
	Adapter string
	Tier    Tier   // OpStore
	Keys    Keys   // OpStore, OpRemove
	Tokens  Tokens // OpStore: tokens of the whole prefix that ends with each key
}

// Batch is an ordered list of changes of one replica in one scope. The index
// keeps none of its slices.
type Batch struct {
	Scope   Scope
	Replica string
	// AtMillis is the producer's time, not after NowMillis. Both are Unix
	// milliseconds.
	AtMillis, NowMillis int64
	Ops                 []Op
}

// Applied counts what a batch did, in memberships.
type Applied struct {
	Stored, Refreshed, MovedTier, Removed, Cleared int
	// Older counts memberships left alone because they were newer.
	Older int
	// Expired counts stores whose age had reached the tenant's TTL.
	Expired int
	// ScopeLimit counts stores refused because they would create one tenant
	// or partition too many.
	ScopeLimit int
}

// Stats is what a replica last reported about itself for one tenant and model.
type Stats struct {
	CacheMemoryBytes           int64
	HitRate, Pressure          float32
	ClientVersion              string
	T2HitTokens, T2QueryTokens int64
	// LivenessMillis is the time of the last sign of life, ReportedMillis
	// that of the last payload.
	LivenessMillis, ReportedMillis int64
}

// TenantRules are a tenant's resolved limits.
type TenantRules struct {
	TTLMillis int64
	LFU       bool
	// MaxKeys bounds distinct keys when Limited is set; 0 admits nothing.
	MaxKeys int64
	Limited bool
}

// Match is one replica's leading run of a chain, or its hold on one key.
type Match struct {
	Replica string
	// Slot numbers the replica inside the scope; it is stable while the View
	// is held.
	Slot uint32
	// Blocks is the length of the run.
	Blocks int32
	// Tokens is the sum of the request's counts over the run (chain), or the
	// stored count (exact).
	Tokens int32
	// LastSeenMillis is the oldest effective time of the run: the stored
	// time or the session's last heartbeat, whichever is newer.
	LastSeenMillis int64
	// Tier is the coldest of the run.
	Tier Tier
}

// Candidate is a replica that may be named without cache evidence.
type Candidate struct {
	Replica string
	Slot    uint32
}
