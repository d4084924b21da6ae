// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestMetricsReferenceIsComplete holds docs/metrics.md to the metrics of this
// package.
func TestMetricsReferenceIsComplete(t *testing.T) {
	h := start(t)
	for path, p := range paths {
		h.call(p.method, path, p.body)
	}
	families, err := h.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	reference, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		var labels []string
		for _, label := range family.GetMetric()[0].GetLabel() {
			labels = append(labels, "`"+label.GetName()+"`")
		}
		slices.Sort(labels)
		want := fmt.Sprintf("| `%s` | %s | %s | %s |\n", family.GetName(), strings.ToLower(family.GetType().String()),
			strings.Join(labels, ", "), family.GetHelp())
		if !strings.Contains(string(reference), want) {
			t.Errorf("docs/metrics.md lacks %s", want)
		}
	}
}
