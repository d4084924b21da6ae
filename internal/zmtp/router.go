// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
)

// Request is one message a Router received.
type Request struct {
	// Identity names the peer; Send takes it back.
	Identity []byte
	// Frames of the message, without the identity.
	Frames [][]byte
}

// Router receives messages from many peers and answers each by its identity.
type Router struct {
	l        *Listener
	requests chan Request
	tasks    sync.WaitGroup
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc

	mu    sync.Mutex
	last  uint32 // number of the last identity we gave
	peers map[string]*Conn
}

// NewRouter serves the peers that l accepts and owns l from here on.
func NewRouter(l *Listener) *Router {
	r := &Router{l: l, requests: make(chan Request), peers: map[string]*Conn{}}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.tasks.Go(func() {
		for {
			c, err := l.Accept(r.ctx)
			if err != nil {
				return
			}
			identity := r.join(c)
			r.tasks.Go(func() { r.read(identity, c) })
		}
	})
	return r
}

// Recv returns the next request. A peer whose request is not fetched is not
// read any further.
func (r *Router) Recv(ctx context.Context) (Request, error) {
	select {
	case req := <-r.requests:
		return req, nil
	case <-ctx.Done():
		return Request{}, ctx.Err()
	case <-r.ctx.Done():
		return Request{}, ErrClosed
	}
}

// Send writes one message to a peer. It blocks while that peer does not read,
// at most for the write timeout.
func (r *Router) Send(identity []byte, frames ...[]byte) error {
	r.mu.Lock()
	c := r.peers[string(identity)]
	r.mu.Unlock()
	if c == nil {
		return ErrUnknownPeer
	}
	if err := c.Send(frames...); err != nil {
		return fmt.Errorf("reply: %w", err)
	}
	return nil
}

// Close disconnects everybody.
func (r *Router) Close() error {
	r.cancel()
	err := r.l.Close()
	r.mu.Lock()
	for _, c := range r.peers {
		c.shut(true)
	}
	r.mu.Unlock()
	r.tasks.Wait()
	return err
}

// join registers a peer under its own identity, or under a fresh one (a zero
// byte and a number, as libzmq does) if it has none or that name is taken.
func (r *Router) join(c *Conn) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	identity := string(c.peer.identity)
	for identity == "" || r.peers[identity] != nil {
		r.last++
		identity = string(binary.BigEndian.AppendUint32([]byte{0}, r.last))
	}
	r.peers[identity] = c
	if r.ctx.Err() != nil {
		c.shut(true)
	}
	return identity
}

func (r *Router) read(identity string, c *Conn) {
	defer func() {
		r.mu.Lock()
		delete(r.peers, identity)
		r.mu.Unlock()
		_ = c.Close()
	}()
	for {
		frames, err := c.Recv()
		if err != nil {
			return
		}
		select {
		case r.requests <- Request{Identity: []byte(identity), Frames: frames}:
		case <-r.ctx.Done():
			return
		}
	}
}
