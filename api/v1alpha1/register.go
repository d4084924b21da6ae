// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the API group of all resources.
const Group = "inferencecache.io"

// GroupVersion is the group and version of this package.
var GroupVersion = schema.GroupVersion{Group: Group, Version: "v1alpha1"}

// SchemeBuilder registers the resources.
var SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

// AddToScheme adds the resources to a scheme.
var AddToScheme = SchemeBuilder.AddToScheme

// Resource returns the qualified name of a resource of the group.
func Resource(name string) schema.GroupResource {
	return GroupVersion.WithResource(name).GroupResource()
}

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&CacheBackend{}, &CacheBackendList{},
		&CacheIndex{}, &CacheIndexList{},
		&CachePolicy{}, &CachePolicyList{},
		&CacheTenant{}, &CacheTenantList{},
		&PDTopology{}, &PDTopologyList{},
		&PromptTemplate{}, &PromptTemplateList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
