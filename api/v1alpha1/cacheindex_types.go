// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// CacheIndexSpec is empty: the resource only shows.
type CacheIndexSpec struct{}

// CacheIndexReplica is what one replica reported last.
type CacheIndexReplica struct {
	ID     string `json:"id"`
	Tenant string `json:"tenant,omitempty"`
	// Bytes of KV cache in use.
	CacheMemoryBytes int64 `json:"cacheMemoryBytes"`
	// Share of prompt tokens found in the cache, a decimal from 0 to 1. Unset
	// until reported.
	// +optional
	HitRate *string `json:"hitRate,omitempty"`
	// Memory pressure, a decimal from 0 to 1.
	// +optional
	Pressure string `json:"pressure,omitempty"`
	// When the replica reported last.
	// +optional
	LastUpdate metav1.Time `json:"lastUpdate,omitempty"`
}

// CacheIndexTenant is what one tenant keeps.
type CacheIndexTenant struct {
	ID string `json:"id"`
	// Distinct prefixes.
	// +optional
	IndexEntries *int64 `json:"indexEntries,omitempty"`
	// Mean over the tenant's replicas, a decimal from 0 to 1.
	// +optional
	HitRate *string `json:"hitRate,omitempty"`
	// Always 0; kept for readers that expect it.
	MemoryUsed int64 `json:"memoryUsed"`
}

// CacheIndexPrefixSummary counts the distinct prefixes.
type CacheIndexPrefixSummary struct {
	Total int64 `json:"total"`
	Hot   int64 `json:"hot"`
}

// CacheIndexPrefixes describes the prefixes known.
type CacheIndexPrefixes struct {
	Summary CacheIndexPrefixSummary `json:"summary"`
}

// CacheIndexServer is one server and what it knows.
type CacheIndexServer struct {
	Name      string `json:"name"`
	Reachable bool   `json:"reachable"`
	// Changes when the server restarts.
	// +optional
	Epoch string `json:"epoch,omitempty"`
	// Policy snapshot it has applied.
	// +optional
	PolicyRevision string `json:"policyRevision,omitempty"`
	Prefixes       int64  `json:"prefixes"`
	// Why it did not answer.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Message string `json:"message,omitempty"`
}

// CacheIndexStatus is what the servers know, merged.
type CacheIndexStatus struct {
	// Newest report of each replica; at most as many as the controller's
	// --cacheindex-max-replicas. Of replicas with one name in several
	// namespaces only that of the last namespace is here.
	// +listType=map
	// +listMapKey=id
	// +optional
	Replicas []CacheIndexReplica `json:"replicas,omitempty"`
	// +listType=map
	// +listMapKey=id
	// +optional
	Tenants []CacheIndexTenant `json:"tenants,omitempty"`
	// +optional
	Prefixes CacheIndexPrefixes `json:"prefixes,omitempty"`
	// Servers that were asked.
	// +optional
	ObservedServer string `json:"observedServer,omitempty"`
	// When anything above changed.
	// +optional
	LastUpdated *metav1.Time `json:"lastUpdated,omitempty"`
	// +listType=map
	// +listMapKey=name
	// +optional
	Servers []CacheIndexServer `json:"servers,omitempty"`
	// Replicas there are, shown or not.
	// +optional
	ReplicasTotal int64 `json:"replicasTotal,omitempty"`
	// Whether replicas were left out.
	// +optional
	Truncated bool `json:"truncated,omitempty"`
}

// CacheIndex shows what the servers know. The controller keeps the only one,
// cluster-default.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=cacheindices,shortName=ci,scope=Cluster
// +kubebuilder:printcolumn:name="Prefixes",type=integer,JSONPath=`.status.prefixes.summary.total`
// +kubebuilder:printcolumn:name="Changed",type=date,JSONPath=`.status.lastUpdated`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'cluster-default'",message="the only CacheIndex is cluster-default"
type CacheIndex struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   CacheIndexSpec   `json:"spec,omitempty"`
	Status CacheIndexStatus `json:"status,omitempty"`
}

// CacheIndexList is a list of CacheIndices.
// +kubebuilder:object:root=true
type CacheIndexList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []CacheIndex `json:"items"`
}
