// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// maxPending is how many peers may be in their handshake or waiting for
// Accept; further ones wait in the system's backlog.
const maxPending = 64

// Listener accepts peers. Handshakes run beside each other, so that one slow
// peer holds nobody up.
type Listener struct {
	opts     Options
	ln       net.Listener
	endpoint Endpoint
	ready    chan *Conn
	slots    chan struct{}

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	tasks  sync.WaitGroup
}

// Listen binds endpoint, tcp://host:port or ipc://path, where a host of * is
// every address and a port of * or 0 any free one.
func Listen(endpoint string, opts Options) (*Listener, error) {
	e, err := ParseEndpoint(endpoint)
	if err != nil {
		return nil, fmt.Errorf("zmtp: listen: %w", err)
	}
	ln, err := listen(e)
	if err != nil {
		return nil, fmt.Errorf("zmtp: %w", err)
	}
	if a, ok := ln.Addr().(*net.TCPAddr); ok {
		e.Port = a.Port
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &Listener{
		opts:     opts.withDefaults(),
		ln:       ln,
		endpoint: e,
		ready:    make(chan *Conn),
		slots:    make(chan struct{}, maxPending),
		ctx:      ctx,
		cancel:   cancel,
	}
	l.tasks.Go(l.serve)
	return l, nil
}

// Endpoint returns what was bound, with the real port.
func (l *Listener) Endpoint() string { return l.endpoint.String() }

// Accept returns the next peer that finished its handshake. The connection
// belongs to the caller and outlives the listener.
func (l *Listener) Accept(ctx context.Context) (*Conn, error) {
	select {
	case c := <-l.ready:
		return c, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.ctx.Done():
		return nil, ErrClosed
	}
}

// Close stops listening and drops the peers that were not accepted.
func (l *Listener) Close() error {
	l.cancel()
	err := l.ln.Close()
	l.tasks.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (l *Listener) serve() {
	for l.ctx.Err() == nil {
		select {
		case l.slots <- struct{}{}:
		case <-l.ctx.Done():
			return
		}
		nc, err := l.ln.Accept()
		if err != nil {
			<-l.slots
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of file descriptors, or a peer that gave up: try again.
			l.pause(50 * time.Millisecond)
			continue
		}
		l.tasks.Go(func() {
			defer func() { <-l.slots }()
			l.admit(nc)
		})
	}
}

func (l *Listener) admit(nc net.Conn) {
	c, err := newConn(l.ctx, nc, l.opts)
	if err != nil {
		if l.opts.Refused != nil && l.ctx.Err() == nil {
			l.opts.Refused(nc.RemoteAddr(), err)
		}
		return
	}
	select {
	case l.ready <- c:
	case <-l.ctx.Done():
		_ = c.Close()
	}
}

func (l *Listener) pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.ctx.Done():
	}
}
