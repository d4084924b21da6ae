// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// SlotType says whether a slot's text is the same in most requests.
// +kubebuilder:validation:Enum=Stable;Mutable
type SlotType string

// Slot types.
const (
	SlotStable  SlotType = "Stable"
	SlotMutable SlotType = "Mutable"
)

// PromptTemplateSlot is a place in the body that a request fills.
type PromptTemplateSlot struct {
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// Stable slots belong before Mutable ones: text after a change is
	// computed again.
	// +optional
	Type SlotType `json:"type,omitempty"`
	// Rendering fails without a value.
	// +optional
	Required *bool `json:"required,omitempty"`
	// +optional
	Description string `json:"description,omitempty"`
}

// PromptTemplateSpec is a prompt with slots.
type PromptTemplateSpec struct {
	// Text with placeholders {{name}}; at most 256 KiB.
	// +kubebuilder:validation:MinLength=1
	// +required
	Body string `json:"body"`
	// +listType=map
	// +listMapKey=name
	// +optional
	Slots []PromptTemplateSlot `json:"slots,omitempty"`
}

// PromptTemplateStatus says whether the template can be rendered.
type PromptTemplateStatus struct {
	// Generation that the conditions are about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Revision that a rendering names.
	// +optional
	TemplateRevision string `json:"templateRevision,omitempty"`
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PromptTemplate is a prompt with slots, rendered by the servers.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=prompttemplates,shortName=pt
// +kubebuilder:printcolumn:name="Revision",type=string,JSONPath=`.status.templateRevision`
// +kubebuilder:printcolumn:name="Programmed",type=string,JSONPath=`.status.conditions[?(@.type=="Programmed")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type PromptTemplate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec   PromptTemplateSpec   `json:"spec"`
	Status PromptTemplateStatus `json:"status,omitempty"`
}

// PromptTemplateList is a list of PromptTemplates.
// +kubebuilder:object:root=true
type PromptTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PromptTemplate `json:"items"`
}
