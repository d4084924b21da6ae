// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
)

// operation is one of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

const containersPath = "/spec/template/spec/containers"

// argumentChanges returns the operations that turn the containers' arguments of
// one object into those of another, and takes the change out of the other. Each
// is preceded by a test, so that a base that moved on is noticed.
func argumentChanges(from, to *unstructured.Unstructured) ([]operation, error) {
	before, _, err := unstructured.NestedSlice(from.Object, "spec", "template", "spec", "containers")
	if err != nil {
		return nil, err
	}
	after, _, err := unstructured.NestedSlice(to.Object, "spec", "template", "spec", "containers")
	if err != nil {
		return nil, err
	}
	if len(before) != len(after) {
		return nil, fmt.Errorf("%s %s: %d containers instead of %d: expected the same", to.GetKind(), to.GetName(), len(after), len(before))
	}
	var operations []operation
	for i := range before {
		old, _, oldErr := unstructured.NestedStringSlice(before[i].(map[string]any), "args")
		fresh, _, freshErr := unstructured.NestedStringSlice(after[i].(map[string]any), "args")
		if oldErr != nil || freshErr != nil || len(old) != len(fresh) {
			return nil, fmt.Errorf("%s %s: container %d has %d arguments instead of %d: expected values to change, not their number",
				to.GetKind(), to.GetName(), i, len(fresh), len(old))
		}
		for j := range old {
			if old[j] == fresh[j] {
				continue
			}
			place := fmt.Sprintf("%s/%d/args/%d", containersPath, i, j)
			operations = append(operations, operation{"test", place, old[j]}, operation{"replace", place, fresh[j]})
		}
		if len(old) > 0 {
			if err := unstructured.SetNestedStringSlice(after[i].(map[string]any), old, "args"); err != nil {
				return nil, err
			}
		}
	}
	if len(after) == 0 {
		return nil, nil
	}
	return operations, unstructured.SetNestedSlice(to.Object, after, "spec", "template", "spec", "containers")
}

// mergeChanges returns the strategic merge patch between two objects, nil for
// none.
func mergeChanges(from, to *unstructured.Unstructured) (map[string]any, error) {
	if reflect.DeepEqual(from.Object, to.Object) {
		return nil, nil
	}
	before, err := json.Marshal(from.Object)
	if err != nil {
		return nil, err
	}
	after, err := json.Marshal(to.Object)
	if err != nil {
		return nil, err
	}
	typed, err := clientgoscheme.Scheme.New(to.GroupVersionKind())
	if err != nil {
		return nil, fmt.Errorf("a component may not change a %s: %w", to.GetKind(), err)
	}
	text, err := strategicpatch.CreateTwoWayMergePatch(before, after, typed)
	if err != nil {
		return nil, fmt.Errorf("compare %s %s: %w", to.GetKind(), to.GetName(), err)
	}
	patch := map[string]any{}
	if err := json.Unmarshal(text, &patch); err != nil {
		return nil, err
	}
	dropDirectives(patch)
	return identified(patch, to), nil
}

// identified says which object a patch is for.
func identified(patch map[string]any, object *unstructured.Unstructured) map[string]any {
	patch["apiVersion"], patch["kind"] = object.GetAPIVersion(), object.GetKind()
	metadata, ok := patch["metadata"].(map[string]any)
	if !ok {
		metadata = map[string]any{}
		patch["metadata"] = metadata
	}
	metadata["name"] = object.GetName()
	if namespace := object.GetNamespace(); namespace != "" {
		metadata["namespace"] = namespace
	}
	return patch
}

// dropDirectives removes what kustomize does not know: the order of lists, and
// which fields of a union to keep.
func dropDirectives(value any) {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			if strings.HasPrefix(key, "$setElementOrder/") || key == "$retainKeys" {
				delete(v, key)
				continue
			}
			dropDirectives(inner)
		}
	case []any:
		for _, inner := range v {
			dropDirectives(inner)
		}
	}
}
