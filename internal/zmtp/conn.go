// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Conn is one connection to one peer, past its handshake. Recv must be called
// from one goroutine at a time, and by somebody: PINGs are answered and a
// silent peer is noticed inside it. All other methods are safe for concurrent
// use.
type Conn struct {
	opts  Options
	nc    net.Conn
	r     *reader
	minor byte // protocol minor version agreed on
	peer  metadata

	// readTimeout is 0 while the peer owes no traffic. Used by Recv's goroutine.
	readTimeout time.Duration

	closed    atomic.Bool
	closeOnce sync.Once
	stop      chan struct{}
	heartbeat sync.WaitGroup
}

// newConn does the handshake over nc, which it owns from here on.
func newConn(ctx context.Context, nc net.Conn, opts Options) (*Conn, error) {
	c := &Conn{opts: opts, nc: nc, stop: make(chan struct{})}
	c.r = newReader(deadlineReader{c}, opts)
	ctx, cancel := context.WithTimeout(ctx, opts.HandshakeTimeout)
	defer cancel()
	unhook := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	err := c.handshake()
	if !unhook() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = nc.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("handshake: %w", err)
	}
	if opts.HeartbeatInterval > 0 && c.minor >= 1 {
		c.readTimeout = opts.HeartbeatTimeout
		c.heartbeat.Go(c.ping)
	}
	return c, nil
}

func (c *Conn) handshake() error {
	ours := c.opts.minor - 1
	if _, err := c.nc.Write(greeting(ours)); err != nil {
		return err
	}
	theirs, err := readGreeting(c.r.buf)
	if err != nil {
		return err
	}
	c.minor = min(ours, theirs)
	me := metadata{socketType: c.opts.Type, identity: c.opts.Identity}
	if _, err := c.nc.Write(appendCommand(nil, "READY", me.encode())); err != nil {
		return err
	}
	it, err := c.r.next()
	if err != nil {
		return noEOF(err)
	}
	switch it.command {
	case "READY":
	case "ERROR":
		return fmt.Errorf("%w: peer refused: %s", ErrIncompatible, errorReason(it.body))
	default:
		return fmt.Errorf("%w: READY expected", ErrProtocol)
	}
	if c.peer, err = parseMetadata(it.body); err != nil {
		return err
	}
	if !slices.Contains(compatible[c.opts.Type], c.peer.socketType) {
		return fmt.Errorf("%w: %s cannot talk to socket type %.16q", ErrIncompatible, c.opts.Type, c.peer.socketType)
	}
	return nil
}

// errorReason renders the reason of an ERROR command, quoted and cut.
func errorReason(body []byte) string {
	if len(body) > 0 {
		body = body[1:]
	}
	return fmt.Sprintf("%.100q", body)
}

// deadlineReader reads from the transport under the connection's read timeout.
type deadlineReader struct{ c *Conn }

func (d deadlineReader) Read(p []byte) (int, error) {
	c := d.c
	if c.readTimeout > 0 {
		if err := c.nc.SetReadDeadline(time.Now().Add(c.readTimeout)); err != nil {
			return 0, err
		}
	}
	return c.nc.Read(p)
}

// PeerIdentity returns the identity the peer announced; it may be empty.
func (c *Conn) PeerIdentity() []byte { return slices.Clone(c.peer.identity) }

// RemoteAddr returns the transport address of the peer.
func (c *Conn) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }

// Recv returns the frames of the next message, which belong to the caller.
// After an error the connection is closed. io.EOF means that the peer closed
// it between two messages.
func (c *Conn) Recv() ([][]byte, error) {
	for {
		it, err := c.next()
		if err != nil {
			return nil, err
		}
		if it.command == "" {
			return it.message, nil
		}
	}
}

// next returns the next message or subscription command and deals with all
// other commands itself.
func (c *Conn) next() (item, error) {
	for {
		it, err := c.r.next()
		if err == nil {
			switch it.command {
			case "", "SUBSCRIBE", "CANCEL":
				return it, nil
			case "PING":
				err = c.pong(it.body)
			case "ERROR":
				err = fmt.Errorf("%w: peer reports: %s", ErrProtocol, errorReason(it.body))
			}
		}
		if err != nil {
			return item{}, c.fail("receive", err)
		}
	}
}

// Send writes one message. It blocks while the peer does not read, at most for
// the write timeout; after an error the connection is closed.
func (c *Conn) Send(frames ...[]byte) error {
	if len(frames) == 0 {
		return errors.New("zmtp: message without frames")
	}
	return c.write(appendMessage(make([]byte, 0, encodedLen(frames)), frames))
}

// Subscribe asks a PUB peer for messages whose first frame starts with topic.
func (c *Conn) Subscribe(topic []byte) error { return c.subscription("SUBSCRIBE", 1, topic) }

// Unsubscribe takes back one Subscribe of the same topic.
func (c *Conn) Unsubscribe(topic []byte) error { return c.subscription("CANCEL", 0, topic) }

// subscription uses the command of ZMTP 3.1, or the message form of 3.0.
func (c *Conn) subscription(command string, tag byte, topic []byte) error {
	if len(topic) > maxTopicBytes {
		return fmt.Errorf("%w: topic of %d bytes, at most %d allowed", ErrLimit, len(topic), maxTopicBytes)
	}
	if c.minor >= 1 {
		return c.write(appendCommand(nil, command, topic))
	}
	return c.write(appendFrame(nil, 0, append([]byte{tag}, topic...)))
}

// write hands one encoded unit to the transport in a single call, which keeps
// concurrent writers apart.
func (c *Conn) write(b []byte) error {
	err := c.nc.SetWriteDeadline(time.Now().Add(c.opts.WriteTimeout))
	if err == nil {
		_, err = c.nc.Write(b)
	}
	if err != nil {
		return c.fail("send", err)
	}
	return nil
}

// pong answers a PING: 2 bytes of time to live, then up to 16 bytes of context.
func (c *Conn) pong(body []byte) error {
	if len(body) < 2 || len(body) > 2+16 {
		return fmt.Errorf("%w: PING of %d bytes", ErrProtocol, len(body))
	}
	return c.write(appendCommand(nil, "PONG", body[2:]))
}

func (c *Conn) ping() {
	ttl := min(c.opts.HeartbeatTimeout/(100*time.Millisecond), 1<<16-1)
	ping := appendCommand(nil, "PING", binary.BigEndian.AppendUint16(nil, uint16(ttl)))
	ticker := time.NewTicker(c.opts.HeartbeatInterval)
	defer ticker.Stop()
	for {
		select {
		case <-c.stop:
			return
		case <-ticker.C:
			if c.write(ping) != nil {
				return
			}
		}
	}
}

// fail closes the connection because of err and gives the error to return.
func (c *Conn) fail(doing string, err error) error {
	if c.closed.Load() {
		return ErrClosed
	}
	c.shut(false)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if doing == "receive" {
			return fmt.Errorf("%w for %v", ErrSilent, c.readTimeout)
		}
		return fmt.Errorf("zmtp: %s: peer does not read: %w", doing, err)
	}
	return fmt.Errorf("zmtp: %s: %w", doing, err)
}

func (c *Conn) shut(local bool) {
	c.closeOnce.Do(func() {
		c.closed.Store(local)
		close(c.stop)
		_ = c.nc.Close()
	})
}

// Close ends the connection at once; what the transport has not sent yet may
// be lost. A blocked Recv or Send returns ErrClosed.
func (c *Conn) Close() error {
	c.shut(true)
	c.heartbeat.Wait()
	return nil
}
