// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"runtime"
	"time"

	"github.com/inferencecache/inference-cache/internal/ingest"
)

// maxSweepInterval keeps counts within a second of what has expired.
const maxSweepInterval = time.Second

// maintain drives the index until ctx ends.
func (s *Server) maintain(ctx context.Context) {
	interval := s.options.Index.SweepInterval
	if interval <= 0 || interval > maxSweepInterval {
		interval = maxSweepInterval
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.sweep(ctx)
		}
	}
}

// sweep works in steps short enough not to hold lookups up.
func (s *Server) sweep(ctx context.Context) {
	start := time.Now()
	for s.index.Maintain(s.options.Now().UnixMilli()) && ctx.Err() == nil {
		runtime.Gosched()
	}
	s.process.observeRun(taskExpire, time.Since(start))
	s.limits.Refresh()
	for _, due := range s.index.ResyncDue() {
		s.sync.RequestResync(due.Scope, due.Replica, ingest.ResyncRequested)
	}
}
