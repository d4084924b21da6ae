// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// CacheTenantSpec bounds what one tenant keeps in the index.
type CacheTenantSpec struct {
	// The tenant id that engines report under; on injected pods the
	// namespace.
	// +kubebuilder:validation:MinLength=1
	// +required
	TenantID string `json:"tenantID"`
	// +optional
	Quota CacheTenantQuota `json:"quota,omitempty"`
	// How the tenant shares the index. Fairness: over its quota it loses its
	// own oldest entries.
	// +kubebuilder:validation:Enum=Fairness
	// +kubebuilder:default=Fairness
	// +optional
	IsolationMode string `json:"isolationMode,omitempty"`
	// Reserved; must be empty.
	// +kubebuilder:validation:MaxProperties=0
	// +optional
	Crypto map[string]string `json:"crypto,omitempty"`
}

// CacheTenantQuota bounds the index entries of a tenant.
type CacheTenantQuota struct {
	// Distinct prefixes the tenant may keep; 0 admits nothing. Unset: no
	// bound.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MaxIndexEntries *int64 `json:"maxIndexEntries,omitempty"`
}

// CacheTenantStatus shows what the tenant keeps.
type CacheTenantStatus struct {
	// Generation that the conditions are about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Distinct prefixes the tenant keeps. Unset until a server was asked.
	// +optional
	IndexEntries *int64 `json:"indexEntries,omitempty"`
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// CacheTenant bounds what one tenant keeps in the index.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=cachetenants,shortName=ct
// +kubebuilder:printcolumn:name="Tenant",type=string,JSONPath=`.spec.tenantID`
// +kubebuilder:printcolumn:name="Entries",type=integer,JSONPath=`.status.indexEntries`
// +kubebuilder:printcolumn:name="Quota",type=integer,JSONPath=`.spec.quota.maxIndexEntries`
// +kubebuilder:printcolumn:name="Isolation",type=string,JSONPath=`.spec.isolationMode`
// +kubebuilder:printcolumn:name="Programmed",type=string,JSONPath=`.status.conditions[?(@.type=="Programmed")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CacheTenant struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec   CacheTenantSpec   `json:"spec"`
	Status CacheTenantStatus `json:"status,omitempty"`
}

// CacheTenantList is a list of CacheTenants.
// +kubebuilder:object:root=true
type CacheTenantList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []CacheTenant `json:"items"`
}
