// SPDX-License-Identifier: Apache-2.0

// Package eventsock is the event socket of a simulated engine: batches with
// sequence numbers on a PUB socket, and a ROUTER that replays the latest ones.
package eventsock

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/zmtp"
)

// Options of a Socket. The zero value binds free ports of the loopback.
type Options struct {
	// Endpoint of the PUB socket. Default tcp://127.0.0.1:*.
	Endpoint string
	// Connect makes the PUB socket dial Endpoint, which a subscriber has
	// bound, again and again. Default false: bind.
	Connect bool
	// Replay is the endpoint of the ROUTER, or NoReplay. Default
	// tcp://127.0.0.1:*.
	Replay string
	// Topic is the first frame of every live message. Default empty.
	Topic string
	// BufferSteps is how many batches can be replayed. Default 10000.
	BufferSteps int
	// HighWaterMark is how many batches wait for one subscriber. Default
	// 100000.
	HighWaterMark int
	// TopicInReplay puts the topic in front of replayed sequence numbers, as
	// vLLM 0.25 and later do. Default false.
	TopicInReplay bool
}

// NoReplay as Options.Replay opens no replay socket.
const NoReplay = "none"

func (o Options) withDefaults() Options {
	if o.Endpoint == "" {
		o.Endpoint = "tcp://127.0.0.1:*"
	}
	if o.Replay == "" {
		o.Replay = "tcp://127.0.0.1:*"
	}
	if o.BufferSteps <= 0 {
		o.BufferSteps = 10000
	}
	if o.HighWaterMark <= 0 {
		o.HighWaterMark = 100000
	}
	return o
}

// endOfReplay marks the end of a replay in place of a sequence number.
const endOfReplay = math.MaxUint64

// redialPause is the time between attempts to reach a bound subscriber.
const redialPause = 100 * time.Millisecond

// Socket publishes batches. Its methods are safe for concurrent use.
type Socket struct {
	options  Options
	endpoint string
	replay   string
	pub      *zmtp.Pub
	router   *zmtp.Router // nil without replay
	cancel   context.CancelFunc
	tasks    sync.WaitGroup

	mu     sync.Mutex // orders Send calls with their sequence numbers
	next   uint64     // sequence number of the next batch
	oldest uint64     // first batch that can be replayed
	ring   [][]byte   // batch s lies at s modulo BufferSteps
	lose   int        // batches still to withhold from subscribers
}

// Open binds or connects the sockets and serves replays until Close.
func Open(options Options) (*Socket, error) {
	s := &Socket{options: options.withDefaults()}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	if err := s.openPub(ctx); err != nil {
		cancel()
		return nil, fmt.Errorf("open event socket: %w", err)
	}
	if s.options.Replay == NoReplay {
		return s, nil
	}
	listener, err := zmtp.Listen(s.options.Replay, zmtp.Options{Type: zmtp.ROUTER})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open replay socket: %w", err), s.Close())
	}
	s.replay = listener.Endpoint()
	s.router = zmtp.NewRouter(listener)
	s.tasks.Go(func() { s.serveReplays(ctx) })
	return s, nil
}

func (s *Socket) openPub(ctx context.Context) error {
	options := zmtp.PubOptions{HighWaterMark: s.options.HighWaterMark}
	if s.options.Connect {
		s.endpoint = s.options.Endpoint
		s.pub = zmtp.NewPub(nil, options)
		s.tasks.Go(func() { s.dial(ctx) })
		return nil
	}
	listener, err := zmtp.Listen(s.options.Endpoint, zmtp.Options{Type: zmtp.PUB})
	if err != nil {
		return err
	}
	s.endpoint = listener.Endpoint()
	s.pub = zmtp.NewPub(listener, options)
	return nil
}

// dial keeps a connection to the subscriber that bound the endpoint.
func (s *Socket) dial(ctx context.Context) {
	for ctx.Err() == nil {
		conn, err := zmtp.Dial(ctx, s.endpoint, zmtp.Options{Type: zmtp.PUB})
		if err == nil {
			select {
			case <-s.pub.Attach(conn):
			case <-ctx.Done():
				return
			}
		}
		timer := time.NewTimer(redialPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// Endpoint is where the PUB socket is bound, with its real port.
func (s *Socket) Endpoint() string { return s.endpoint }

// ReplayEndpoint is where replays are asked for; empty without replay.
func (s *Socket) ReplayEndpoint() string { return s.replay }

// Subscribers counts the peers that subscribed to something.
func (s *Socket) Subscribers() int { return s.pub.Subscribers() }

// Publish sends one batch under the next sequence number, which it returns.
// It never waits for a subscriber. The payload must not change afterwards.
func (s *Socket) Publish(payload []byte) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	sequence := s.next
	s.next++
	slot := int(sequence % uint64(s.options.BufferSteps))
	if slot < len(s.ring) {
		s.ring[slot] = payload
	} else {
		s.ring = append(s.ring, payload)
	}
	s.oldest = max(s.oldest, s.next-min(s.next, uint64(s.options.BufferSteps)))
	if s.lose > 0 {
		s.lose--
		return sequence
	}
	s.sendLocked(sequence, payload)
	return sequence
}

func (s *Socket) sendLocked(sequence uint64, payload []byte) {
	s.pub.Send([]byte(s.options.Topic), binary.BigEndian.AppendUint64(nil, sequence), payload)
}

// Lose withholds the next n batches from subscribers; they can be replayed.
func (s *Socket) Lose(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lose += n
}

// Repeat sends the latest batch again. Without one it does nothing.
func (s *Socket) Repeat() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next > s.oldest {
		s.sendLocked(s.next-1, s.ring[(s.next-1)%uint64(s.options.BufferSteps)])
	}
}

// Forget drops all batches from the replay buffer, as if it had wrapped.
func (s *Socket) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.oldest = s.next
}

// Restart begins again at sequence 0 with an empty replay buffer while the
// connections stay up.
func (s *Socket) Restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next, s.oldest, s.ring, s.lose = 0, 0, nil, 0
}

// Close ends all connections. Batches not yet sent are lost.
func (s *Socket) Close() error {
	s.cancel()
	err := s.pub.Close()
	if s.router != nil {
		err = errors.Join(err, s.router.Close())
	}
	s.tasks.Wait()
	return err
}

func (s *Socket) serveReplays(ctx context.Context) {
	for {
		request, err := s.router.Recv(ctx)
		if err != nil {
			return
		}
		// Engines ignore anything but an empty frame and a sequence number.
		if len(request.Frames) != 2 || len(request.Frames[0]) != 0 || len(request.Frames[1]) != 8 {
			continue
		}
		s.sendReplay(request.Identity, binary.BigEndian.Uint64(request.Frames[1]))
	}
}

// sendReplay stops early only when the peer is gone.
func (s *Socket) sendReplay(peer []byte, from uint64) {
	for {
		sequence, payload, ok := s.buffered(from)
		if !ok {
			break
		}
		if s.router.Send(peer, s.replayFrames(sequence, payload)...) != nil {
			return
		}
		from = sequence + 1
	}
	_ = s.router.Send(peer, s.replayFrames(endOfReplay, nil)...)
}

// buffered returns the first buffered batch at or after from.
func (s *Socket) buffered(from uint64) (sequence uint64, payload []byte, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sequence = max(from, s.oldest)
	if sequence >= s.next {
		return 0, nil, false
	}
	return sequence, s.ring[sequence%uint64(s.options.BufferSteps)], true
}

func (s *Socket) replayFrames(sequence uint64, payload []byte) [][]byte {
	number := binary.BigEndian.AppendUint64(nil, sequence)
	if !s.options.TopicInReplay {
		return [][]byte{{}, number, payload}
	}
	topic := []byte(s.options.Topic)
	if sequence == endOfReplay {
		topic = nil
	}
	return [][]byte{{}, topic, number, payload}
}
