// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

const header = `# SPDX-License-Identifier: Apache-2.0
# Generated from the Helm chart by 'make manifests'.
`

// Components are the values of each kustomize component by name.
func Components() map[string]string {
	return map[string]string{
		"server-tls-off":          `tls: {mode: "off"}`,
		"server-tls-cert-manager": "tls: {mode: cert-manager}",
		"cert-manager":            "webhook: {certMode: cert-manager}",
		"observability":           "monitoring: {rules: true, podMonitors: true}",
		"adapters":                "adapters: {enabled: true}",
	}
}

// Write writes install.yaml and the folder kustomize. Values are those of the
// chart that all forms start from; empty are the defaults.
func Write(ctx context.Context, chart *Chart, values, folder string) error {
	base, err := chart.Plain(ctx, values)
	if err != nil {
		return err
	}
	var all []any
	for _, object := range base {
		all = append(all, object.Object)
	}
	if err := writeDocuments(filepath.Join(folder, "install.yaml"), all); err != nil {
		return err
	}
	if err := writeBase(filepath.Join(folder, "kustomize", "base"), base); err != nil {
		return err
	}
	for name, added := range Components() {
		with, err := Merged(values, added)
		if err != nil {
			return err
		}
		changed, err := chart.Plain(ctx, with)
		if err != nil {
			return fmt.Errorf("component %s: %w", name, err)
		}
		if err := writeComponent(filepath.Join(folder, "kustomize", "components", name), base, changed); err != nil {
			return fmt.Errorf("component %s: %w", name, err)
		}
	}
	return nil
}

// Merged returns values with others laid over them. Both are YAML.
func Merged(values ...string) (string, error) {
	merged := map[string]any{}
	for _, text := range values {
		var one map[string]any
		if err := yaml.Unmarshal([]byte(text), &one); err != nil {
			return "", fmt.Errorf("read values: %w", err)
		}
		overlay(merged, one)
	}
	text, err := yaml.Marshal(merged)
	return string(text), err
}

func overlay(under, over map[string]any) {
	for key, value := range over {
		inner, ok := value.(map[string]any)
		existing, both := under[key].(map[string]any)
		if ok && both {
			overlay(existing, inner)
			continue
		}
		under[key] = value
	}
}

// writeBase writes a file for each template.
func writeBase(folder string, objects []Object) error {
	files := map[string][]any{}
	var names []string
	for _, object := range objects {
		if files[object.File] == nil {
			names = append(names, object.File)
		}
		files[object.File] = append(files[object.File], object.Object)
	}
	for name, documents := range files {
		if err := writeDocuments(filepath.Join(folder, name), documents); err != nil {
			return err
		}
	}
	if err := writeDocuments(filepath.Join(folder, imageFieldsFile), []any{imageFields}); err != nil {
		return err
	}
	slices.Sort(names)
	return writeDocuments(filepath.Join(folder, "kustomization.yaml"), []any{map[string]any{
		"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": names,
		"configurations": []string{imageFieldsFile},
	}})
}

const imageFieldsFile = "image-fields.yaml"

// imageFields has kustomize look for images also where the controller finds
// that of publishers.
var imageFields = map[string]any{"images": []map[string]string{
	{"kind": "Deployment", "path": "spec/template/spec/containers/env/value"},
}}

// patchEntry is a patch of a kustomization.
type patchEntry struct {
	Path   string            `json:"path"`
	Target map[string]string `json:"target,omitempty"`
}

// component collects the difference between two renderings.
type component struct {
	added   []any
	patches []patchEntry
	files   map[string]any
}

func writeComponent(folder string, base, changed []Object) error {
	c := component{files: map[string]any{}}
	before := map[string]Object{}
	for _, object := range base {
		before[object.Key()] = object
	}
	for _, object := range changed {
		old, known := before[object.Key()]
		delete(before, object.Key())
		if !known {
			c.added = append(c.added, object.Object)
			continue
		}
		if err := c.change(old.Unstructured, object.DeepCopy()); err != nil {
			return err
		}
	}
	for _, object := range base {
		if _, gone := before[object.Key()]; gone {
			c.patch(object.Unstructured, "delete", identified(map[string]any{"$patch": "delete"}, object.Unstructured), false)
		}
	}
	return c.write(folder)
}

func (c *component) change(from, to *unstructured.Unstructured) error {
	operations, err := argumentChanges(from, to)
	if err != nil {
		return err
	}
	if len(operations) > 0 {
		c.patch(to, "args", operations, true)
	}
	merge, err := mergeChanges(from, to)
	if err != nil || merge == nil {
		return err
	}
	c.patch(to, "merge", merge, false)
	return nil
}

// patch adds a patch in a file of its own. JSON patches need a target.
func (c *component) patch(object *unstructured.Unstructured, what string, content any, target bool) {
	name := strings.ToLower(object.GetKind()) + "-" + object.GetName() + "-" + what + ".yaml"
	entry := patchEntry{Path: name}
	if target {
		entry.Target = map[string]string{"kind": object.GetKind(), "name": object.GetName()}
	}
	c.files[name] = content
	c.patches = append(c.patches, entry)
}

func (c *component) write(folder string) error {
	kustomization := map[string]any{"apiVersion": "kustomize.config.k8s.io/v1alpha1", "kind": "Component"}
	if len(c.added) > 0 {
		kustomization["resources"] = []string{"added.yaml"}
		if err := writeDocuments(filepath.Join(folder, "added.yaml"), c.added); err != nil {
			return err
		}
	}
	if len(c.patches) > 0 {
		kustomization["patches"] = c.patches
	}
	for name, content := range c.files {
		if err := writeDocuments(filepath.Join(folder, name), []any{content}); err != nil {
			return err
		}
	}
	return writeDocuments(filepath.Join(folder, "kustomization.yaml"), []any{kustomization})
}

func writeDocuments(file string, documents []any) error {
	var text bytes.Buffer
	text.WriteString(header)
	for i, document := range documents {
		encoded, err := yaml.Marshal(document)
		if err != nil {
			return err
		}
		if i > 0 {
			text.WriteString("---\n")
		}
		text.Write(encoded)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, text.Bytes(), 0o644)
}
