// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/inferencecache/inference-cache/internal/control"
	"github.com/inferencecache/inference-cache/internal/gate"
	"github.com/inferencecache/inference-cache/internal/server"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// startControlled runs a server with an internal listener that admits
// everyone.
func startControlled(t testing.TB, change ...func(*server.Options)) *harness {
	t.Helper()
	withInternal := func(o *server.Options) {
		o.Internal = server.InternalOptions{
			Address: "127.0.0.1:0",
			Gates:   control.Gates{Snapshot: gate.Open{}, Policy: gate.Open{}, Probe: gate.Open{}},
		}
	}
	return start(t, append([]func(*server.Options){withInternal}, change...)...)
}

// internal calls the internal listener; headers come in pairs.
func (h *harness) internal(method, path, body string, headers ...string) (*http.Response, string) {
	h.t.Helper()
	url := "http://" + h.server.Addresses().Internal.String() + path
	request, err := http.NewRequestWithContext(h.ctx(), method, url, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		h.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return response, string(text)
}

// push replaces the policy and returns its revision.
func (h *harness) push(body string) string {
	h.t.Helper()
	response, text := h.internal("POST", "/policy", body)
	if response.StatusCode != http.StatusNoContent || text != "" {
		h.t.Fatalf("push of %.100s: %d %q", body, response.StatusCode, text)
	}
	return response.Header.Get("X-Inference-Cache-Policy-Revision")
}

// read decodes an answer of the internal listener.
func (h *harness) read(path string, into any) {
	h.t.Helper()
	response, text := h.internal("GET", path, "")
	if response.StatusCode != http.StatusOK {
		h.t.Fatalf("%s: %d %s", path, response.StatusCode, text)
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		h.t.Fatalf("%s: %v", path, err)
	}
}

// of moves a request to another tenant.
func of(tenant string, request *pb.LookupRouteRequest) *pb.LookupRouteRequest {
	request.TenantId = tenant
	return request
}

func exact(letter byte) *pb.LookupRouteRequest {
	return &pb.LookupRouteRequest{
		ModelId: "m", TenantId: "team", HashScheme: "vllm", PrefixHash: hash(letter), PrefixTokenCount: 100,
	}
}

func (h *harness) wantReason(what string, request *pb.LookupRouteRequest, want string) {
	h.t.Helper()
	if got := h.lookup(request).GetReasonCode(); got != want {
		h.t.Errorf("%s: %s, want %s", what, got, want)
	}
}
