// SPDX-License-Identifier: Apache-2.0

package client

// Reason says how a lookup ended.
type Reason string

// Reasons given by the index. The first three come with scores.
const (
	// PrefixMatch: the scores are replicas that hold the prefix, best first.
	PrefixMatch Reason = "PREFIX_MATCH"
	// TenantHot: nobody holds the prefix; the scores are replicas with a warm
	// cache for the tenant and model.
	TenantHot Reason = "TENANT_HOT"
	// AffinityHint: no cache evidence; the one replica named is the same for
	// equal prompts.
	AffinityHint Reason = "AFFINITY_HINT"
	// NoHint: route as usual. Codes this package does not know become NoHint.
	NoHint Reason = "NO_HINT"
	// PolicyRequiresChain: the tenant's policy wants Request.Chain.
	PolicyRequiresChain Reason = "POLICY_REQUIRES_CHAIN"
	// Timeout: the index ran out of the time its policy or the caller allows.
	Timeout Reason = "TIMEOUT"
	// UnknownTenant: no publisher reported under Request.Tenant.
	UnknownTenant Reason = "UNKNOWN_TENANT"
	// UnknownModel: the tenant is known, Request.Model is not.
	UnknownModel Reason = "UNKNOWN_MODEL"
	// UnknownHashScheme: tenant and model are known, Request.HashScheme is not.
	UnknownHashScheme Reason = "UNKNOWN_HASH_SCHEME"
)

// Reasons for lookups the index did not answer. They never come with scores.
const (
	// ClientTimeout: no answer within Options.Timeout or the caller's deadline.
	ClientTimeout Reason = "CLIENT_TIMEOUT"
	// Unavailable: the call failed for want of a working server or connection.
	Unavailable Reason = "UNAVAILABLE"
	// BreakerOpen: not asked, because the calls before failed.
	BreakerOpen Reason = "BREAKER_OPEN"
	// Rejected: the server refused the call: credentials, size or method.
	Rejected Reason = "REJECTED"
	// Canceled: the caller's context was canceled.
	Canceled Reason = "CANCELED"
	// InvalidRequest: not asked, because the request could not have an answer.
	InvalidRequest Reason = "INVALID_REQUEST"
)

// Reasons returns every Reason a Result can have: the closed set of values of
// a metric label.
func Reasons() []Reason {
	return []Reason{
		PrefixMatch, TenantHot, AffinityHint, NoHint, PolicyRequiresChain, Timeout,
		UnknownTenant, UnknownModel, UnknownHashScheme,
		ClientTimeout, Unavailable, BreakerOpen, Rejected, Canceled, InvalidRequest,
	}
}

// ParseReason returns the Reason of a reason_code sent by an index. A code
// that is not one of the index's is NoHint.
func ParseReason(code string) Reason {
	switch reason := Reason(code); reason {
	case PrefixMatch, TenantHot, AffinityHint, PolicyRequiresChain, Timeout,
		UnknownTenant, UnknownModel, UnknownHashScheme:
		return reason
	default:
		return NoHint
	}
}

// Hints reports whether answers with this reason name replicas.
func (r Reason) Hints() bool {
	return r == PrefixMatch || r == TenantHot || r == AffinityHint
}

// Misconfigured reports whether a key of the request matches nothing any
// publisher uses. Asking again under another value does not help.
func (r Reason) Misconfigured() bool {
	return r == UnknownTenant || r == UnknownModel || r == UnknownHashScheme
}

// Answered reports whether the index answered at all.
func (r Reason) Answered() bool {
	return ParseReason(string(r)) == r
}
