// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// PDPool is a set of engine pods with one role.
type PDPool struct {
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// Labels of the pool's engine pods, beside the cache domain.
	// +optional
	MatchLabels map[string]string `json:"matchLabels,omitempty"`
	// Ready pods expected.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// One of acceleratorTypes: only pods on nodes with its labels.
	// +optional
	AcceleratorType string `json:"acceleratorType,omitempty"`
}

// PDAcceleratorType names nodes by their labels.
type PDAcceleratorType struct {
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// +optional
	Vendor string `json:"vendor,omitempty"`
	// +optional
	Model string `json:"model,omitempty"`
	// Labels of the nodes.
	// +optional
	MatchLabels map[string]string `json:"matchLabels,omitempty"`
}

// PDTopologySpec says which pods prefill and which decode.
type PDTopologySpec struct {
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	// +optional
	PrefillPools []PDPool `json:"prefillPools,omitempty"`
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	// +optional
	DecodePools []PDPool `json:"decodePools,omitempty"`
	// +listType=map
	// +listMapKey=name
	// +optional
	AcceleratorTypes []PDAcceleratorType `json:"acceleratorTypes,omitempty"`
	// Model the topology is for; empty: every model.
	// +optional
	Model string `json:"model,omitempty"`
	// How blocks go from prefill to decode.
	// +kubebuilder:validation:Enum=Mooncake;NIXL;Direct
	// +optional
	Transport string `json:"transport,omitempty"`
}

// PDPoolStatus is what one pool resolves to.
type PDPoolStatus struct {
	Name string `json:"name"`
	// Prefill or Decode.
	Role        string `json:"role"`
	MatchedPods int32  `json:"matchedPods"`
	ReadyPods   int32  `json:"readyPods"`
}

// PDTopologyStatus is what the pools resolve to.
type PDTopologyStatus struct {
	// Generation that the conditions are about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +listType=map
	// +listMapKey=role
	// +listMapKey=name
	// +optional
	Pools []PDPoolStatus `json:"pools,omitempty"`
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PDTopology says which engine pods of the namespace prefill and which decode.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=pdtopologies,shortName=pdt
// +kubebuilder:printcolumn:name="Prefill",type=string,JSONPath=`.spec.prefillPools[*].name`
// +kubebuilder:printcolumn:name="Decode",type=string,JSONPath=`.spec.decodePools[*].name`
// +kubebuilder:printcolumn:name="Programmed",type=string,JSONPath=`.status.conditions[?(@.type=="Programmed")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type PDTopology struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec   PDTopologySpec   `json:"spec"`
	Status PDTopologyStatus `json:"status,omitempty"`
}

// PDTopologyList is a list of PDTopologies.
// +kubebuilder:object:root=true
type PDTopologyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PDTopology `json:"items"`
}
