// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package chart

import (
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/deploy/helm/test/manifest"
	"github.com/inferencecache/inference-cache/internal/kubetest"
)

// foreignKinds are those of other projects that the chart renders.
var foreignKinds = map[string][]string{
	"cert-manager.io/v1":       {"Certificate", "Issuer"},
	"monitoring.coreos.com/v1": {"PodMonitor", "PrometheusRule", "ServiceMonitor"},
}

// withForeignKinds makes the API server take those kinds, whatever is in them.
func withForeignKinds(t *testing.T, cluster *kubetest.Cluster) {
	t.Helper()
	keep := true
	for groupVersion, kinds := range foreignKinds {
		group, version, _ := strings.Cut(groupVersion, "/")
		for _, kind := range kinds {
			plural := strings.ToLower(kind) + "s"
			definition := &apiextensionsv1.CustomResourceDefinition{
				TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
				ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group},
				Spec: apiextensionsv1.CustomResourceDefinitionSpec{
					Group: group, Scope: apiextensionsv1.NamespaceScoped,
					Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Singular: strings.ToLower(kind), Kind: kind, ListKind: kind + "List"},
					Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
						Name: version, Served: true, Storage: true,
						Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
							Type: "object", XPreserveUnknownFields: &keep,
						}},
					}},
				},
			}
			fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(definition)
			if err != nil {
				t.Fatal(err)
			}
			delete(fields, "status")
			object := manifest.Object{Unstructured: unstructuredOf(fields)}
			if err := cluster.Client.Create(t.Context(), object.Unstructured); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// dryRun has the API server judge objects as if they were applied, strictly:
// fields that it does not know are refused.
func dryRun(t *testing.T, cluster *kubetest.Cluster, objects []manifest.Object) {
	t.Helper()
	for _, object := range objects {
		kubetest.Eventually(t, object.Key()+" judged", func() error {
			err := cluster.Client.Patch(t.Context(), object.DeepCopy(), client.Apply,
				client.FieldOwner("test"), client.ForceOwnership, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict))
			if err != nil && foreignKinds[object.GetAPIVersion()] == nil {
				t.Errorf("%s: %v", object.Key(), err)
				return nil
			}
			return err // the definition of a foreign kind may not be served yet
		})
	}
	for _, warning := range cluster.Warnings() {
		t.Errorf("the API server warns: %s", warning)
	}
}

// TestEnvtestEveryVariantApplies has a real API server judge what the chart
// renders with each of the variants, in a namespace that takes restricted pods.
func TestEnvtestEveryVariantApplies(t *testing.T) {
	cluster := kubetest.StartEmpty(t)
	cluster.Namespace(t, namespace, map[string]string{
		"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted",
	})
	withForeignKinds(t, cluster)
	chart := loadChart(t)
	for name, values := range variants {
		t.Run(name, func(t *testing.T) {
			objects, err := chart.Objects(t.Context(), values, "")
			if err != nil {
				t.Fatal(err)
			}
			dryRun(t, cluster, objects)
		})
	}
	for _, components := range [][]string{{"cert-manager", "observability", "adapters", "server-tls-off"}, {"cert-manager", "server-tls-cert-manager"}} {
		t.Run("kustomize with "+strings.Join(components, ", "), func(t *testing.T) {
			var objects []manifest.Object
			for _, object := range kustomized(t, components) {
				objects = append(objects, manifest.Object{Unstructured: unstructuredOf(object)})
			}
			dryRun(t, cluster, objects)
		})
	}
}

// TestEnvtestInstallFileApplies applies install.yaml to an empty cluster, and
// again, which changes nothing.
func TestEnvtestInstallFileApplies(t *testing.T) {
	cluster := kubetest.StartEmpty(t)
	versions := func() map[string]string {
		all := make(map[string]string)
		for _, object := range installFile(t) {
			applied := object.DeepCopy()
			err := cluster.Client.Patch(t.Context(), applied, client.Apply, client.FieldOwner("kubectl"), client.FieldValidation(metav1.FieldValidationStrict))
			if err != nil {
				t.Fatalf("%s: %v", object.Key(), err)
			}
			if object.GetKind() != "CustomResourceDefinition" { // their status moves on
				all[object.Key()] = applied.GetResourceVersion()
			}
		}
		return all
	}
	first := versions()
	cluster.AwaitResources(t)
	for key, version := range versions() {
		if version != first[key] {
			t.Errorf("%s changes when it is applied again", key)
		}
	}
}
