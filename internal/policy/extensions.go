// SPDX-License-Identifier: Apache-2.0

package policy

// ExtensionSet is a full set of what goes beyond the contract's policies. It
// is kept apart from a Snapshot: replacing one leaves the other alone.
type ExtensionSet struct {
	Origin
	Policies   []NamespaceExtensions
	Templates  []Template
	Topologies []PDTopology
}

// NamespaceExtensions are the extensions of one namespace, which need not have
// a policy.
type NamespaceExtensions struct {
	Namespace string
	Extensions
}

// Extensions are opt-in changes to how a namespace's fallback works. The zero
// value is the contract's behaviour.
type Extensions struct {
	Hash AffinityHash
	// SeedBlocks bounds the affinity seed to the first blocks of a chain.
	// 0 = the whole chain, at most 4096.
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

// MaxTemplateBytes is the longest body of a template.
const MaxTemplateBytes = 256 << 10

// Template is a prompt template of a namespace.
type Template struct {
	Namespace, Name string
	Body            string
	Slots           []Slot
}

// Slot is a variable of a template.
type Slot struct {
	Name     string
	Type     SlotType
	Required bool
}

// SlotType says whether a slot's value is the same in most prompts.
type SlotType string

// Slot types.
const (
	SlotStable  SlotType = "Stable"
	SlotMutable SlotType = "Mutable"
)

// PDTopology names the replicas of a model that split prefill from decode.
type PDTopology struct {
	Namespace, Name string
	Model           string
	// Prefill and Decode are replica ids.
	Prefill, Decode []string
	Transport       Transport
}

// Transport is how KV blocks move from prefill to decode.
type Transport string

// Transports.
const (
	TransportUnknown  Transport = ""
	TransportMooncake Transport = "Mooncake"
	TransportNIXL     Transport = "NIXL"
	TransportDirect   Transport = "Direct"
)
