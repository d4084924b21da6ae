// SPDX-License-Identifier: Apache-2.0

package server

import "github.com/inferencecache/inference-cache/internal/ingest"

// Readiness says whether the server is worth asking and, if not, why.
type Readiness struct {
	Ready bool
	// Waiting is what it waits for; "" when ready.
	Waiting string
	// Sync sums up the publishers' sessions.
	Sync ingest.SyncReport
}

// Readiness returns the current state: ready once publishers had 3 s to
// connect, none has been sending a snapshot for 1 s and Options.Waiting is
// content, at the latest after Options.ReadyMaxWait.
func (s *Server) Readiness() Readiness {
	s.mu.Lock()
	startedAt := s.startedAt
	s.mu.Unlock()
	state := Readiness{Sync: s.sync.Report()}
	switch {
	case s.leaving.Load():
		state.Waiting = "shutting down"
	case startedAt.IsZero():
		state.Waiting = "not started"
	case s.options.Now().Sub(startedAt) < s.options.ReadyMaxWait:
		state.Waiting = s.waiting(state.Sync)
	}
	state.Ready = state.Waiting == ""
	return state
}

func (s *Server) waiting(sync ingest.SyncReport) string {
	if !sync.Recovered {
		return "publishers may still be sending what they hold"
	}
	if s.options.Waiting != nil {
		return s.options.Waiting()
	}
	return ""
}

func (s *Server) isStopping() bool {
	select {
	case <-s.stopping:
		return true
	default:
		return false
	}
}
