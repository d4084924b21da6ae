// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/inferencecache/inference-cache/internal/publisher"
)

func (s *Sidecar) handler() http.Handler {
	mux := http.NewServeMux()
	// Alive says nothing about the engine or servers: a restart would not
	// bring them back.
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		writeText(w, http.StatusOK, "ok\n")
	})
	mux.HandleFunc("GET /readyz", s.serveReady)
	mux.HandleFunc("GET /status", s.serveStatus)
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.options.Registry, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError,
	}))
	return mux
}

func (s *Sidecar) serveReady(w http.ResponseWriter, _ *http.Request) {
	pub, fault := s.state()
	if fault != nil {
		writeText(w, http.StatusServiceUnavailable, "not ready: "+fault.Error()+"\n")
		return
	}
	status := pub.Status()
	if status.Ready() {
		writeText(w, http.StatusOK, "ok\n")
		return
	}
	live := 0
	for _, rank := range status.Ranks {
		for _, server := range rank.Servers {
			if server.State == publisher.LinkLive {
				live++
			}
		}
	}
	writeText(w, http.StatusServiceUnavailable, fmt.Sprintf(
		"not ready: streams %d/%d, sync sessions live %d\n", status.StreamsLive, status.StreamsExpected, live))
}

func (s *Sidecar) serveStatus(w http.ResponseWriter, _ *http.Request) {
	pub, fault := s.state()
	if fault != nil {
		writeText(w, http.StatusServiceUnavailable, fault.Error()+"\n")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(pub.Status()) // the client may be gone
}

func writeText(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text) // the client may be gone
}
