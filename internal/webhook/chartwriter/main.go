// SPDX-License-Identifier: Apache-2.0

// Command chartwriter writes what registers the webhooks, as files that the
// Helm chart renders. They name the namespace of the release by a placeholder.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/inferencecache/inference-cache/internal/webhook"
)

// namespacePlaceholder is what the chart replaces.
const namespacePlaceholder = "RELEASE_NAMESPACE"

const header = "# SPDX-License-Identifier: Apache-2.0\n"

func main() {
	out := flag.String("out", "", "folder to write to; it is made if it is not there")
	flag.Parse()
	if err := write(*out); err != nil {
		fmt.Fprintln(os.Stderr, "chartwriter:", err)
		os.Exit(1)
	}
}

func write(folder string) error {
	if folder == "" {
		return fmt.Errorf("-out is empty: expected a folder")
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	registered := webhook.Registration(webhook.RegistrationOptions{Namespace: namespacePlaceholder})
	for name, object := range map[string]runtime.Object{
		"mutating": registered.Mutating, "validating": registered.Validating,
		"stamp-policy": registered.StampPolicy, "stamp-binding": registered.StampBinding,
	} {
		text, err := encode(object)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(folder, name+".yaml"), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// encode leaves out what the API server fills in.
func encode(object runtime.Object) ([]byte, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, err
	}
	delete(fields, "status")
	if metadata, ok := fields["metadata"].(map[string]any); ok {
		delete(metadata, "creationTimestamp")
	}
	text, err := yaml.Marshal(fields)
	return append([]byte(header), text...), err
}
