// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/inferencecache/inference-cache/internal/control"
	"github.com/inferencecache/inference-cache/internal/gate"
	"github.com/inferencecache/inference-cache/internal/probe"
)

const aProbe = `{"backend":"team-a/cb","model":"m","hashScheme":"vllm"}`

// paths lists every endpoint with the method it is for.
var paths = map[string]struct{ method, allow, body, counter, endpoint string }{
	"/snapshot":          {"GET", "GET", "", "snapshot", "snapshot"},
	"/status":            {"GET", "GET", "", "snapshot", "status"},
	"/policy":            {"POST", "POST, PUT", `{"version":7}`, "policy", "policy"},
	"/policy/extensions": {"POST", "POST, PUT", `{"version":1}`, "policy", "extensions"},
	"/probe":             {"POST", "POST", aProbe, "probe", "probe"},
}

func TestVerdicts(t *testing.T) {
	for verdict, tc := range map[gate.Verdict]struct {
		code   int
		text   string
		result string
	}{
		gate.OK:              {0, "", "ok"},
		gate.Unauthenticated: {http.StatusUnauthorized, "unauthorized", "unauth"},
		gate.Forbidden:       {http.StatusForbidden, "forbidden", "forbidden"},
		gate.Error:           {http.StatusServiceUnavailable, "the caller cannot be checked", "error"},
		"nonsense":           {http.StatusServiceUnavailable, "the caller cannot be checked", "error"},
	} {
		for path, p := range paths {
			t.Run(string(verdict)+path, func(t *testing.T) {
				g := fixedGate(verdict)
				h := start(t, func(o *control.Options) { o.Gates = control.Gates{Snapshot: g, Policy: g, Probe: g} })
				response := h.call(p.method, path, p.body)
				if tc.code == 0 {
					if response.StatusCode/100 != 2 {
						t.Errorf("admitted and answered %d", response.StatusCode)
					}
				} else {
					h.wantAnswer(response, tc.code, tc.text)
					h.wantAnswer(h.call("DELETE", path, "nonsense"), tc.code, tc.text)
				}
				if got, want := response.Header.Get("WWW-Authenticate") == "Bearer", tc.code == http.StatusUnauthorized; got != want {
					t.Errorf("WWW-Authenticate: %v, want %v", got, want)
				}
				for _, counter := range []string{"snapshot", "policy", "probe"} {
					want := 0.0
					if counter == p.counter {
						want = 1
						if tc.code != 0 {
							want = 2
						}
					}
					h.wantMetric(want, counter+"_auth_total", "result", tc.result)
				}
			})
		}
	}
}

// TestEachGateGuardsItsEndpoints opens one gate at a time.
func TestEachGateGuardsItsEndpoints(t *testing.T) {
	for _, open := range []string{"snapshot", "policy", "probe"} {
		h := start(t, func(o *control.Options) {
			shut := fixedGate(gate.Unauthenticated)
			o.Gates = control.Gates{Snapshot: shut, Policy: shut, Probe: shut}
			*map[string]*control.Gate{"snapshot": &o.Gates.Snapshot, "policy": &o.Gates.Policy, "probe": &o.Gates.Probe}[open] = gate.Open{}
		})
		for path, p := range paths {
			admitted := h.call(p.method, path, p.body).StatusCode != http.StatusUnauthorized
			if admitted != (p.counter == open) {
				t.Errorf("gate %s open: %s admitted %v", open, path, admitted)
			}
		}
	}
}

func TestMethods(t *testing.T) {
	h := start(t)
	for path, p := range paths {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "get"} {
			response := h.call(method, path, p.body)
			if strings.Contains(", "+p.allow+",", " "+method+",") {
				if response.StatusCode/100 != 2 {
					t.Errorf("%s %s: %d", method, path, response.StatusCode)
				}
				continue
			}
			if response.StatusCode != http.StatusMethodNotAllowed || response.Header.Get("Allow") != p.allow {
				t.Errorf("%s %s: %d, Allow %q; want 405, %q", method, path, response.StatusCode, response.Header.Get("Allow"), p.allow)
			}
		}
	}
}

func TestOtherPathsDoNotExist(t *testing.T) {
	h := start(t)
	for _, path := range []string{"/", "/healthz", "/metrics", "/readyz", "/policy/", "/snapshot/x", "/Policy", "//policy"} {
		h.wantAnswer(h.call("GET", path, ""), http.StatusNotFound, "not found")
	}
	h.wantMetric(8, "internal_requests_total", "endpoint", "other", "code", "404")
}

func TestEveryResponseSaysWhoAnswers(t *testing.T) {
	h := start(t, func(o *control.Options) { o.Gates.Probe = fixedGate(gate.Forbidden) })
	const body = `{"version":7,"policies":[]}`
	const revision = "b1af69a7f08d9696baf715ebccc03bcb89b15103bef1adac3fa22fdbb2b94642"
	identity := func(response *http.Response) map[string]string {
		got := make(map[string]string)
		for name := range response.Header {
			if strings.HasPrefix(name, "X-Inference-Cache-") {
				got[name] = response.Header.Get(name)
			}
		}
		return got
	}
	requests := func() map[string]*http.Response {
		return map[string]*http.Response{
			"snapshot": h.call("GET", "/snapshot", ""), "status": h.call("GET", "/status", ""), "nowhere": h.call("GET", "/", ""),
			"wrong method": h.call("GET", "/policy", ""), "forbidden": h.call("POST", "/probe", aProbe), "refused": h.call("POST", "/policy", "x"),
		}
	}
	want := map[string]string{"X-Inference-Cache-Server-Epoch": epoch, "X-Inference-Cache-Capabilities": "gzip,extensions.v1"}
	for name, response := range requests() {
		if diff := cmp.Diff(want, identity(response)); diff != "" {
			t.Errorf("%s before a push (-want +got):\n%s", name, diff)
		}
	}
	want["X-Inference-Cache-Policy-Revision"] = revision
	if diff := cmp.Diff(want, identity(h.call("POST", "/policy", body))); diff != "" {
		t.Errorf("push (-want +got):\n%s", diff)
	}
	want["X-Inference-Cache-Extensions-Revision"] = "e-1"
	if diff := cmp.Diff(want, identity(h.call("PUT", "/policy/extensions", `{"version":1,"revision":"e-1"}`))); diff != "" {
		t.Errorf("push of extensions (-want +got):\n%s", diff)
	}
	for name, response := range requests() {
		if diff := cmp.Diff(want, identity(response)); diff != "" {
			t.Errorf("%s after pushes (-want +got):\n%s", name, diff)
		}
	}
}

func TestPanicIsAnsweredAndCounted(t *testing.T) {
	h := start(t, func(o *control.Options) {
		o.Prober = proberFunc(func(context.Context, probe.Request) (probe.Result, error) { panic("secret") })
	})
	h.wantAnswer(h.call("POST", "/probe", aProbe), http.StatusInternalServerError, "internal error\n")
	if n := h.panics.Load(); n != 1 {
		t.Errorf("%d panics were reported, want 1", n)
	}
	h.wantMetric(1, "internal_requests_total", "endpoint", "probe", "code", "500")
}

func TestMetricsFollowConventions(t *testing.T) {
	h := start(t)
	for path, p := range paths {
		h.call(p.method, path, p.body)
	}
	problems, err := testutil.GatherAndLint(h.registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		t.Errorf("%s: %s", problem.Metric, problem.Text)
	}
}

func TestClosedSetsExistFromTheStart(t *testing.T) {
	h := start(t)
	h.wantMetric(0, "snapshot_auth_total", "result", "ok")
	h.wantMetric(0, "policy_auth_total", "result", "forbidden")
	h.wantMetric(0, "probe_auth_total", "result", "error")
	h.wantMetric(0, "policy_pushes_total", "kind", "extensions", "result", "unknown_field")
	h.wantMetric(0, "policy_last_applied_timestamp_seconds", "kind", "policy")
	h.wantMetric(0, "policy_schema_version")
	h.wantMetric(0, "policy_entries", "kind", "topology")
	h.wantMetric(0, "policy_body_bytes", "kind", "extensions")
	h.wantMetric(0, "policy_removals_total")
	h.wantMetric(0, "internal_requests_total", "endpoint", "status", "code", "405")
}
