// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bytesOf makes frames of strings.
func bytesOf(frames ...string) [][]byte {
	out := make([][]byte, len(frames))
	for i, f := range frames {
		out[i] = []byte(f)
	}
	return out
}

// stringsOf makes a message comparable.
func stringsOf(frames [][]byte) []string {
	out := make([]string, len(frames))
	for i, f := range frames {
		out[i] = string(f)
	}
	return out
}

// listenOn listens on a free loopback port until the test ends.
func listenOn(t *testing.T, endpoint string, opts Options) *Listener {
	t.Helper()
	l, err := Listen(endpoint, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func dial(t *testing.T, endpoint string, opts Options) *Conn {
	t.Helper()
	c, err := Dial(t.Context(), endpoint, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// pair connects two peers over loopback TCP.
func pair(t *testing.T, listening, dialling Options) (accepted, dialled *Conn) {
	t.Helper()
	l := listenOn(t, "tcp://127.0.0.1:*", listening)
	dialled = dial(t, l.Endpoint(), dialling)
	accepted, err := l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = accepted.Close() })
	return accepted, dialled
}

// pipe returns two ends of an in-memory connection whose writes do not wait
// for the reader, so that it may be used in a synctest bubble.
func pipe() (a, b net.Conn) {
	ab, ba := newStream(), newStream()
	return &pipeEnd{r: ba, w: ab}, &pipeEnd{r: ab, w: ba}
}

type pipeEnd struct {
	net.Conn // nil: the methods not defined here are not used
	r, w     *stream
}

func (p *pipeEnd) Read(b []byte) (int, error)         { return p.r.read(b) }
func (p *pipeEnd) Write(b []byte) (int, error)        { return p.w.write(b) }
func (p *pipeEnd) SetReadDeadline(t time.Time) error  { p.r.setDeadline(t); return nil }
func (p *pipeEnd) SetWriteDeadline(t time.Time) error { return nil }
func (p *pipeEnd) SetDeadline(t time.Time) error      { p.r.setDeadline(t); return nil }
func (p *pipeEnd) Close() error                       { p.r.close(net.ErrClosed); p.w.close(io.EOF); return nil }

// stream is an unbounded byte queue with a read deadline.
type stream struct {
	mu       sync.Mutex
	cond     *sync.Cond
	data     []byte
	err      error
	deadline time.Time
	timer    *time.Timer
}

func newStream() *stream {
	s := &stream{}
	s.cond = sync.NewCond(&s.mu)
	return s
}

func (s *stream) read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.err == net.ErrClosed:
			return 0, s.err
		case len(s.data) > 0:
			n := copy(b, s.data)
			s.data = s.data[n:]
			return n, nil
		case s.err != nil:
			return 0, s.err
		case !s.deadline.IsZero() && !time.Now().Before(s.deadline):
			return 0, os.ErrDeadlineExceeded
		}
		s.cond.Wait()
	}
}

func (s *stream) write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, io.ErrClosedPipe
	}
	s.data = append(s.data, b...)
	s.cond.Broadcast()
	return len(b), nil
}

func (s *stream) setDeadline(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deadline = t
	if s.timer != nil {
		s.timer.Stop()
	}
	s.timer = time.AfterFunc(time.Until(t), s.cond.Broadcast)
	s.cond.Broadcast()
}

func (s *stream) close(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	s.cond.Broadcast()
}

// over makes Dial use nc instead of the network.
func over(nc net.Conn) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) { return nc, nil }
}
