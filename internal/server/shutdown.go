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

// leave tells load balancers and health watchers, once, that the server is
// about to end.
func (s *Server) leave() {
	if s.leaving.Swap(true) {
		return
	}
	s.logger.Info("shutting down", "delay", s.options.ShutdownDelay, "grace", s.options.ShutdownGrace)
	s.process.up.Set(0)
	s.health.Shutdown()
}

// serveUntil returns once ctx has ended and the delay after it is over, or with
// the error of a listener that failed.
func (s *Server) serveUntil(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case err := <-s.failed:
		return err
	}
	s.leave()
	timer := time.NewTimer(s.options.ShutdownDelay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case err := <-s.failed:
		return err
	}
}

// shutdown ends streams, waits for running calls within the grace period and
// closes what is left. A handler that obeys nothing is left behind.
func (s *Server) shutdown() {
	s.stopOnce.Do(func() { close(s.stopping) })
	s.ingest.Drain()
	s.sync.Drain()

	grace, endGrace := context.WithTimeout(context.Background(), s.options.ShutdownGrace)
	defer endGrace()
	internal := s.drainInternal(grace)
	graceful := begin(s.grpc.GracefulStop)
	drained := wait(grace, graceful)
	wait(grace, internal)

	closing, endClosing := context.WithTimeout(context.Background(), closeTimeout)
	defer endClosing()
	if !drained {
		s.logger.Warn("calls were still running after the grace period")
		begin(s.grpc.Stop)
	}
	s.guard.close()
	s.endTasks()
	wait(closing, internal)
	if s.http.Shutdown(closing) != nil {
		_ = s.http.Close() // ends the connections that would not
	}
	if !wait(closing, begin(s.tasks.Wait)) {
		s.logger.Warn("a call would not end")
	}
	s.logger.Info("stopped")
}

// begin runs f on its own goroutine and returns a channel closed at its end.
func begin(f func()) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	return done
}

// wait reports whether done came before the end of ctx.
func wait(ctx context.Context, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}
