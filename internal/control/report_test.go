// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/control"
	"github.com/inferencecache/inference-cache/internal/index"
)

func rows() *holdings {
	beat := noon.UnixMilli()
	return &holdings{
		replicas: []index.ReplicaRow{
			{Tenant: "", Replica: "r", Memberships: 1, LastSeenMillis: beat + 1},
			{Tenant: "team", Replica: "full", Memberships: 7, LastSeenMillis: beat, HasStats: true, Stats: index.Stats{
				CacheMemoryBytes: 1 << 40, HitRate: .1, Pressure: .7, LivenessMillis: beat + 123,
				T2HitTokens: 3, T2QueryTokens: 4, ClientVersion: "v1",
			}},
			{Tenant: "team", Replica: "idle", HasStats: true, Stats: index.Stats{HitRate: .5, LivenessMillis: beat}},
		},
		tenants: []index.TenantRow{
			{Tenant: "", Keys: 1},
			{Tenant: "gone", QuotaEvicted: 5},
			{Tenant: "team", Keys: 6, HasStats: true},
		},
		counters: index.Counters{
			Memberships: 8, MaxMemberships: 100, Keys: 7, Tenants: 2, Bytes: index.Bytes{Table: 10, Arena: 5},
		},
	}
}

// TestSnapshotIsFrozen pins every key, its order, and when it is left out.
func TestSnapshotIsFrozen(t *testing.T) {
	for name, tc := range map[string]struct {
		holdings *holdings
		want     string
	}{
		"empty": {new(holdings), `{"replicas":[],"tenants":[],"totalPrefixes":0,"hotPrefixes":0}`},
		"rows": {rows(), `{"replicas":[` +
			`{"replicaId":"r","cacheMemoryBytes":0,"hitRate":0,"pressure":0,"lastUpdate":"0001-01-01T00:00:00Z",` +
			`"prefixCount":1,"lastEventAt":"2026-03-01T12:00:00.001Z"},` +
			`{"replicaId":"full","tenant":"team","cacheMemoryBytes":1099511627776,"hitRate":0.1,"pressure":0.7,` +
			`"lastUpdate":"2026-03-01T12:00:00.123Z","prefixCount":7,"lastEventAt":"2026-03-01T12:00:00Z",` +
			`"statsReported":true,"t2HitTokens":3,"t2QueryTokens":4},` +
			`{"replicaId":"idle","tenant":"team","cacheMemoryBytes":0,"hitRate":0.5,"pressure":0,` +
			`"lastUpdate":"2026-03-01T12:00:00Z","prefixCount":0,"lastEventAt":"0001-01-01T00:00:00Z","statsReported":true}],` +
			`"tenants":[{"tenantId":"","indexEntries":1,"hitRate":0,"memoryUsed":0},` +
			`{"tenantId":"team","indexEntries":6,"hitRate":0.3,"hitRateReported":true,"memoryUsed":0}],` +
			`"totalPrefixes":7,"hotPrefixes":3}`},
	} {
		t.Run(name, func(t *testing.T) {
			h := start(t, func(o *control.Options) {
				o.Holdings = tc.holdings
				o.HotPrefixes = func() int64 { return int64(len(tc.holdings.replicas)) }
			})
			response := h.call("GET", "/snapshot", "")
			if got := response.Header.Get("Content-Type"); response.StatusCode != http.StatusOK || got != "application/json" {
				t.Errorf("%d %s, want 200 application/json", response.StatusCode, got)
			}
			if diff := cmp.Diff(tc.want, textOf(t, response)); diff != "" {
				t.Errorf("snapshot (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSnapshotCompression(t *testing.T) {
	h := start(t, func(o *control.Options) { o.Holdings = rows() })
	plain := textOf(t, h.call("GET", "/snapshot", ""))
	for accepted, want := range map[string]bool{
		"": false, "gzip": true, "br, GZIP": true, "gzip;q=0": false, "gzip; q=0.0": false, "gzip;q=0.5": true,
		"identity": false, "br": false, "gzipped": false,
	} {
		t.Run(accepted, func(t *testing.T) {
			response := h.call("GET", "/snapshot", "", "Accept-Encoding", accepted)
			if got := response.Header.Get("Content-Encoding") == "gzip"; got != want {
				t.Fatalf("compressed %v, want %v", got, want)
			}
			if response.Header.Get("Vary") != "Accept-Encoding" {
				t.Errorf("Vary %q", response.Header.Get("Vary"))
			}
			body := io.Reader(response.Body)
			if want {
				var err error
				if body, err = gzip.NewReader(response.Body); err != nil {
					t.Fatal(err)
				}
			}
			text, err := io.ReadAll(body)
			if err != nil || string(text) != plain {
				t.Errorf("%v, other text than the plain one:\n%s", err, text)
			}
		})
	}
}

func TestStatus(t *testing.T) {
	ready := false
	h := start(t, func(o *control.Options) {
		o.Holdings = rows()
		o.Ready = func() bool { return ready }
	})
	index := `"index":{"memberships":8,"keys":7,"tenants":2,"maxEntries":100,"bytes":15}}`
	head := func(ready bool) string {
		return fmt.Sprintf(`{"serverEpoch":%q,"startedAt":"2026-03-01T12:00:00Z","version":"devel","capabilities":["gzip","extensions.v1"],"ready":%v,`, epoch, ready)
	}
	want := head(false) + `"policy":null,"extensions":null,` + index
	if diff := cmp.Diff(want, h.status()); diff != "" {
		t.Errorf("before a push (-want +got):\n%s", diff)
	}
	ready = true
	h.call("POST", "/policy", `{"version":7,"policies":[]}`)
	h.call("POST", "/policy/extensions", `{"version":1,"revision":"e"}`)
	want = head(true) + `"policy":{"revision":"b1af69a7f08d9696baf715ebccc03bcb89b15103bef1adac3fa22fdbb2b94642","version":7,` +
		`"appliedAt":"2026-03-01T12:00:00Z","policies":0,"tenants":0,"bytes":27},` +
		`"extensions":{"revision":"e","appliedAt":"2026-03-01T12:00:00Z"},` + index
	if diff := cmp.Diff(want, h.status()); diff != "" {
		t.Errorf("after pushes (-want +got):\n%s", diff)
	}
}

// status returns /status with a version that does not depend on the build.
func (h *harness) status() string {
	h.t.Helper()
	text := textOf(h.t, h.call("GET", "/status", ""))
	var report struct{ Version string }
	if err := json.Unmarshal([]byte(text), &report); err != nil || report.Version == "" {
		h.t.Fatalf("status %s: %v", text, err)
	}
	return strings.Replace(text, `"version":"`+report.Version+`"`, `"version":"devel"`, 1)
}
