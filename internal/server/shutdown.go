// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"time"
)

const (
	// closeTimeout bounds what follows the grace period.
	closeTimeout = 2 * time.Second
	// watchLinger is how long health watchers have to learn of the shutdown
	// before their streams end.
	watchLinger = 100 * time.Millisecond
)

// shutdown tells everyone to leave, waits for running calls within the grace
// period and closes what is left.
func (s *Server) shutdown() {
	s.logger.Info("shutting down")
	s.health.Shutdown()
	s.stopOnce.Do(func() { close(s.stopping) })
	s.ingest.Drain()
	s.sync.Drain()

	graceful := make(chan struct{})
	go func() {
		defer close(graceful)
		s.grpc.GracefulStop()
	}()
	if !within(s.options.ShutdownGrace, graceful) {
		s.logger.Warn("calls were still running after the grace period")
		go s.grpc.Stop()
		within(closeTimeout/2, graceful)
	}
	s.endTasks()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout/2)
	defer cancel()
	if s.http.Shutdown(ctx) != nil {
		_ = s.http.Close() // ends the connections that would not
	}
	s.tasks.Wait()
	s.process.up.Set(0)
	s.logger.Info("stopped")
}

func within(limit time.Duration, done <-chan struct{}) bool {
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	select {
	case <-done:
		return true
	case <-timeout.C:
		return false
	}
}
