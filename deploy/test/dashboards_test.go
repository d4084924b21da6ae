// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"go.yaml.in/yaml/v3"
)

const dashboardsDir = "../../deploy/dashboards"

// grafanaDashboard is what the checks read of a dashboard.
type grafanaDashboard struct {
	UID    string `json:"uid"`
	Title  string `json:"title"`
	Panels []struct {
		ID      int    `json:"id"`
		Type    string `json:"type"`
		Title   string `json:"title"`
		Targets []struct {
			Expr   string `json:"expr"`
			Legend string `json:"legendFormat"`
		} `json:"targets"`
	} `json:"panels"`
}

func readDashboards(t *testing.T) map[string]grafanaDashboard {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dashboardsDir, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]grafanaDashboard{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var d grafanaDashboard
		if err := json.Unmarshal(text, &d); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all[strings.TrimSuffix(filepath.Base(path), ".json")] = d
	}
	return all
}

// grafana replaces the variables that only Grafana knows.
var grafana = strings.NewReplacer("$__rate_interval", "5m")

func TestDashboardsUseDocumentedMetrics(t *testing.T) {
	known := documented(t)
	all := readDashboards(t)
	for _, name := range []string{"overview", "routing", "index", "ingest", "control", "gateway"} {
		if _, ok := all[name]; !ok {
			t.Errorf("there is no dashboard %s", name)
		}
	}
	for name, d := range all {
		queries := 0
		for _, panel := range d.Panels {
			for _, target := range panel.Targets {
				queries++
				where := name + ": " + panel.Title
				checkNames(t, where, grafana.Replace(target.Expr), known)
				if !strings.Contains(target.Expr, `namespace=~"$namespace"`) {
					t.Errorf("%s does not select by namespace", where)
				}
			}
			if panel.Type != "row" && len(panel.Targets) == 0 {
				t.Errorf("%s: the panel %s shows nothing", name, panel.Title)
			}
		}
		if queries == 0 || d.UID == "" || d.Title == "" {
			t.Errorf("%s is not a dashboard", name)
		}
	}
}

// The Kubernetes resources hold the same groups as the rule files.
func TestKubernetesRulesAreTheSame(t *testing.T) {
	for file, want := range ruleFiles(t) {
		text, err := os.ReadFile(filepath.Join(rulesDir, "kubernetes", file))
		if err != nil {
			t.Fatal(err)
		}
		var resource struct {
			APIVersion string `yaml:"apiVersion"`
			Kind       string
			Metadata   struct{ Name, Namespace string }
			Spec       yaml.Node
		}
		if err := yaml.Unmarshal(text, &resource); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if resource.Kind != "PrometheusRule" || resource.APIVersion != "monitoring.coreos.com/v1" ||
			resource.Metadata.Name == "" || resource.Metadata.Namespace != "inference-cache-system" {
			t.Errorf("%s is no PrometheusRule of ours: %+v", file, resource)
		}
		spec, err := yaml.Marshal(&resource.Spec)
		if err != nil {
			t.Fatal(err)
		}
		got, errs := rulefmt.Parse(spec, false, model.UTF8Validation, promQL(), slog.New(slog.DiscardHandler))
		if len(errs) > 0 {
			t.Fatalf("%s: %v", file, errs)
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("%s differs from its source; run 'make monitoring' (-want +got):\n%s", file, diff)
		}
	}
}
