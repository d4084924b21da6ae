// SPDX-License-Identifier: Apache-2.0

// Command monitoring writes what is generated under deploy: the dashboards, and
// the alert rules as Kubernetes resources.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	root := flag.String("root", ".", "directory of the repository")
	out := flag.String("out", "", "directory to write to (default: deploy of the repository)")
	flag.Parse()
	if *out == "" {
		*out = filepath.Join(*root, "deploy")
	}
	if err := run(*root, *out); err != nil {
		fmt.Fprintln(os.Stderr, "monitoring:", err)
		os.Exit(1)
	}
}

func run(root, out string) error {
	files := map[string][]byte{}
	for _, d := range dashboards() {
		text, err := json.MarshalIndent(d.render(), "", "  ")
		if err != nil {
			return fmt.Errorf("dashboard %s: %w", d.name, err)
		}
		files[filepath.Join("dashboards", d.name+".json")] = append(text, '\n')
	}
	rules, err := filepath.Glob(filepath.Join(root, "deploy", "alerts", "*.yaml"))
	if err != nil {
		return err
	}
	for _, path := range rules {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name := filepath.Base(path)
		if files[filepath.Join("alerts", "kubernetes", name)], err = resource(name, text); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	for name, text := range files {
		path := filepath.Join(out, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

const resourceHead = `# SPDX-License-Identifier: Apache-2.0
#
# Generated from ../%[1]s.yaml by 'make monitoring'.

apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: %[2]s
  namespace: inference-cache-system
  labels:
    app.kubernetes.io/name: inference-cache
    prometheus: k8s
    role: alert-rules
spec:
`

// resource puts the groups of a rule file into a PrometheusRule.
func resource(file string, rules []byte) ([]byte, error) {
	_, groups, found := bytes.Cut(rules, []byte("\ngroups:\n"))
	if !found {
		return nil, fmt.Errorf("no line %q", "groups:")
	}
	base := strings.TrimSuffix(file, ".yaml")
	name := base
	if !strings.HasPrefix(name, "inference-cache") {
		name = "inference-cache-" + name
	}
	text := fmt.Sprintf(resourceHead, base, name) + "  groups:\n"
	for line := range bytes.Lines(groups) {
		if len(bytes.TrimSpace(line)) > 0 {
			text += "  "
		}
		text += string(line)
	}
	return []byte(text), nil
}
