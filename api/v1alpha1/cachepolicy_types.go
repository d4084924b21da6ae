// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// EvictionAlgorithm orders the victims when the index is full.
// +kubebuilder:validation:Enum=LRU;LFU
type EvictionAlgorithm string

// Eviction algorithms.
const (
	// EvictionLRU evicts what was reported longest ago.
	EvictionLRU EvictionAlgorithm = "LRU"
	// EvictionLFU evicts what delivered the fewest hints.
	EvictionLFU EvictionAlgorithm = "LFU"
)

// AffinityRouting says whether a lookup without a match still names one
// replica.
// +kubebuilder:validation:Enum=Enabled;Disabled
type AffinityRouting string

// Values of AffinityRouting.
const (
	AffinityEnabled  AffinityRouting = "Enabled"
	AffinityDisabled AffinityRouting = "Disabled"
)

// CachePolicySpec says how lookups of the namespace's tenant behave.
type CachePolicySpec struct {
	// Which entries go first when the index is full.
	// +kubebuilder:default=LRU
	// +optional
	Eviction EvictionAlgorithm `json:"eviction,omitempty"`

	// How long an entry stays without being reported again; above 0. Unset:
	// the server's default, 30 minutes.
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="evictionTTL must be above 0"
	// +optional
	EvictionTTL *metav1.Duration `json:"evictionTTL,omitempty"`

	// Prompts with fewer tokens get no positive hint. Unset: no threshold.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	MinimumPrefixTokens *int32 `json:"minimumPrefixTokens,omitempty"`

	// Replicas that match fewer tokens are left out of a hint; 0 switches the
	// floor off.
	// +kubebuilder:default=64
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	MinimumMatchedTokens *int32 `json:"minimumMatchedTokens,omitempty"`

	// A hint whose best score is lower is not given; "0" switches the floor
	// off. A decimal with up to 8 digits before and 6 after the point.
	// +kubebuilder:default="0.1"
	// +kubebuilder:validation:Pattern=`^(0|[1-9][0-9]{0,7})(\.[0-9]{1,6})?$`
	// +optional
	RoutingFloorScore *string `json:"routingFloorScore,omitempty"`

	// Milliseconds after which a lookup answers TIMEOUT. Unset: none.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	LookupTimeoutMs *int32 `json:"lookupTimeoutMs,omitempty"`

	// Which kinds of lookup are answered.
	// +optional
	Strategy *CachePolicyStrategy `json:"strategy,omitempty"`

	// Whether a lookup without a match names the replica that prompts of this
	// content always go to.
	// +kubebuilder:default=Enabled
	// +optional
	AffinityRouting AffinityRouting `json:"affinityRouting,omitempty"`

	// How that replica is chosen. Servers that do not know these fields use
	// the defaults.
	// +optional
	Routing *CachePolicyRouting `json:"routing,omitempty"`
}

// CachePolicyStrategy says which kinds of lookup are answered.
// +kubebuilder:validation:XValidation:rule="!(has(self.requireChain) && self.requireChain && has(self.enableChainMatching) && !self.enableChainMatching)",message="requireChain needs enableChainMatching"
type CachePolicyStrategy struct {
	// Match block by block; else only whole prefixes.
	// +kubebuilder:default=true
	// +optional
	EnableChainMatching *bool `json:"enableChainMatching,omitempty"`
	// Refuse lookups without block hashes.
	// +kubebuilder:default=false
	// +optional
	RequireChain *bool `json:"requireChain,omitempty"`
	// Name the replicas that serve the tenant best when nothing matches.
	// +kubebuilder:default=true
	// +optional
	EnableTenantHot *bool `json:"enableTenantHot,omitempty"`
}

// CachePolicyRouting tunes the choice without a match and among equals.
type CachePolicyRouting struct {
	// How content is mapped to a replica: Modulo moves most prompts when a
	// replica comes or goes, Rendezvous only the prompts of that replica.
	// +kubebuilder:validation:Enum=Modulo;Rendezvous
	// +optional
	AffinityHash string `json:"affinityHash,omitempty"`
	// How many leading blocks are the content, at most 4096; 0: all.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4096
	// +optional
	AffinitySeedBlocks *int32 `json:"affinitySeedBlocks,omitempty"`
	// Replicas with this memory pressure or more are passed over: a decimal
	// from 0 to 1; 0: none are.
	// +kubebuilder:validation:Pattern=`^(0(\.[0-9]{1,6})?|1(\.0{1,6})?)$`
	// +optional
	AffinityMaxPressure *string `json:"affinityMaxPressure,omitempty"`
	// What a match that singles no replica out gives: with Affinity no hint, so
	// that content decides; with Load the longest matches by memory pressure.
	// +kubebuilder:validation:Enum=Affinity;Load
	// +optional
	EqualHolders string `json:"equalHolders,omitempty"`
}

// CachePolicyStatus says whether the policy is in force.
type CachePolicyStatus struct {
	// Generation that the conditions are about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Accepted: the policy is well formed and not shadowed. Programmed: every
	// server has applied it.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Revision of the policy snapshot with which all servers had applied this
	// generation.
	// +optional
	PolicyRevision string `json:"policyRevision,omitempty"`
	// Servers that have applied this generation.
	// +optional
	ProgrammedServers *int32 `json:"programmedServers,omitempty"`
	// Servers there are.
	// +optional
	DesiredServers *int32 `json:"desiredServers,omitempty"`
}

// CachePolicy governs the lookups of the tenant named like its namespace.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=cachepolicies,shortName=cpol
// +kubebuilder:printcolumn:name="Eviction",type=string,JSONPath=`.spec.eviction`
// +kubebuilder:printcolumn:name="Programmed",type=string,JSONPath=`.status.conditions[?(@.type=="Programmed")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CachePolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec   CachePolicySpec   `json:"spec"`
	Status CachePolicyStatus `json:"status,omitempty"`
}

// CachePolicyList is a list of CachePolicies.
// +kubebuilder:object:root=true
type CachePolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []CachePolicy `json:"items"`
}
