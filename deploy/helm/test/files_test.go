// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// generated reads the YAML files of a folder by the name of their object.
func generated[T any](t *testing.T, folder string, name func(*T) string) map[string]*T {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, %v", folder, len(files), err)
	}
	all := make(map[string]*T)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		object := new(T)
		if err := yaml.Unmarshal(text, object); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all[name(object)] = object
	}
	return all
}

func TestDefinitionsAreTheGeneratedOnes(t *testing.T) {
	found := render(t, "")
	for name, want := range generated(t, "../../crds", func(c *apiextensionsv1.CustomResourceDefinition) string { return c.Name }) {
		crd := get[*apiextensionsv1.CustomResourceDefinition](t, found, "CustomResourceDefinition/"+name)
		if crd.Annotations["helm.sh/resource-policy"] != "keep" {
			t.Errorf("%s goes with the release", name)
		}
		if diff := cmp.Diff(want.Spec, crd.Spec); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	for key := range render(t, "crds: {install: false}") {
		if strings.HasPrefix(key, "CustomResourceDefinition/") {
			t.Errorf("crds.install is false, and there is %s", key)
		}
	}
}

func TestRulesAreTheGeneratedOnes(t *testing.T) {
	found := render(t, everything)
	for name, want := range generated(t, "../../alerts/kubernetes", (*unstructured.Unstructured).GetName) {
		rule := get[*unstructured.Unstructured](t, found, "PrometheusRule/"+name)
		if diff := cmp.Diff(want.Object["spec"], rule.Object["spec"]); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if rule.GetLabels()["prometheus"] != "main" || rule.GetNamespace() != namespace {
			t.Errorf("%s: namespace %s, labels %v", name, rule.GetNamespace(), rule.GetLabels())
		}
	}
	for key := range render(t, "") {
		if strings.HasPrefix(key, "PrometheusRule/") || strings.Contains(key, "Monitor/") {
			t.Errorf("by default there is %s", key)
		}
	}
}
