// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const maxHeaderBytes = 64 << 10

// newHTTPServer serves the public paths; nothing else exists on it.
func (s *Server) newHTTPServer() *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeText(w, http.StatusOK, "ok\n")
	})
	mux.HandleFunc("/readyz", s.serveReady)
	mux.Handle("/metrics", promhttp.HandlerFor(s.options.Registry, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError,
	}))
	return &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       60 * time.Second,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.logger.Handler(), slog.LevelWarn),
	}
}

func (s *Server) serveReady(w http.ResponseWriter, r *http.Request) {
	state := s.Readiness()
	code, text := http.StatusOK, "ok\n"
	if !state.Ready {
		code, text = http.StatusServiceUnavailable, "not ready: "+state.Waiting+"\n"
	}
	if r.URL.Query().Has("verbose") {
		text += fmt.Sprintf("sessions: %d live, %d in snapshot, %d lost\nblocks received: %d\nblocks expected: %d\n",
			state.Sync.Live, state.Sync.Snapshot, state.Sync.Lost, state.Sync.BlocksReceived, state.Sync.BlocksExpected)
	}
	writeText(w, code, text)
}

func writeText(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text) // the client may be gone
}
