// SPDX-License-Identifier: Apache-2.0

package gatewayfile_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/gateway"
	"github.com/inferencecache/inference-cache/internal/gatewayfile"
	"github.com/inferencecache/inference-cache/internal/trace"
)

const everything = `version: 1
replicas:
  - id: a
    uid: 7f3
    url: http://10.0.0.1:8000
    runtime: sglang
    rank: 1
    models: [m]
    tenant: team
    maxInflight: 4
    protocol: h2c
    role: prefill
    bootstrapPort: 9000
    cordoned: true
    callers: [x, y]
routing:
  policy: approx
  fallback: least_load
  shedTTFT: 8s
  hedgeAfter: p95
  pdMinUncached: 0
limits:
  maxInflight: 100
  queue: 0
  queueTimeout: 2s
trace:
  log: true
  outcome: true
  sample: 10
  header: trusted
  headerReplica: true
  replicaNames: hash
  requestOptin: true
  requestOptinTenants: [x]
`

func TestFile(t *testing.T) {
	f, err := gatewayfile.Parse("gateway.yaml", []byte(everything))
	if err != nil {
		t.Fatal(err)
	}
	rank := 1
	replica := gateway.Replica{
		ID: "a", UID: "7f3", URL: "http://10.0.0.1:8000", Runtime: "sglang", Rank: &rank, Models: []string{"m"}, Tenant: "team",
		Role: "prefill", BootstrapPort: 9000, MaxInflight: 4, Protocol: "h2c", Cordoned: true, CallerTenants: []string{"x", "y"},
	}
	byFlag := gateway.Replica{ID: "flag", URL: "http://10.0.0.2:8000"}
	cases := map[string]struct {
		given []string
		want  gateway.Options
	}{
		"the file alone": {want: gateway.Options{
			Replicas: []gateway.Replica{byFlag, replica}, Policy: "approx", Fallback: "least_load", ShedTTFT: 8 * time.Second,
			HedgePercentile: 95, PDMinUncached: -1, MaxInflight: 100, QueueLimit: -1, Timeouts: gateway.Timeouts{Queue: 2 * time.Second},
			Trace: gateway.Trace{Switches: trace.Switches{
				Log: true, Outcome: true, Sample: 10, Header: trace.HeaderTrusted, HeaderReplica: true,
				ReplicaNames: trace.NamesHash, RequestOptin: true, OptinTenants: []string{"x"},
			}},
		}},
		"flags win over it": {
			given: []string{
				"policy", "fallback", "shed-ttft", "hedge-after", "max-inflight", "pd-min-uncached", "queue-limit", "queue-timeout",
				"cache-trace", "cache-trace-outcome", "cache-trace-sample", "cache-trace-header", "cache-trace-header-replica",
				"cache-trace-replica-names", "cache-trace-request-optin", "cache-trace-request-optin-tenants",
			},
			want: gateway.Options{Replicas: []gateway.Replica{byFlag, replica}, Policy: "random", QueueLimit: 5},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			options := gateway.Options{Replicas: []gateway.Replica{byFlag}, Policy: "random", QueueLimit: 5}
			f.Complete(&options, func(flag string) bool { return slices.Contains(tc.given, flag) })
			if diff := cmp.Diff(tc.want, options); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFaultsHaveAPlace(t *testing.T) {
	cases := map[string]struct{ text, want string }{
		"another version":      {"version: 2\n", "gateway.yaml:1:10: version: 2: expected 1"},
		"an unknown key":       {"replica: []\n", "gateway.yaml:1:1"},
		"a replica without id": {"replicas:\n  - url: http://a:1\n", "gateway.yaml:2"},
		"a replica twice":      {"replicas:\n  - {id: a, url: 'http://a:1'}\n  - {id: a, url: 'http://b:1'}\n", "listed twice"},
		"roles that make no pair": {
			"replicas:\n  - {id: a, url: 'http://a:1', role: prefill}\n  - {id: b, url: 'http://b:1', role: decode, runtime: sglang}\n", "cannot serve",
		},
		"an unknown role":        {"replicas:\n  - {id: a, url: 'http://a:1', role: both}\n", "gateway.yaml:2"},
		"a replica's address":    {"replicas:\n  - id: a\n    url: nowhere\n", "gateway.yaml:2"},
		"an unknown engine":      {"replicas:\n  - {id: a, url: 'http://a:1', runtime: other}\n", "unknown runtime"},
		"an unknown policy":      {"routing:\n  policy: best\n", "gateway.yaml:2:11: routing.policy"},
		"a hedge that is none":   {"routing:\n  hedgeAfter: p10\n", "gateway.yaml:2:15: routing.hedgeAfter"},
		"a negative limit":       {"limits:\n  maxInflight: -1\n", "gateway.yaml:2:16: limits.maxInflight"},
		"a negative queue":       {"limits:\n  queue: -1\n", "gateway.yaml:2:10: limits.queue"},
		"a trace header mode":    {"trace:\n  header: all\n", "gateway.yaml:2"},
		"a negative sample":      {"trace:\n  sample: -1\n", "gateway.yaml:2:11: trace.sample"},
		"a negative rank":        {"replicas:\n  - {id: a, url: 'http://a:1', rank: -1}\n", "rank: expected"},
		"a duration that is not": {"limits:\n  queueTimeout: soon\n", "gateway.yaml:2:17"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if _, err := gatewayfile.Parse("gateway.yaml", []byte(tc.text)); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
}
