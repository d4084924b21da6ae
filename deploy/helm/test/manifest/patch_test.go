// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		t.Fatal(err)
	}
	return o
}

const deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d, namespace: ns}\nspec: {template: {spec: {containers: "

// TestChangesThatNoComponentMayMake: they would not go together with those of
// other components.
func TestChangesThatNoComponentMayMake(t *testing.T) {
	for name, tc := range map[string]struct{ from, to, want string }{
		"an argument more": {
			deployment + "[{name: a, args: [x]}]}}}", deployment + "[{name: a, args: [x, y]}]}}}", "expected values to change",
		},
		"a container more": {
			deployment + "[{name: a}]}}}", deployment + "[{name: a}, {name: b}]}}}", "2 containers instead of 1",
		},
		"a field of an unknown kind": {
			"apiVersion: example.com/v1\nkind: Other\nmetadata: {name: o}\nspec: {a: 1}",
			"apiVersion: example.com/v1\nkind: Other\nmetadata: {name: o}\nspec: {a: 2}", "may not change a Other",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := component{files: map[string]any{}}
			err := c.change(object(t, tc.from), object(t, tc.to))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one about %q", err, tc.want)
			}
		})
	}
}

func TestChangesAreSmall(t *testing.T) {
	from := object(t, deployment+"[{name: a, args: [x, --y=1], volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, emptyDir: {}}]}}}")
	to := object(t, deployment+"[{name: a, args: [x, --y=2]}]}}}")
	c := component{files: map[string]any{}}
	if err := c.change(from, to); err != nil {
		t.Fatal(err)
	}
	const place = "/spec/template/spec/containers/0/args/1"
	wantArgs := []operation{{"test", place, "--y=1"}, {"replace", place, "--y=2"}}
	if diff := cmp.Diff(wantArgs, c.files["deployment-d-args.yaml"]); diff != "" {
		t.Errorf("arguments: %s", diff)
	}
	wantMerge := object(t, `
apiVersion: apps/v1
kind: Deployment
metadata: {name: d, namespace: ns}
spec: {template: {spec: {containers: [{name: a, volumeMounts: null}], volumes: null}}}`).Object
	if diff := cmp.Diff(wantMerge, c.files["deployment-d-merge.yaml"]); diff != "" {
		t.Errorf("the rest: %s", diff)
	}
}

func TestMergedValues(t *testing.T) {
	got, err := Merged("a: {b: 1, c: [1, 2]}\nd: x", "a: {c: [3]}", "d: {e: 1}")
	if err != nil {
		t.Fatal(err)
	}
	if want := "a:\n  b: 1\n  c:\n  - 3\nd:\n  e: 1\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
