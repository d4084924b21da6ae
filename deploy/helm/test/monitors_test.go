// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

// monitor is what PodMonitor and ServiceMonitor say about scrapes.
type monitor struct {
	Spec struct {
		NamespaceSelector   struct{ Any bool }
		Selector            metav1.LabelSelector
		PodMetricsEndpoints []scrape
		Endpoints           []scrape
	}
}

type scrape struct {
	Port, Path, Interval, ScrapeTimeout, Scheme string
	Authorization                               *struct{ Credentials corev1.SecretKeySelector }
	TLSConfig                                   *struct{ ServerName string }
}

func monitors(t *testing.T, found objects) map[string]monitor {
	t.Helper()
	all := map[string]monitor{}
	for key, object := range found {
		if !strings.Contains(key, "Monitor/") {
			continue
		}
		raw, err := object.(*unstructured.Unstructured).MarshalJSON()
		var m monitor
		if err == nil {
			err = json.Unmarshal(raw, &m)
		}
		if err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		all[key] = m
	}
	return all
}

func (m monitor) only(t *testing.T) scrape {
	t.Helper()
	all := slices.Concat(m.Spec.PodMetricsEndpoints, m.Spec.Endpoints)
	if len(all) != 1 {
		t.Fatalf("%d scrapes", len(all))
	}
	return all[0]
}

// TestMonitors: everything that has metrics is scraped, at its port, as often as
// rules expect, and by whom it lets in.
func TestMonitors(t *testing.T) {
	found := render(t, everything)
	all := monitors(t, found)
	ports := map[string]string{}
	for key, m := range all {
		s := m.only(t)
		ports[key] = s.Port
		if s.Path != "/metrics" || s.Interval != "30s" || s.ScrapeTimeout != "10s" {
			t.Errorf("%s scrapes %+v", key, s)
		}
		if engines := s.Port == "ic-metrics" || s.Port == "lmcache-http"; m.Spec.NamespaceSelector.Any != engines {
			t.Errorf("%s in all namespaces: %t", key, m.Spec.NamespaceSelector.Any)
		} else if !engines && !hasPort(onlyPod(t, found, key, selector(t, &m.Spec.Selector)), s.Port) {
			t.Errorf("%s: no container port %s", key, s.Port)
		}
	}
	want := map[string]string{
		"ServiceMonitor/inference-cache-server": "http", "PodMonitor/inference-cache-controller-manager": "metrics",
		"PodMonitor/inference-cache-gateway": "admin", "PodMonitor/inference-cache-publisher": "ic-metrics", "PodMonitor/inference-cache-lmcache": "lmcache-http",
	}
	if diff := cmp.Diff(want, ports); diff != "" {
		t.Error(diff)
	}
	for key, pod := range map[string]labels.Set{
		"PodMonitor/inference-cache-publisher": {v1alpha1.LabelCacheDomain: "any"},
		"PodMonitor/inference-cache-lmcache":   {v1alpha1.LabelLMCacheMetrics: "true"},
	} {
		m := all[key]
		if s := selector(t, &m.Spec.Selector); !s.Matches(pod) || s.Matches(labels.Set{"app": "x"}) {
			t.Errorf("%s selects %s", key, s)
		}
	}
	if _, there := monitors(t, render(t, "monitoring: {podMonitors: true}"))["PodMonitor/inference-cache-gateway"]; there {
		t.Error("a gateway that is not there is scraped")
	}
}

// TestMonitorsShowWhoTheyAre where metrics are not for everybody.
func TestMonitorsShowWhoTheyAre(t *testing.T) {
	got := map[string]string{}
	for key, m := range monitors(t, render(t, everything)) {
		if s := m.only(t); s.Authorization != nil {
			got[key] = s.Authorization.Credentials.Name + " " + s.Authorization.Credentials.Key + " " + s.Scheme
			if (s.Scheme == "https") != (s.TLSConfig != nil) {
				t.Errorf("%s: %s with %v", key, s.Scheme, s.TLSConfig)
			}
		}
	}
	want := map[string]string{"PodMonitor/inference-cache-gateway": "gateway-admin token ", "PodMonitor/inference-cache-controller-manager": "scraper token https"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for key, m := range monitors(t, render(t, "monitoring: {podMonitors: true}")) {
		if s := m.only(t); s.Authorization != nil || s.Scheme != "" {
			t.Errorf("%s: %+v", key, s)
		}
	}
}
