// SPDX-License-Identifier: Apache-2.0

package standalone

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// newAdminServer serves health, readiness and the metrics of all roles.
func (s *Standalone) newAdminServer() *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeText(w, http.StatusOK, "ok\n")
	})
	mux.HandleFunc("GET /readyz", s.serveReady)
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics.gatherer(&s.followers), promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError,
	}))
	mux.Handle("/debug/", s.gateway.AdminHandler())
	return &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       60 * time.Second,
		ErrorLog:          slog.NewLogLogger(s.logger.Handler(), slog.LevelWarn),
	}
}

// serveReady answers 200 once requests get hints as good as they will be.
// Engines that die later do not change that: clients get a clear answer, which
// nobody could give them once traffic stays away.
func (s *Standalone) serveReady(w http.ResponseWriter, r *http.Request) {
	state := s.server.Readiness()
	waiting := cmp.Or(s.gateway.Waiting(), state.Waiting)
	code, text := http.StatusOK, "ok\n"
	if waiting != "" {
		code, text = http.StatusServiceUnavailable, "not ready: "+waiting+"\n"
	}
	if r.URL.Query().Has("verbose") {
		text += fmt.Sprintf("sessions: %d live, %d in snapshot, %d lost\nblocks received: %d\nblocks expected: %d\n",
			state.Sync.Live, state.Sync.Snapshot, state.Sync.Lost, state.Sync.BlocksReceived, state.Sync.BlocksExpected)
		ready, all := s.gateway.ReadyReplicas()
		text += fmt.Sprintf("replicas: %d of %d ready\n", ready, all)
		for _, p := range s.followers.publishers() {
			status := p.Status()
			text += fmt.Sprintf("engine %s: %d of %d event streams, in step with the index: %t\n",
				status.Replica, status.StreamsLive, status.StreamsExpected, status.Ready())
		}
	}
	writeText(w, code, text)
}

// waiting names the engines that were neither reached nor refused yet.
func (s *Standalone) waiting() string {
	var unsettled []string
	for _, p := range s.followers.publishers() {
		if status := p.Status(); !status.Settled() {
			unsettled = append(unsettled, status.Replica)
		}
	}
	if len(unsettled) == 0 {
		return ""
	}
	return "no word yet from " + strings.Join(unsettled, ", ")
}

// serveAdmin serves until ctx ends and every other role is done, so that
// readiness can be watched during the shutdown.
func (s *Standalone) serveAdmin(ctx, rolesDone context.Context) error {
	failed := make(chan error, 1)
	go func() { failed <- s.admin.Serve(s.listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve admin: %w", err)
	case <-ctx.Done():
	}
	<-rolesDone.Done()
	closing, cancel := context.WithTimeout(context.Background(), adminGrace)
	defer cancel()
	if s.admin.Shutdown(closing) != nil {
		_ = s.admin.Close() // ends the connections that would not
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve admin: %w", err)
	}
	return nil
}

func writeText(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text) // the client may be gone
}
