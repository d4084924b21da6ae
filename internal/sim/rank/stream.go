// SPDX-License-Identifier: Apache-2.0

package rank

import (
	"context"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/sim/sched"
)

// Token is one generated token and when it was.
type Token struct {
	sched.Output
	At time.Time
	// HeldUntil is when held blocks are given up; zero without any.
	HeldUntil time.Time
}

// Stream receives one request's tokens. The rank never waits for its reader.
type Stream struct {
	rank    *Rank
	request *sched.Request
	wake    chan struct{} // holds one token while Next may proceed

	mu      sync.Mutex // after Rank.mu
	pending []Token
	err     error
}

func newStream(rank *Rank, request *sched.Request) *Stream {
	return &Stream{rank: rank, request: request, wake: make(chan struct{}, 1)}
}

// Next returns the next token. It fails with ErrStopped when the engine
// stopped, or when ctx ends.
func (s *Stream) Next(ctx context.Context) (Token, error) {
	for {
		token, ok, err := s.take()
		if ok || err != nil {
			return token, err
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return Token{}, ctx.Err()
		}
	}
}

// Close aborts the request if it still runs.
func (s *Stream) Close() { s.rank.abort(s.request) }

func (s *Stream) take() (token Token, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pending) == 0 {
		return Token{}, false, s.err
	}
	token, s.pending = s.pending[0], s.pending[1:]
	return token, true, nil
}

func (s *Stream) push(token Token) {
	s.mu.Lock()
	s.pending = append(s.pending, token)
	s.mu.Unlock()
	s.signal()
}

func (s *Stream) fail(err error) {
	s.mu.Lock()
	s.err = err
	s.mu.Unlock()
	s.signal()
}

func (s *Stream) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
