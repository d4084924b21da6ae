// SPDX-License-Identifier: Apache-2.0

package otlp_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/inferencecache/inference-cache/internal/trace/otlp"
)

func TestSpansReachTheCollector(t *testing.T) {
	var mu sync.Mutex
	var names []string
	service := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var request collector.ExportTraceServiceRequest
		if r.URL.Path != "/v1/traces" || proto.Unmarshal(body, &request) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		for _, resource := range request.GetResourceSpans() {
			for _, a := range resource.GetResource().GetAttributes() {
				if a.GetKey() == "service.name" {
					service = a.GetValue().GetStringValue()
				}
			}
			for _, scope := range resource.GetScopeSpans() {
				for _, span := range scope.GetSpans() {
					names = append(names, span.GetName())
				}
			}
		}
	}))
	defer server.Close()
	p, err := otlp.New(t.Context(), otlp.Options{Endpoint: server.URL, Service: "gateway", Version: "1"})
	if err != nil {
		t.Fatal(err)
	}
	_, span := p.Tracer().Start(t.Context(), "route completions")
	span.End()
	if err := p.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	if len(names) != 1 || names[0] != "route completions" || service != "gateway" {
		t.Errorf("spans %v of service %q", names, service)
	}
}

func TestRefusedSpansAreLogged(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
	}))
	defer server.Close()
	var logs bytes.Buffer
	p, err := otlp.New(t.Context(), otlp.Options{Endpoint: server.URL, Logger: slog.New(slog.NewTextHandler(&logs, nil))})
	if err != nil {
		t.Fatal(err)
	}
	_, span := p.Tracer().Start(t.Context(), "x")
	span.End()
	_ = p.Shutdown(context.Background())
	if !strings.Contains(logs.String(), "spans were lost") {
		t.Errorf("logs %q", logs.String())
	}
}

func TestEndpointsThatAreNone(t *testing.T) {
	for _, endpoint := range []string{"127.0.0.1:4318", "ftp://h", "http://", "http://user:secret@h:1", "://"} {
		_, err := otlp.New(t.Context(), otlp.Options{Endpoint: endpoint})
		if !errors.Is(err, otlp.ErrEndpoint) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
}
