// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"

	"github.com/inferencecache/inference-cache/internal/defaults"
)

const (
	maxTopicBytes    = 1024
	maxSubscriptions = 1024
)

// PubOptions tune a Pub. The zero value works.
type PubOptions struct {
	// HighWaterMark is how many messages wait for one subscriber before
	// further ones are dropped for it. Default 1000.
	HighWaterMark int
}

// Pub sends each message to every subscriber whose topics match. A subscriber
// that does not keep up loses messages, silently and alone, as with libzmq.
type Pub struct {
	hwm     int
	l       *Listener
	dropped atomic.Uint64
	tasks   sync.WaitGroup
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc

	mu     sync.Mutex // before subscriber.mu
	closed bool
	subs   map[*subscriber]struct{}
}

// NewPub serves the subscribers that l accepts and owns l from here on. A nil
// l makes a Pub that only has peers given to Attach.
func NewPub(l *Listener, opts PubOptions) *Pub {
	defaults.Set(&opts.HighWaterMark, 1000)
	p := &Pub{hwm: opts.HighWaterMark, l: l, subs: map[*subscriber]struct{}{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	if l != nil {
		p.tasks.Go(func() {
			for {
				c, err := l.Accept(p.ctx)
				if err != nil {
					return
				}
				p.Attach(c)
			}
		})
	}
	return p
}

// Attach adds a peer that was dialled, and owns c from here on. The returned
// channel is closed when the peer is gone.
func (p *Pub) Attach(c *Conn) <-chan struct{} {
	s := &subscriber{conn: c, hwm: p.hwm, topics: map[string]int{}, wake: make(chan struct{}, 1), gone: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = c.Close()
		close(s.gone)
		return s.gone
	}
	p.subs[s] = struct{}{}
	p.tasks.Go(func() { s.write() })
	p.tasks.Go(func() {
		s.read()
		p.mu.Lock()
		delete(p.subs, s)
		p.mu.Unlock()
		close(s.gone)
		_ = c.Close()
	})
	return s.gone
}

// Send queues one message of at least one frame, of which the first is the
// topic. It never blocks on a peer and keeps none of the slices.
func (p *Pub) Send(frames ...[]byte) {
	if len(frames) == 0 {
		return
	}
	var encoded []byte
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.subs {
		if !s.wants(frames[0]) {
			continue
		}
		if encoded == nil {
			encoded = appendMessage(make([]byte, 0, encodedLen(frames)), frames)
		}
		if !s.push(encoded) {
			p.dropped.Add(1)
		}
	}
}

// Subscribers counts the peers with at least one subscription.
func (p *Pub) Subscribers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for s := range p.subs {
		if s.subscribed() {
			n++
		}
	}
	return n
}

// Dropped counts the messages dropped at the high-water mark, once per
// subscriber.
func (p *Pub) Dropped() uint64 { return p.dropped.Load() }

// Close drops what is still queued and disconnects everybody.
func (p *Pub) Close() error {
	p.cancel()
	p.mu.Lock()
	p.closed = true
	for s := range p.subs {
		s.conn.shut(true)
	}
	p.mu.Unlock()
	var err error
	if p.l != nil {
		err = p.l.Close()
	}
	p.tasks.Wait()
	return err
}

// subscriber is one peer of a Pub.
type subscriber struct {
	conn *Conn
	hwm  int
	wake chan struct{} // holds one token while queue may be non-empty
	gone chan struct{} // closed when the peer is gone

	mu      sync.Mutex
	topics  map[string]int // how often each prefix was asked for
	queue   [][]byte       // encoded messages, shared between subscribers
	pending int            // len(queue) and what write is working on
}

func (s *subscriber) wants(topic []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, all := s.topics[""]; all {
		return true
	}
	for t := range s.topics {
		if bytes.HasPrefix(topic, []byte(t)) {
			return true
		}
	}
	return false
}

func (s *subscriber) subscribed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.topics) > 0
}

// push reports false if the queue is full.
func (s *subscriber) push(encoded []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending >= s.hwm {
		return false
	}
	s.pending++
	s.queue = append(s.queue, encoded)
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return true
}

func (s *subscriber) write() {
	var batch [][]byte
	for {
		select {
		case <-s.wake:
		case <-s.conn.stop:
			return
		}
		s.mu.Lock()
		batch, s.queue = s.queue, batch[:0]
		s.mu.Unlock()
		for i, encoded := range batch {
			batch[i] = nil
			if s.conn.write(encoded) != nil {
				return
			}
			s.mu.Lock()
			s.pending--
			s.mu.Unlock()
		}
	}
}

// read follows the subscriptions until the connection ends.
func (s *subscriber) read() {
	for {
		it, err := s.conn.next()
		if err != nil {
			return
		}
		switch {
		case it.command == "SUBSCRIBE":
			s.change(it.body, 1)
		case it.command == "CANCEL":
			s.change(it.body, -1)
		case len(it.message) == 1 && len(it.message[0]) > 0 && it.message[0][0] == 1:
			s.change(it.message[0][1:], 1)
		case len(it.message) == 1 && len(it.message[0]) > 0 && it.message[0][0] == 0:
			s.change(it.message[0][1:], -1)
		}
	}
}

// change adds or takes back a subscription. One beyond the limits is ignored:
// the peer misses messages, which it must be ready for anyway.
func (s *subscriber) change(topic []byte, by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, known := s.topics[string(topic)]
	switch {
	case by < 0 && n <= 1:
		delete(s.topics, string(topic))
	case known:
		s.topics[string(topic)] = n + by
	case by > 0 && len(topic) <= maxTopicBytes && len(s.topics) < maxSubscriptions:
		s.topics[string(topic)] = 1
	}
}
