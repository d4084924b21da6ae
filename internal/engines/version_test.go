// SPDX-License-Identifier: Apache-2.0

package engines_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/inferencecache/inference-cache/internal/engines"
)

func TestShowsSalts(t *testing.T) {
	for _, tc := range []struct {
		runtime, version string
		want             bool
	}{
		{engines.VLLM, "0.17.0", true},
		{engines.VLLM, "0.17", true},
		{engines.VLLM, "v0.33.1rc2.dev7+gabcdef", true},
		{engines.VLLM, "1.0", true},
		{engines.VLLM, "0.16.9", false},
		{engines.VLLM, "0.9.2", false},
		{engines.VLLM, "0", false},
		{engines.VLLM, "dev", false},
		{engines.VLLM, "", false},
		{engines.SGLang, "0.5.18", true},
		{engines.SGLang, "0.5.18.post1", true},
		{engines.SGLang, "0.6.0", true},
		{engines.SGLang, "0.5.9", false},
		{engines.SGLang, "0.5", false},
		{engines.TensorRTLLM, "1.3.0", false},
		{"other", "9.9.9", false},
	} {
		if got := engines.ShowsSalts(tc.runtime, tc.version); got != tc.want {
			t.Errorf("%s %q: %t", tc.runtime, tc.version, got)
		}
	}
}

func TestVersionAndEndpoints(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/version":
			fmt.Fprint(w, `{"version":"0.20.1"}`)
		case "/server_info":
			fmt.Fprint(w, `{"version":"0.5.20","page_size":64}`)
		case "/v1/responses":
			w.WriteHeader(http.StatusMethodNotAllowed)
		case "/broken/version":
			fmt.Fprint(w, `{"version":7}`)
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	for runtime, want := range map[string]string{engines.VLLM: "0.20.1", engines.SGLang: "0.5.20"} {
		if got, err := engines.Version(t.Context(), server.Client(), server.URL, runtime); got != want || err != nil {
			t.Errorf("%s: %q, %v", runtime, got, err)
		}
	}
	for _, path := range []string{"/broken", "/none"} {
		if got, err := engines.Version(t.Context(), server.Client(), server.URL+path, engines.VLLM); err == nil {
			t.Errorf("%s: version %q", path, got)
		}
	}
	for path, want := range map[string]bool{"/v1/responses": true, "/v1/messages": false} {
		if got, err := engines.Offers(t.Context(), server.Client(), server.URL, path); got != want || err != nil {
			t.Errorf("%s: %t, %v", path, got, err)
		}
	}
	server.CloseClientConnections()
	server.Close()
	if _, err := engines.Offers(t.Context(), server.Client(), server.URL, "/v1/messages"); err == nil {
		t.Error("an engine that is gone offers something")
	}
}
