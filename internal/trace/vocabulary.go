// SPDX-License-Identifier: Apache-2.0

package trace

import "slices"

// Kind says what a record reports.
type Kind string

// Kinds.
const (
	// KindDispatch is written just before a request is sent: it is intent, not
	// success.
	KindDispatch Kind = "dispatch"
	// KindFailure is written once for each attempt that failed, also for one
	// that is retried.
	KindFailure Kind = "failure"
	// KindOutcome tells how an attempt ended, and the engine's own figures.
	KindOutcome Kind = "outcome"
	// KindHeaderOmitted says why a response lacks its trace header.
	KindHeaderOmitted Kind = "header_omitted"
)

// Kinds lists the kinds of records.
func Kinds() []Kind { return []Kind{KindDispatch, KindFailure, KindOutcome, KindHeaderOmitted} }

// Where a root id comes from.
const (
	RootInbound   = "inbound"
	RootGenerated = "generated"
)

// Modes of a request.
const (
	ModeRegular = "regular"
	ModePD      = "pd"
	ModeEPD     = "epd"
)

// Role is the part a replica is chosen for.
type Role string

// Roles. RoleSingle runs both prefill and decode.
const (
	RoleSingle  Role = "single"
	RolePrefill Role = "prefill"
	RoleDecode  Role = "decode"
	RoleEncode  Role = "encode"
)

// leg is empty for the role of a request with one leg.
func (r Role) leg() Role {
	if r == RoleSingle {
		return ""
	}
	return r
}

// Phases in which an attempt fails.
const (
	PhaseIngress   = "ingress"
	PhaseSelection = "selection"
	PhaseAcquire   = "acquire"
	PhaseDispatch  = "dispatch"
	PhaseStream    = "stream"
	PhaseBody      = "body"
)

// Gates that a candidate passes or fails.
const (
	GateEligibility   = "eligibility"
	GateCircuit       = "circuit"
	GateOverload      = "overload"
	GateCountPressure = "count_pressure"
	GateQueuePressure = "queue_pressure"
	GateKVPressure    = "kv_pressure"
	GateInflightCap   = "inflight_cap"
	GateAdapter       = "adapter"
	GateSubset        = "subset"
	GateTenantPolicy  = "tenant_policy"
	GateSLO           = "slo"
)

// States of a candidate's circuit breaker.
const (
	CircuitClosed = "closed"
	CircuitOpen   = "open"
	CircuitHalf   = "half"
)

// Where loads come from.
const (
	LoadGatewayInflight = "gateway_inflight"
	LoadEngineReport    = "engine_report"
	LoadIndex           = "index"
)

// Whether the candidates are all that exist.
const (
	ScopeAll         = "all"
	ScopePrefiltered = "prefiltered"
)

// Notes on a prediction.
const (
	NoteTokenizerUnavailable = "tokenizer_unavailable"
	NoteParityFailed         = "parity_failed"
	NoteIndexDown            = "index_down"
	NoteIndexBlind           = "index_blind"
	NoteUnknownReplica       = "unknown_replica"
	NotePromptTooLong        = "prompt_too_long"
	NoteBatchFirstPrompt     = "batch_first_prompt"
	NotePDLocal              = "pd_local"
)

// Why a header was left out.
const (
	OmittedSize     = "size"
	OmittedEncoding = "encoding"
	OmittedDisabled = "disabled_midway"
)

// Whether an outcome holds figures of the engine.
const (
	EvidenceUsage = "usage_field"
	EvidenceNone  = "none"
)

// Origins lists who may have made a choice.
func Origins() []string {
	return []string{
		"index_hint", "policy", "sticky_hit", "sticky_new", "sticky_stale", "sticky_respill", "target_header",
		"single_candidate", "warmup_slice", "warmup_divert", "load_spill", "kv_pressure", "random_fallback",
		"first_healthy_fallback", "none_eligible",
	}
}

// Sources lists what a prediction may rest on.
func Sources() []string {
	return []string{"index_lookup", "local_events", "approx_tree", "speculative", "hash_placement", "none"}
}

// Branches lists how a choice may relate to its prediction.
func Branches() []string {
	return []string{
		"hit", "spill", "miss", "affinity", "tenant_hot", "short_request", "warmup_slice", "warmup_divert",
		"kv_pressure", "timeout", "no_hint", "tokenizer_unavailable", "parity_failed", "none",
	}
}

// unasked are the origins for which no policy was asked, so that there may be
// no prediction.
var unasked = []string{"sticky_hit", "target_header", "single_candidate", "none_eligible"}

var (
	allGates = []string{
		GateEligibility, GateCircuit, GateOverload, GateCountPressure, GateQueuePressure, GateKVPressure,
		GateInflightCap, GateAdapter, GateSubset, GateTenantPolicy, GateSLO,
	}
	allNotes = []string{
		NoteTokenizerUnavailable, NoteParityFailed, NoteIndexDown, NoteIndexBlind, NoteUnknownReplica,
		NotePromptTooLong, NoteBatchFirstPrompt, NotePDLocal,
	}
	allPhases = []string{PhaseIngress, PhaseSelection, PhaseAcquire, PhaseDispatch, PhaseStream, PhaseBody}
)

// problem says what is wrong with a closed selection, "" for nothing. Callers'
// mistakes show here in tests; nothing is refused because of them.
func (c *Choice) problem() string {
	p := c.Prediction
	switch {
	case !slices.Contains(Origins(), c.Origin):
		return "unknown origin " + c.Origin
	case p == nil && c.Replica != "" && !slices.Contains(unasked, c.Origin):
		return "no prediction although a policy was asked: policy " + c.Policy + ", origin " + c.Origin
	case p != nil && !slices.Contains(Sources(), p.Source):
		return "unknown prediction source " + p.Source
	case p != nil && !slices.Contains(Branches(), p.Branch):
		return "unknown prediction branch " + p.Branch
	case p != nil && p.Note != "" && !slices.Contains(allNotes, string(p.Note)):
		return "unknown prediction note " + string(p.Note)
	}
	for i := range c.Gates {
		if !slices.Contains(allGates, c.Gates[i].Kind) {
			return "unknown gate " + c.Gates[i].Kind
		}
	}
	return ""
}
