// SPDX-License-Identifier: Apache-2.0

package propagate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/policy"
)

// Reasons of the condition Accepted.
const (
	ReasonAccepted            = "Accepted"
	ReasonShadowed            = "Shadowed"
	ReasonInvalidRoutingFloor = "InvalidRoutingFloor"
)

// PolicyVerdict says what became of one CachePolicy.
type PolicyVerdict struct {
	Name       types.NamespacedName
	Generation int64
	// Effective is whether the policy is in the snapshot.
	Effective bool
	// Accepted, its reason and message are the condition of that name.
	Accepted bool
	Reason   string
	Message  string
	// Dropped are the fields that are set but newer than the wire version
	// asked for.
	Dropped []string
}

// TenantVerdict says what became of one CacheTenant.
type TenantVerdict struct {
	Name       types.NamespacedName
	Generation int64
	// Effective is whether the tenant's quota is in the snapshot.
	Effective bool
	// Winner is the CacheTenant whose quota is in force instead.
	Winner types.NamespacedName
}

// Snapshot is one body for /policy and what it came from.
type Snapshot struct {
	Body []byte
	// Revision names the body: see policy.Revision.
	Revision string
	Policies []PolicyVerdict
	Tenants  []TenantVerdict
}

// wire form; absent members mean "the server's default".
type (
	wireSnapshot struct {
		Version  int          `json:"version"`
		Policies []wirePolicy `json:"policies"`
		Tenants  []wireTenant `json:"tenants,omitempty"`
	}
	wirePolicy struct {
		Namespace            string        `json:"namespace"`
		EvictionTTLNanos     int64         `json:"evictionTTL,omitempty"`
		MinimumPrefixTokens  int32         `json:"minimumPrefixTokens,omitempty"`
		MinimumMatchedTokens *int32        `json:"minimumMatchedTokens,omitempty"`
		RoutingFloorScore    *float32      `json:"routingFloorScore,omitempty"`
		LookupTimeoutMillis  int32         `json:"lookupTimeoutMs,omitempty"`
		Eviction             string        `json:"eviction,omitempty"`
		Strategy             *wireStrategy `json:"strategy,omitempty"`
		AffinityRouting      *bool         `json:"affinityRouting,omitempty"`
	}
	wireStrategy struct {
		EnableChainMatching *bool `json:"enableChainMatching,omitempty"`
		RequireChain        *bool `json:"requireChain,omitempty"`
		EnableTenantHot     *bool `json:"enableTenantHot,omitempty"`
	}
	wireTenant struct {
		TenantID        string `json:"tenantID"`
		MaxIndexEntries int64  `json:"maxIndexEntries"`
		IsolationMode   string `json:"isolationMode,omitempty"`
	}
)

// Policies builds the snapshot of all resources in a schema version from
// policy.MinimumVersion to policy.CurrentVersion. Of several policies in a
// namespace the first by name is in force; of several tenants with one id the
// first with a budget, by namespace and name.
func Policies(policies []v1alpha1.CachePolicy, tenants []v1alpha1.CacheTenant, version int) (*Snapshot, error) {
	if version < policy.MinimumVersion || version > policy.CurrentVersion {
		return nil, fmt.Errorf("policy wire version %d: expected %d to %d", version, policy.MinimumVersion, policy.CurrentVersion)
	}
	s := &Snapshot{}
	wire := wireSnapshot{Version: version, Policies: []wirePolicy{}}
	winners := make(map[string]string)
	for _, p := range sorted(policies) {
		verdict := PolicyVerdict{Name: nameOf(p), Generation: p.Generation, Effective: true, Accepted: true, Reason: ReasonAccepted}
		if winner, taken := winners[p.Namespace]; taken {
			verdict.Effective, verdict.Accepted, verdict.Reason = false, false, ReasonShadowed
			verdict.Message = fmt.Sprintf("CachePolicy %s of this namespace is in force", winner)
			s.Policies = append(s.Policies, verdict)
			continue
		}
		winners[p.Namespace] = p.Name
		wire.Policies = append(wire.Policies, flatten(p, version, &verdict))
		s.Policies = append(s.Policies, verdict)
	}
	wire.Tenants = s.addTenants(tenants)
	body, err := json.Marshal(wire)
	if err != nil {
		return nil, fmt.Errorf("encode policy snapshot: %w", err)
	}
	s.Body, s.Revision = body, policy.Revision(body)
	return s, nil
}

// object is what the resources have in common.
type object[T any] interface {
	*T
	GetNamespace() string
	GetName() string
}

func nameOf[T any, P object[T]](o P) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// sorted returns pointers into all, by namespace and name.
func sorted[T any, P object[T]](all []T) []P {
	pointers := make([]P, len(all))
	for i := range all {
		pointers[i] = &all[i]
	}
	slices.SortFunc(pointers, func(a, b P) int {
		return cmp.Or(strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()))
	})
	return pointers
}

func flatten(p *v1alpha1.CachePolicy, version int, verdict *PolicyVerdict) wirePolicy {
	spec := &p.Spec
	w := wirePolicy{
		Namespace:           p.Namespace,
		MinimumPrefixTokens: valueOr(spec.MinimumPrefixTokens, 0),
		LookupTimeoutMillis: valueOr(spec.LookupTimeoutMs, 0),
		Eviction:            "lru",
	}
	if spec.EvictionTTL != nil {
		w.EvictionTTLNanos = spec.EvictionTTL.Nanoseconds()
	}
	if spec.Eviction == v1alpha1.EvictionLFU {
		w.Eviction = "lfu"
	}
	floor := valueOr(spec.MinimumMatchedTokens, policy.DefaultMinimumMatchedTokens)
	score, valid := routingFloor(spec.RoutingFloorScore)
	if !valid {
		verdict.Accepted, verdict.Reason = false, ReasonInvalidRoutingFloor
		verdict.Message = "spec.routingFloorScore is no decimal number of at least 0: 0.1 is used"
	}
	affinity := spec.AffinityRouting != v1alpha1.AffinityDisabled
	members := []struct {
		name    string
		since   int
		set     func()
		setable bool // differs from what an older body means
	}{
		{"minimumMatchedTokens", 4, func() { w.MinimumMatchedTokens = &floor }, floor != policy.DefaultMinimumMatchedTokens},
		{"routingFloorScore", 5, func() { w.RoutingFloorScore = score }, score != nil && *score != policy.DefaultRoutingFloorScore},
		{"strategy", 6, func() { w.Strategy = strategy(spec.Strategy) }, !isDefault(spec.Strategy)},
		{"affinityRouting", 7, func() {
			if spec.AffinityRouting != "" {
				w.AffinityRouting = &affinity
			}
		}, !affinity},
	}
	for _, m := range members {
		if version >= m.since {
			m.set()
		} else if m.setable {
			verdict.Dropped = append(verdict.Dropped, m.name)
		}
	}
	return w
}

// routingFloor reads a floor score; what is none gives the default, never 0.
func routingFloor(text *string) (score *float32, valid bool) {
	if text == nil || *text == "" {
		return nil, true
	}
	parsed, err := strconv.ParseFloat(*text, 32)
	if err != nil || math.IsNaN(parsed) || math.IsInf(parsed, 0) || parsed < 0 {
		fallback := policy.DefaultRoutingFloorScore
		return &fallback, false
	}
	value := float32(parsed)
	return &value, true
}

func strategy(s *v1alpha1.CachePolicyStrategy) *wireStrategy {
	if s == nil {
		return nil
	}
	return &wireStrategy{s.EnableChainMatching, s.RequireChain, s.EnableTenantHot}
}

func isDefault(s *v1alpha1.CachePolicyStrategy) bool {
	return s == nil || valueOr(s.EnableChainMatching, true) && !valueOr(s.RequireChain, false) && valueOr(s.EnableTenantHot, true)
}

// addTenants adds a verdict for each tenant and returns the budgets in force,
// by namespace and name of their resources.
func (s *Snapshot) addTenants(tenants []v1alpha1.CacheTenant) (budgets []wireTenant) {
	winners := make(map[string]types.NamespacedName)
	for _, t := range sorted(tenants) {
		verdict := TenantVerdict{Name: nameOf(t), Generation: t.Generation}
		budget := t.Spec.Quota.MaxIndexEntries
		switch winner, taken := winners[t.Spec.TenantID]; {
		case t.Spec.TenantID == "" || budget == nil:
		case taken:
			verdict.Winner = winner
		default:
			verdict.Effective = true
			winners[t.Spec.TenantID] = verdict.Name
			budgets = append(budgets, wireTenant{t.Spec.TenantID, *budget, t.Spec.IsolationMode})
		}
		s.Tenants = append(s.Tenants, verdict)
	}
	return budgets
}

func valueOr[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}
