// SPDX-License-Identifier: Apache-2.0

package kvevents

import "github.com/inferencecache/inference-cache/pkg/fingerprint"

// Kind is what an event says.
type Kind string

// Kinds of events. KindUnknown stands for every tag that is not known and for
// events whose tag cannot be read.
const (
	KindStored  Kind = "stored"
	KindRemoved Kind = "removed"
	KindCleared Kind = "cleared"
	KindUnknown Kind = "unknown"
)

// Kinds returns every kind, in a fixed order.
func Kinds() []Kind { return []Kind{KindStored, KindRemoved, KindCleared, KindUnknown} }

// Tier says where the engine keeps a block; a larger value is colder.
type Tier uint8

// Tiers: engine memory, host memory, and disk or storage of this replica.
const (
	TierNone Tier = iota
	TierT1
	TierT2
	TierT3
)

// Batch is one decoded payload. It is valid until the decoder's next call.
type Batch struct {
	// TimestampMicros is the engine's Unix time; 0 when it sent none that can
	// be used.
	TimestampMicros int64
	// Rank is the data-parallel rank when HasRank is set.
	Rank    int64
	HasRank bool
	Events  []Event
	// UnknownFields counts fields that were ignored. Names are bounded in
	// number and length; the rest is counted as OtherField.
	UnknownFields []FieldCount
}

// FieldCount counts one ignored field of a batch.
type FieldCount struct {
	Name  string
	Count int
}

// OtherField stands for unknown fields without a name of their own.
const OtherField = "other"

// Event is one decoded event. When Reason is set, the event must not be
// applied; after ReasonMalformed and ReasonUnknownType only Kind is meaningful.
type Event struct {
	Kind   Kind
	Reason Reason
	// Hashes are the engine's block hashes, cut to 64 bits.
	Hashes []uint64
	// HashBytes says that they came as byte strings.
	HashBytes bool
	// Parent is the hash before Hashes[0] when HasParent is set.
	Parent    uint64
	HasParent bool
	// Tokens are the ids of all blocks together; empty in placeholders.
	Tokens    []uint32
	BlockSize int
	Tier      Tier
	// Medium and Locality are the engine's words for it.
	Medium, Locality string
	// Adapter is the resolved adapter, "" for the base model.
	Adapter   string
	LoRAID    int64
	HasLoRAID bool
	LoRAName  string
	// Salt is the cache salt of the chain. SaltStated says that the event
	// names it on every block of the chain, not only on the first.
	Salt       string
	SaltStated bool
	// Multimodal holds the identifiers of each block; nil when no block has
	// any.
	Multimodal [][]fingerprint.Identifier
	// Group is the cache group when HasGroup is set, SpecKind what it holds
	// and Window its sliding window (0: none).
	Group     int64
	HasGroup  bool
	SpecKind  string
	Window    int64
	SessionID []byte
}

// Placeholder reports whether a store only names blocks: no tokens or no
// block size.
func (e *Event) Placeholder() bool { return len(e.Tokens) == 0 || e.BlockSize == 0 }

// Dense reports whether the event's cache group covers every token; stated is
// false when the event does not say.
func (e *Event) Dense() (dense, stated bool) {
	switch e.SpecKind {
	case "":
		return false, false
	case "full_attention", "mla_attention", "sink_full_attention":
		return true, true
	default:
		return false, true
	}
}
