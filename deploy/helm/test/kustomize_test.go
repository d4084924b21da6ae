// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/inferencecache/inference-cache/deploy/helm/test/manifest"
)

const deployDir = "../.."

// byKey indexes objects by kind and name.
func byKey(objects []manifest.Object) map[string]map[string]any {
	all := make(map[string]map[string]any)
	for _, object := range objects {
		all[object.Key()] = object.Object
	}
	return all
}

// anyOrder compares volumes and their mounts whatever their order: they are
// merged by name.
var anyOrder = cmp.FilterPath(func(path cmp.Path) bool {
	key, ok := path.Index(-2).(cmp.MapIndex)
	return ok && slices.Contains([]string{"volumes", "volumeMounts"}, key.Key().String())
}, cmp.Transformer("byName", func(list []any) map[string]any {
	named := make(map[string]any)
	for _, element := range list {
		named[element.(map[string]any)["name"].(string)] = element
	}
	return named
}))

// kustomized builds the base with components.
func kustomized(t *testing.T, components []string) map[string]map[string]any {
	t.Helper()
	return kustomizedWith(t, components, nil)
}

// kustomizedWith builds the base with components and entries of images.
func kustomizedWith(t *testing.T, components []string, images []map[string]string) map[string]map[string]any {
	t.Helper()
	absolute, err := filepath.Abs(filepath.Join(deployDir, "kustomize"))
	if err != nil {
		t.Fatal(err)
	}
	overlay := t.TempDir()
	relative := func(parts ...string) string {
		path, err := filepath.Rel(overlay, filepath.Join(append([]string{absolute}, parts...)...))
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	kustomization := map[string]any{"resources": []string{relative("base")}, "images": images}
	var paths []string
	for _, name := range components {
		paths = append(paths, relative("components", name))
	}
	if len(paths) > 0 {
		kustomization["components"] = paths
	}
	text, err := yaml.Marshal(kustomization)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), overlay)
	if err != nil {
		t.Fatalf("kustomize build with %v: %v", components, err)
	}
	all := make(map[string]map[string]any)
	for _, resource := range built.Resources() {
		encoded, err := resource.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(encoded, &object.Object); err != nil {
			t.Fatal(err)
		}
		all[object.GetKind()+"/"+object.GetName()] = object.Object
	}
	return all
}

// excludeEachOther says whether two of the components set one value.
func excludeEachOther(components []string) bool {
	return slices.Contains(components, "server-tls-off") && slices.Contains(components, "server-tls-cert-manager")
}

// subsets returns every choice of names, that of none included.
func subsets(names []string) [][]string {
	all := [][]string{nil}
	for _, name := range names {
		for _, subset := range all {
			all = append(all, append(slices.Clone(subset), name))
		}
	}
	return all
}

// TestKustomizeIsTheChart builds the base with every choice of components, in
// both orders, and compares it with the chart and the same values.
func TestKustomizeIsTheChart(t *testing.T) {
	chart, components := loadChart(t), manifest.Components()
	for _, chosen := range subsets(slices.Sorted(maps.Keys(components))) {
		if excludeEachOther(chosen) {
			continue
		}
		t.Run(fmt.Sprintf("with %s", strings.Join(chosen, " and ")), func(t *testing.T) {
			var values []string
			for _, name := range chosen {
				values = append(values, components[name])
			}
			merged, err := manifest.Merged(values...)
			if err != nil {
				t.Fatal(err)
			}
			want, err := chart.Plain(t.Context(), merged)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(byKey(want), kustomized(t, chosen), anyOrder); diff != "" {
				t.Errorf("chart against kustomize:\n%s", diff)
			}
			slices.Reverse(chosen)
			if diff := cmp.Diff(byKey(want), kustomized(t, chosen), anyOrder); diff != "" {
				t.Errorf("chart against kustomize in the other order:\n%s", diff)
			}
		})
	}
}

// TestKustomizeSetsEveryImage: the publisher's image too, which is no image of a
// container here.
func TestKustomizeSetsEveryImage(t *testing.T) {
	const values = `
image: {repository: mirror.example/inferencecache, tag: v2}
injection: {image: {repository: "mirror.example:5000/publisher", digest: "sha256:` + digest + `"}}
`
	all := slices.DeleteFunc(slices.Sorted(maps.Keys(manifest.Components())), func(name string) bool { return name == "server-tls-off" })
	for _, components := range [][]string{nil, all} {
		merged := values
		for _, name := range components {
			var err error
			if merged, err = manifest.Merged(merged, manifest.Components()[name]); err != nil {
				t.Fatal(err)
			}
		}
		want, err := loadChart(t).Plain(t.Context(), merged)
		if err != nil {
			t.Fatal(err)
		}
		found := kustomizedWith(t, components, []map[string]string{
			{"name": "ic.test/inferencecache", "newName": "mirror.example/inferencecache", "newTag": "v2"},
			{"name": "ic.test/kvevent-subscriber", "newName": "mirror.example:5000/publisher", "digest": "sha256:" + digest},
		})
		if diff := cmp.Diff(byKey(want), found, anyOrder); diff != "" {
			t.Errorf("with %v, chart against kustomize:\n%s", components, diff)
		}
	}
}

// installFile reads install.yaml.
func installFile(t *testing.T) []manifest.Object {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(deployDir, "install.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var all []manifest.Object
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		object := manifest.Object{Unstructured: &unstructured.Unstructured{}}
		if err := yaml.Unmarshal([]byte(document), &object.Object); err != nil {
			t.Fatal(err)
		}
		all = append(all, object)
	}
	return all
}

func TestInstallFileIsTheChart(t *testing.T) {
	want, err := loadChart(t).Plain(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	found := installFile(t)
	if diff := cmp.Diff(byKey(want), byKey(found)); diff != "" {
		t.Error(diff)
	}
	if first := found[0].Key(); first != "Namespace/"+namespace {
		t.Errorf("%s comes before the namespace", first)
	}
	for _, object := range found {
		if object.GetLabels()["app.kubernetes.io/managed-by"] == "Helm" {
			t.Errorf("%s says that Helm keeps it", object.Key())
		}
	}
}

func TestManifestsRefuse(t *testing.T) {
	for name, tc := range map[string]struct{ values, want string }{
		"values that the schema refuses": {"servers: {}", "servers"},
		"values that are no YAML":        {"a: [", "read values"},
	} {
		t.Run(name, func(t *testing.T) {
			err := manifest.Write(t.Context(), loadChart(t), tc.values, t.TempDir())
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one about %q", err, tc.want)
			}
		})
	}
}
