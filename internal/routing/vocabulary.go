// SPDX-License-Identifier: Apache-2.0

package routing

import "fmt"

// Origin says who made a choice.
type Origin string

// Origins.
const (
	OriginIndexHint       Origin = "index_hint"
	OriginPolicy          Origin = "policy"
	OriginTargetHeader    Origin = "target_header"
	OriginSingleCandidate Origin = "single_candidate"
	OriginLoadSpill       Origin = "load_spill"
	OriginStickyHit       Origin = "sticky_hit"
	OriginStickyNew       Origin = "sticky_new"
	OriginStickyStale     Origin = "sticky_stale"
	OriginStickyRespill   Origin = "sticky_respill"
	OriginWarmupSlice     Origin = "warmup_slice"
	OriginWarmupDivert    Origin = "warmup_divert"
	OriginNoneEligible    Origin = "none_eligible"
)

// Branch says how a choice relates to what the cache was predicted to hold.
type Branch string

// Branches.
const (
	BranchHit                  Branch = "hit"
	BranchSpill                Branch = "spill"
	BranchMiss                 Branch = "miss"
	BranchAffinity             Branch = "affinity"
	BranchTenantHot            Branch = "tenant_hot"
	BranchShortRequest         Branch = "short_request"
	BranchWarmupSlice          Branch = "warmup_slice"
	BranchWarmupDivert         Branch = "warmup_divert"
	BranchTimeout              Branch = "timeout"
	BranchNoHint               Branch = "no_hint"
	BranchTokenizerUnavailable Branch = "tokenizer_unavailable"
	BranchParityFailed         Branch = "parity_failed"
	BranchNone                 Branch = "none"
)

// Source says what a prediction rests on.
type Source string

// Sources.
const (
	SourceIndexLookup Source = "index_lookup"
	SourceSpeculative Source = "speculative"
	SourceApprox      Source = "approx_tree"
	// SourceHashPlacement is a choice by hash, without evidence.
	SourceHashPlacement Source = "hash_placement"
	SourceNone          Source = "none"
)

// TieBreak says what settled a choice among equally good replicas.
type TieBreak string

// Tie breaks.
const (
	TieNone    TieBreak = "none"
	TieOverlap TieBreak = "overlap"
	TieScore   TieBreak = "score"
	TieLoad    TieBreak = "load"
	TieRandom  TieBreak = "random"
)

// Gate names the test that kept a replica from being chosen.
type Gate string

// Gates. GateNone means that the replica was eligible.
const (
	GateNone        Gate = ""
	GateNotReady    Gate = "not_ready"
	GateDraining    Gate = "draining"
	GateBreakerOpen Gate = "breaker_open"
	GateModel       Gate = "model"
	GateAdapter     Gate = "adapter"
	GateRole        Gate = "role"
	GateInflightCap Gate = "inflight_cap"
	GateExcluded    Gate = "excluded"
	GateCordoned    Gate = "cordoned"
	GateAsleep      Gate = "asleep"
	GateTenant      Gate = "tenant"
	// GateTransport keeps prefill replicas from decode replicas that could not
	// take their KV.
	GateTransport Gate = "transport"
)

// HintOutcome says what became of a hint that named replicas.
type HintOutcome string

// Hint outcomes. HintAbsent means that the hint named nobody.
const (
	HintAbsent      HintOutcome = ""
	HintFollowed    HintOutcome = "followed"
	HintUnhealthy   HintOutcome = "unhealthy"
	HintOverloaded  HintOutcome = "overloaded"
	HintUnplaceable HintOutcome = "unplaceable"
	HintSpilled     HintOutcome = "spilled"
	HintDraining    HintOutcome = "draining"
)

// Reason codes of the index that a decision acts on. Any other code, known or
// not, counts as no hint.
const (
	ReasonPrefixMatch  = "PREFIX_MATCH"
	ReasonAffinityHint = "AFFINITY_HINT"
	ReasonTenantHot    = "TENANT_HOT"
	ReasonTimeout      = "TIMEOUT"
)

// Role is the part a replica plays for a request.
type Role uint8

// Roles. RoleSingle runs both prefill and decode.
const (
	RoleSingle Role = iota
	RolePrefill
	RoleDecode
)

// String is the role's name in configurations, traces and reports.
func (r Role) String() string {
	switch r {
	case RolePrefill:
		return "prefill"
	case RoleDecode:
		return "decode"
	default:
		return "single"
	}
}

// ParseRole reads the name of a role; empty is single.
func ParseRole(name string) (Role, error) {
	for _, role := range []Role{RoleSingle, RolePrefill, RoleDecode} {
		if name == role.String() || name == "" {
			return role, nil
		}
	}
	return RoleSingle, fmt.Errorf("role %.32q: expected single, prefill or decode", name)
}
