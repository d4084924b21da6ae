// SPDX-License-Identifier: Apache-2.0

package lookup

// Reason is the contract's reason code of an answer.
type Reason string

// Reason codes. The first three come with scores.
const (
	PrefixMatch         Reason = "PREFIX_MATCH"
	TenantHot           Reason = "TENANT_HOT"
	AffinityHint        Reason = "AFFINITY_HINT"
	NoHint              Reason = "NO_HINT"
	PolicyRequiresChain Reason = "POLICY_REQUIRES_CHAIN"
	Timeout             Reason = "TIMEOUT"
	UnknownTenant       Reason = "UNKNOWN_TENANT"
	UnknownModel        Reason = "UNKNOWN_MODEL"
	UnknownHashScheme   Reason = "UNKNOWN_HASH_SCHEME"
	// UnknownAdapter is only used with Options.DiagnoseAdapter.
	UnknownAdapter Reason = "UNKNOWN_ADAPTER"

	// undecided is a miss that the fallback may still turn into a hint.
	undecided Reason = ""
)

// Reasons returns every reason code.
func Reasons() []Reason {
	return []Reason{
		PrefixMatch, TenantHot, AffinityHint, NoHint, PolicyRequiresChain,
		Timeout, UnknownTenant, UnknownModel, UnknownHashScheme, UnknownAdapter,
	}
}

// Gate is a rule that withheld a hint.
type Gate uint8

// Gates, in the order in which they are asked.
const (
	GateMinPrefix         Gate = iota // prompt below minimumPrefixTokens
	GateGrace                         // diagnosis withheld shortly after start
	GateTenantHotDisabled             // policy allows no tenant-hot hints
	GateMatchedFloor                  // every match below minimumMatchedTokens
	GateScoreFloor                    // best score below routingFloorScore
	GateAdapterUnseen                 // replicas serve the scope, none the adapter
	GateAllOverPressure               // affinity found every candidate too loaded
	gateCount
)

var gateNames = [gateCount]string{
	"min_prefix", "grace", "tenant_hot_disabled", "matched_floor",
	"score_floor", "adapter_unseen", "all_over_pressure",
}

// String returns the gate's name in metrics and explanations.
func (g Gate) String() string { return gateNames[g] }

// AllGates returns every gate.
func AllGates() []Gate {
	gates := make([]Gate, gateCount)
	for i := range gates {
		gates[i] = Gate(i)
	}
	return gates
}

// Gates is a set of gates.
type Gates uint16

// Has reports whether the gate is in the set.
func (s Gates) Has(gate Gate) bool { return s&(1<<gate) != 0 }

func (s *Gates) add(gate Gate) { *s |= 1 << gate }

// Invalid says what is wrong with a request's input.
type Invalid string

// Kinds of invalid input.
const (
	Valid          Invalid = ""
	ChainMismatch  Invalid = "chain_mismatch"
	CountNegative  Invalid = "count_negative"
	CountOverflow  Invalid = "count_overflow"
	HashEmpty      Invalid = "hash_empty"
	HashTooLong    Invalid = "hash_too_long"
	TooManyTokens  Invalid = "too_many_tokens"
	PromptTooLong  Invalid = "prompt_too_long"
	IdentifierLong Invalid = "id_too_long"
)

// Invalids returns every kind of invalid input.
func Invalids() []Invalid {
	return []Invalid{
		ChainMismatch, CountNegative, CountOverflow, HashEmpty, HashTooLong,
		TooManyTokens, PromptTooLong, IdentifierLong,
	}
}

// Tokenized is how tokenizing a prompt ended.
type Tokenized string

// Results of tokenizing.
const (
	NotTokenized         Tokenized = ""
	TokenizedOK          Tokenized = "ok"
	TokenizedUnavailable Tokenized = "unavailable"
	TokenizedError       Tokenized = "error"
	TokenizedSaturated   Tokenized = "saturated"
	TokenizedTooLong     Tokenized = "too_long"
)

// TokenizeResults returns every result of tokenizing.
func TokenizeResults() []Tokenized {
	return []Tokenized{TokenizedOK, TokenizedUnavailable, TokenizedError, TokenizedSaturated, TokenizedTooLong}
}
