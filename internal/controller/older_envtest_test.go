// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package controller_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/kubetest"
)

// withoutRules has the definition of backends check no storage while f runs.
func (f *fleet) withoutRules(run func()) {
	f.t.Helper()
	definition := &unstructured.Unstructured{}
	definition.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	if err := f.cluster.Client.Get(f.t.Context(), client.ObjectKey{Name: "cachebackends.inferencecache.io"}, definition); err != nil {
		f.t.Fatal(err)
	}
	strict := definition.DeepCopy()
	versions, _, err := unstructured.NestedSlice(definition.Object, "spec", "versions")
	if err != nil {
		f.t.Fatal(err)
	}
	for _, version := range versions {
		unstructured.RemoveNestedField(version.(map[string]any), "schema", "openAPIV3Schema", "properties", "spec", "properties", "remoteStorage", "x-kubernetes-validations")
	}
	if err := unstructured.SetNestedSlice(definition.Object, versions, "spec", "versions"); err != nil {
		f.t.Fatal(err)
	}
	if err := f.cluster.Client.Update(f.t.Context(), definition); err != nil {
		f.t.Fatal(err)
	}
	f.awaitRules(false)
	run()
	strict.SetResourceVersion(definition.GetResourceVersion())
	if err := f.cluster.Client.Update(f.t.Context(), strict); err != nil {
		f.t.Fatal(err)
	}
	f.awaitRules(true)
}

// awaitRules waits until a storage without an endpoint is refused, or is not.
func (f *fleet) awaitRules(refused bool) {
	f.t.Helper()
	eventually(f.t, "the definition is in force", func() bool {
		b := someBackend(offload, externalRedis(""))
		b.ObjectMeta = metav1.ObjectMeta{Namespace: "team-a", Name: "tried"}
		complete(b)
		err := f.cluster.Client.Create(f.t.Context(), b, client.DryRunAll)
		if err != nil && !apierrors.IsInvalid(err) {
			f.t.Fatal(err)
		}
		return refused == (err != nil)
	})
}

// A backend may have been declared before the definition had a rule. Its
// status is written all the same, and says what is missing.
func TestEnvtestBackendOlderThanTheRules(t *testing.T) {
	f := &fleet{t: t, cluster: kubetest.Start(t, "../../deploy/crds")}
	f.cluster.Namespace(t, "team-a", nil)
	f.withoutRules(func() {
		offloadCase{
			edits: []func(*v1alpha1.CacheBackend){offload, withoutEvents, externalRedis(""), failClosed},
			pod:   func(p *corev1.Pod) *corev1.Pod { return served(p, true) },
		}.create(t, f, "cb")
	})
	startController(t, f.cluster, startServer(t, "1"), false, offloads(t))
	for _, want := range []string{"RemoteStorageReady=False/RemoteStorageUnavailable", "Ready=False/ExternalEndpointMissing", "Progressing=False/ExternalEndpointMissing"} {
		f.says(t, "cb", want)
	}
}
