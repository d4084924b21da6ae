// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/kvevents"
	"github.com/inferencecache/inference-cache/internal/zmtp"
)

const (
	// maxFrames of one message; engines send at most five.
	maxFrames = 16
	// maxPeers is how many engines may be connected to one bound socket. One
	// is right; a few more are taken so that the conflict shows.
	maxPeers = 8
	// topicPatience is how long a topic filter may match nothing before that
	// is a finding.
	topicPatience = time.Minute
)

// stream follows one event socket of the engine.
type stream struct {
	p      *Publisher
	source source
	// shared streams carry batches of any rank, others those of one.
	shared bool
	// up and down space the log lines about the connection.
	up, down notice

	mu sync.Mutex // before the lock of a hub
	// first is the only rank of a stream that is not shared. In a shared one
	// it also takes what names no rank.
	first *engineRank
	// others are the further ranks of a shared stream, by number.
	others map[int]*engineRank
	// settled is true once the rank of first is known.
	settled  bool
	met      bool      // an engine was connected before
	peers    int       // connections that are up
	since    time.Time // of the last change of peers from or to 0
	messages uint64    // since then
	lastErr  string
}

func (s *stream) run(ctx context.Context) {
	if s.p.config.Bind {
		s.listen(ctx)
		return
	}
	config := &s.p.config
	wait := backoff{min: config.ReconnectMin, max: config.ReconnectMax, jitter: s.p.deps.Jitter}
	for ctx.Err() == nil {
		conn, err := zmtp.Dial(ctx, s.source.endpoint, s.socketOptions())
		if err == nil {
			began := time.Now()
			err = s.follow(ctx, conn)
			if time.Since(began) > config.ReconnectMax {
				wait.reset()
			}
		}
		if ctx.Err() != nil {
			return
		}
		s.failed(err)
		sleep(ctx, wait.next())
	}
}

// listen follows every engine that connects.
func (s *stream) listen(ctx context.Context) {
	wait := backoff{min: s.p.config.ReconnectMin, max: s.p.config.ReconnectMax, jitter: s.p.deps.Jitter}
	for ctx.Err() == nil {
		l, err := zmtp.Listen(s.source.endpoint, s.socketOptions())
		if err != nil {
			s.failed(err)
			sleep(ctx, wait.next())
			continue
		}
		s.bound(l.Endpoint())
		s.accept(ctx, l)
		_ = l.Close()
	}
}

func (s *stream) accept(ctx context.Context, l *zmtp.Listener) {
	var followers sync.WaitGroup
	defer followers.Wait()
	for {
		conn, err := l.Accept(ctx)
		if err != nil {
			return
		}
		if s.connections() >= maxPeers {
			_ = conn.Close()
			continue
		}
		followers.Go(func() {
			if err := s.follow(ctx, conn); ctx.Err() == nil {
				s.failed(err)
			}
		})
	}
}

func (s *stream) socketOptions() zmtp.Options {
	return zmtp.Options{
		Type:      zmtp.SUB,
		MaxFrames: maxFrames,
		Dial:      s.p.deps.Dial,
		Refused:   func(_ net.Addr, err error) { s.failed(err) },
	}
}

// follow subscribes and feeds what arrives to the sessions until the
// connection ends. It owns conn.
func (s *stream) follow(ctx context.Context, conn *zmtp.Conn) error {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := conn.Subscribe([]byte(s.source.topic)); err != nil {
		return err
	}
	s.connected()
	defer s.disconnected()
	for {
		frames, err := conn.Recv()
		if err != nil {
			return err
		}
		s.receive(frames)
	}
}

func (s *stream) receive(frames [][]byte) {
	_, sequence, payload, err := kvevents.ParseLive(frames)
	if err != nil {
		s.route(nil).apply(func(session *Session) Step {
			session.BadFrame()
			return Step{}
		})
		return
	}
	s.mu.Lock()
	s.messages++
	s.mu.Unlock()
	now := s.p.deps.Now()
	s.route(payload).apply(func(session *Session) Step {
		return session.Live(sequence, payload, now)
	})
}

// each calls f with the ranks fed by the stream.
func (s *stream) each(f func(*engineRank)) {
	s.mu.Lock()
	list := slices.AppendSeq([]*engineRank{s.first}, maps.Values(s.others))
	s.mu.Unlock()
	for _, r := range list {
		f(r)
	}
}

// connected tells the sessions. A further peer on a bound socket proves as
// little about continuity as a reconnect does.
func (s *stream) connected() {
	now := s.p.deps.Now()
	s.mu.Lock()
	s.peers++
	first := s.peers == 1
	if first {
		s.since, s.messages, s.lastErr = now, 0, ""
	}
	anew := s.met
	s.met = true
	s.mu.Unlock()
	if anew {
		s.p.lookAgain()
	}
	if s.up.due(time.Now()) {
		s.p.deps.Logger.Info("event socket connected", "rank", s.source.rank)
	}
	s.each(func(r *engineRank) {
		r.apply(func(session *Session) Step {
			if !first {
				session.Disconnected(now)
			}
			return session.Connected(now)
		})
	})
}

func (s *stream) disconnected() {
	now := s.p.deps.Now()
	s.mu.Lock()
	s.peers--
	last := s.peers == 0
	if last {
		s.since = now
	}
	s.mu.Unlock()
	if !last {
		return
	}
	s.each(func(r *engineRank) {
		r.apply(func(session *Session) Step {
			session.Disconnected(now)
			return Step{}
		})
	})
}

func (s *stream) connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peers
}

func (s *stream) bound(endpoint string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.source.endpoint = endpoint
}

func (s *stream) failed(err error) {
	s.mu.Lock()
	s.lastErr = err.Error()
	s.mu.Unlock()
	if s.down.due(time.Now()) {
		s.p.deps.Logger.Warn("waiting for the event socket", "rank", s.source.rank, "error", err)
	}
}

func (s *stream) status() StreamStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := StreamStatus{
		Rank:      s.source.rank,
		Endpoint:  s.source.endpoint,
		Connected: s.peers > 0,
		Peers:     s.peers,
		Since:     s.since,
		LastError: s.lastErr,
	}
	status.TopicMatchesNothing = status.Connected && s.source.topic != "" && s.messages == 0 &&
		s.p.deps.Now().Sub(s.since) >= topicPatience
	return status
}

// notice spaces repeated log lines: one at once, then one a minute at most.
type notice struct {
	mu   sync.Mutex
	last time.Time
}

func (n *notice) due(now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.last.IsZero() && now.Sub(n.last) < time.Minute {
		return false
	}
	n.last = now
	return true
}
