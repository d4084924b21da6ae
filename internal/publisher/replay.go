// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"syscall"
	"time"

	"github.com/inferencecache/inference-cache/internal/kvevents"
	"github.com/inferencecache/inference-cache/internal/zmtp"
)

// replayRequest asks for the batches from a sequence on.
type replayRequest struct {
	from uint64
	// generation tells requests of one rank apart; later ones are higher.
	generation uint64
}

// replayer fetches the replays of one rank. Each has a connection of its
// own, so that no answer of an older one is left in it.
type replayer struct {
	rank     *engineRank
	endpoint string
	wake     chan struct{} // holds a token while want is unserved

	mu      sync.Mutex
	want    replayRequest
	current context.CancelFunc // ends the replay being served; may be nil
}

func newReplayer(r *engineRank, endpoint string) *replayer {
	return &replayer{rank: r, endpoint: endpoint, wake: make(chan struct{}, 1)}
}

// start serves req instead of any earlier request. It does not block.
func (r *replayer) start(req replayRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if req.generation <= r.want.generation {
		return
	}
	r.want = req
	if r.current != nil {
		r.current()
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *replayer) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
		limit := r.rank.p.config.ReplayLimit
		attempt, cancel := context.WithTimeout(ctx, limit)
		r.mu.Lock()
		req := r.want
		r.current = cancel
		r.mu.Unlock()
		result := r.serve(attempt, req)
		superseded := errors.Is(attempt.Err(), context.Canceled)
		cancel()
		if superseded {
			continue
		}
		level := slog.LevelInfo
		if result != ReplayOK {
			level = slog.LevelWarn
		}
		r.rank.p.deps.Logger.Log(ctx, level, "replay ended", "replica", r.rank.report.Load().id, "result", result)
		r.rank.replayed(req.generation, func(s *Session) Step {
			return s.ReplayDone(result, r.rank.p.deps.Now())
		})
	}
}

// serve delivers one replay to the session.
func (r *replayer) serve(ctx context.Context, req replayRequest) ReplayResult {
	conn, result := r.dial(ctx)
	if conn == nil {
		return result
	}
	defer conn.Close()
	// Both end a blocked Recv by closing the connection.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	timeout := r.rank.p.config.ReplayTimeout
	idle := time.AfterFunc(timeout, func() { _ = conn.Close() })
	defer idle.Stop()

	if conn.Send(kvevents.ReplayRequest(req.from)...) != nil {
		return ReplayTimeout
	}
	for {
		frames, err := conn.Recv()
		switch {
		case errors.Is(err, zmtp.ErrProtocol), errors.Is(err, zmtp.ErrLimit):
			return ReplayMalformed
		case err != nil:
			return ReplayTimeout
		}
		idle.Reset(timeout)
		sequence, payload, end, err := kvevents.ParseReplay(frames)
		switch {
		case err != nil:
			return ReplayMalformed
		case end:
			return ReplayOK
		}
		r.rank.deliver(req.generation, sequence, payload)
	}
}

// deliver hands one replayed batch to the session. It may also be the first
// to tell the engine's rank.
func (r *engineRank) deliver(generation, sequence uint64, payload []byte) {
	if rank, ok := rankOf(payload); ok {
		r.stream.settle(rank)
	}
	r.replayed(generation, func(s *Session) Step {
		return s.Replayed(sequence, payload, r.p.deps.Now())
	})
}

// dialWindow is how long a replay socket that refuses connections is tried:
// an engine opens it just after its event socket.
const dialWindow = time.Second

func (r *replayer) dial(ctx context.Context) (*zmtp.Conn, ReplayResult) {
	p := r.rank.p
	ctx, cancel := context.WithTimeout(ctx, p.config.ReplayTimeout)
	defer cancel()
	wait := backoff{min: p.config.ReconnectMin, max: p.config.ReconnectMax, jitter: p.deps.Jitter}
	start := time.Now()
	for {
		conn, err := zmtp.Dial(ctx, r.endpoint, zmtp.Options{Type: zmtp.DEALER, MaxFrames: maxFrames, Dial: p.deps.Dial})
		switch {
		case err == nil:
			return conn, ""
		case errors.Is(err, zmtp.ErrIncompatible), errors.Is(err, zmtp.ErrProtocol):
			return nil, ReplayUnsupported
		case errors.Is(err, syscall.ECONNREFUSED) && time.Since(start) > dialWindow:
			return nil, ReplayUnsupported
		case ctx.Err() != nil:
			return nil, ReplayTimeout
		}
		sleep(ctx, wait.next())
	}
}
