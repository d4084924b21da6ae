// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSubscribeInEachVersion(t *testing.T) {
	tests := map[string]struct{ pub, sub byte }{
		"3.1 with 3.1": {2, 2},
		"3.0 with 3.1": {1, 2},
		"3.1 with 3.0": {2, 1},
		"3.0 with 3.0": {1, 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			l := listenOn(t, "tcp://127.0.0.1:*", Options{Type: PUB, minor: tc.pub})
			p := NewPub(l, PubOptions{})
			defer p.Close()
			c := dial(t, l.Endpoint(), Options{Type: SUB, minor: tc.sub})
			if err := c.Subscribe([]byte("a")); err != nil {
				t.Fatal(err)
			}
			waitFor(t, func() bool { return p.Subscribers() == 1 })
			p.Send([]byte("b"), []byte("not wanted"))
			p.Send([]byte("ab"), []byte("wanted"), nil)
			got, err := c.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"ab", "wanted", ""}, stringsOf(got)); diff != "" {
				t.Error(diff)
			}
			if err := c.Unsubscribe([]byte("a")); err != nil {
				t.Fatal(err)
			}
			waitFor(t, func() bool { return p.Subscribers() == 0 })
		})
	}
}

// waitFor polls a condition that other goroutines bring about.
func waitFor(t *testing.T, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for !cond() {
		select {
		case <-ctx.Done():
			t.Fatal("the condition did not come true")
		case <-time.After(time.Millisecond):
		}
	}
}

func TestUnixSocketIsTakenOver(t *testing.T) {
	endpoint := "ipc://" + filepath.Join(t.TempDir(), "s")
	e, err := ParseEndpoint(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: e.Path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	_ = stale.Close()
	l := listenOn(t, endpoint, Options{Type: ROUTER})
	if _, err := Listen(endpoint, Options{Type: ROUTER}); err == nil {
		t.Error("a socket in use was taken over")
	}
	dial(t, l.Endpoint(), Options{Type: DEALER})
}

func TestHandshakeRefuses(t *testing.T) {
	ready := func(kind SocketType) string {
		return string(greeting(1)) + string(appendCommand(nil, "READY", metadata{socketType: kind}.encode()))
	}
	tests := map[string]struct {
		peer    string
		wantErr error
		wantIn  string
	}{
		"a SUB peer":              {ready("SUB"), ErrIncompatible, "cannot talk to socket type"},
		"a peer without a type":   {string(greeting(1)) + string(appendCommand(nil, "READY", nil)), ErrIncompatible, "cannot talk"},
		"a peer that refuses":     {string(greeting(1)) + string(appendCommand(nil, "ERROR", []byte("\x07go\naway"))), ErrIncompatible, `"go\naway"`},
		"another command":         {string(greeting(1)) + string(appendCommand(nil, "HELLO", nil)), ErrProtocol, "READY expected"},
		"a message":               {string(greeting(1)) + string(appendFrame(nil, 0, []byte("x"))), ErrProtocol, "READY expected"},
		"an end after greeting":   {string(greeting(1)), io.ErrUnexpectedEOF, ""},
		"an end without greeting": {"", io.ErrUnexpectedEOF, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			ours, theirs := pipe()
			_, _ = theirs.Write([]byte(tc.peer))
			_ = theirs.Close()
			_, err := Dial(t.Context(), "tcp://127.0.0.1:1", Options{Type: SUB, Dial: over(&lenientWrites{ours})})
			if !errors.Is(err, tc.wantErr) || !strings.Contains(err.Error(), tc.wantIn) {
				t.Errorf("got %v, want %v with %q", err, tc.wantErr, tc.wantIn)
			}
		})
	}
}

// lenientWrites takes writes although the peer has closed, as a kernel does.
type lenientWrites struct{ net.Conn }

func (l *lenientWrites) Write(b []byte) (int, error) { return len(b), nil }

func TestHandshakeTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := pipe()
		defer theirs.Close()
		start := time.Now()
		_, err := Dial(t.Context(), "tcp://127.0.0.1:1", Options{Type: SUB, Dial: over(ours)})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want a deadline", err)
		}
		if got := time.Since(start); got != 5*time.Second {
			t.Errorf("gave up after %v, want 5s", got)
		}
	})
}

func TestDialEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := pipe()
		defer theirs.Close()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := Dial(ctx, "tcp://127.0.0.1:1", Options{Type: SUB, Dial: over(ours)}); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want canceled", err)
		}
	})
}

// bubblePair connects a SUB with a scripted PUB inside a synctest bubble.
func bubblePair(t *testing.T, opts Options) (c *Conn, peer net.Conn) {
	t.Helper()
	ours, peer := pipe()
	_, _ = peer.Write(greeting(1))
	_, _ = peer.Write(appendCommand(nil, "READY", metadata{socketType: PUB}.encode()))
	opts.Type, opts.Dial = SUB, over(ours)
	c, err := Dial(t.Context(), "tcp://127.0.0.1:1", opts)
	if err != nil {
		t.Fatal(err)
	}
	return c, peer
}

func TestSilentPeerIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, peer := bubblePair(t, Options{})
		defer peer.Close()
		// Traffic of any kind postpones the verdict.
		time.AfterFunc(14*time.Second, func() { _, _ = peer.Write(appendCommand(nil, "PONG", nil)) })
		start := time.Now()
		_, err := c.Recv()
		if !errors.Is(err, ErrSilent) {
			t.Errorf("got %v, want ErrSilent", err)
		}
		if got := time.Since(start); got != 29*time.Second {
			t.Errorf("noticed after %v, want 14s+15s", got)
		}
		_ = c.Close()
	})
}

func TestHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, peer := bubblePair(t, Options{})
		r := newReader(peer, Options{}.withDefaults())
		if _, err := readGreeting(r.buf); err != nil {
			t.Fatal(err)
		}
		if it, err := r.next(); err != nil || it.command != "READY" {
			t.Fatalf("got %+v, %v, want READY", it, err)
		}
		start := time.Now()
		it, err := r.next()
		if err != nil || it.command != "PING" {
			t.Fatalf("got %+v, %v, want a PING", it, err)
		}
		if got := time.Since(start); got != 5*time.Second {
			t.Errorf("first PING after %v, want 5s", got)
		}
		if diff := cmp.Diff([]byte{0, 150}, it.body); diff != "" {
			t.Errorf("time to live in tenths of a second: %s", diff)
		}
		done := make(chan error)
		go func() {
			_, err := c.Recv()
			done <- err
		}()
		_, _ = peer.Write(appendCommand(nil, "PING", []byte("\x00\x10context")))
		it, err = r.next()
		if err != nil || it.command != "PONG" || string(it.body) != "context" {
			t.Errorf("got %+v, %v, want a PONG with the context", it, err)
		}
		_ = c.Close()
		if err := <-done; !errors.Is(err, ErrClosed) {
			t.Errorf("Recv got %v, want ErrClosed", err)
		}
		_ = peer.Close()
	})
}

func TestOldPeersAreNotPinged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, peer := pipe()
		_, _ = peer.Write(greeting(0))
		_, _ = peer.Write(appendCommand(nil, "READY", metadata{socketType: PUB}.encode()))
		c, err := Dial(t.Context(), "tcp://127.0.0.1:1", Options{Type: SUB, Dial: over(ours)})
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Hour, func() { _, _ = peer.Write(appendMessage(nil, bytesOf("late"))) })
		if got, err := c.Recv(); err != nil || string(got[0]) != "late" {
			t.Errorf("got %q, %v, want the message after an hour", got, err)
		}
		_ = c.Close()
		_ = peer.Close()
	})
}

func TestBadCommandEndsTheConnection(t *testing.T) {
	tests := map[string][]byte{
		"a PING without time to live":  appendCommand(nil, "PING", []byte{1}),
		"a PING with too much context": appendCommand(nil, "PING", make([]byte, 19)),
		"an ERROR":                     appendCommand(nil, "ERROR", []byte("\x03bad")),
		"reserved flags":               {0xFF, 0xFF},
	}
	for name, stream := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, peer := bubblePair(t, Options{})
				_, _ = peer.Write(stream)
				if _, err := c.Recv(); !errors.Is(err, ErrProtocol) {
					t.Errorf("got %v, want ErrProtocol", err)
				}
				if err := c.Send([]byte("x")); err == nil {
					t.Error("Send worked after a protocol violation")
				}
				_ = c.Close()
				_ = peer.Close()
			})
		})
	}
}

func TestPeerGone(t *testing.T) {
	accepted, dialled := pair(t, Options{Type: ROUTER}, Options{Type: DEALER})
	_ = accepted.Close()
	if _, err := dialled.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want EOF", err)
	}
}

func TestSendToPeerThatDoesNotRead(t *testing.T) {
	_, dialled := pair(t, Options{Type: ROUTER}, Options{Type: DEALER, WriteTimeout: time.Millisecond})
	big := make([]byte, 16<<20)
	var err error
	for range 64 {
		if err = dialled.Send(big); err != nil {
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), "peer does not read") {
		t.Errorf("got %v, want a timeout", err)
	}
}

func TestSendNothing(t *testing.T) {
	_, dialled := pair(t, Options{Type: ROUTER}, Options{Type: DEALER})
	if err := dialled.Send(); err == nil {
		t.Error("a message without frames was sent")
	}
	if err := dialled.Subscribe(make([]byte, maxTopicBytes+1)); !errors.Is(err, ErrLimit) {
		t.Errorf("got %v for an endless topic, want ErrLimit", err)
	}
}

func TestParseEndpoint(t *testing.T) {
	tests := map[string]struct {
		in      string
		want    Endpoint
		wantErr string
	}{
		"a TCP address":         {"tcp://10.0.0.1:5557", Endpoint{Network: "tcp", Host: "10.0.0.1", Port: 5557}, ""},
		"an IPv6 address":       {"tcp://[::1]:5557", Endpoint{Network: "tcp", Host: "::1", Port: 5557}, ""},
		"wildcards":             {"tcp://*:*", Endpoint{Network: "tcp"}, ""},
		"a Unix socket":         {"ipc:///tmp/s", Endpoint{Network: "unix", Path: "/tmp/s"}, ""},
		"no scheme":             {"127.0.0.1:1", Endpoint{}, "tcp://host:port or ipc://path expected"},
		"another transport":     {"inproc://x", Endpoint{}, "transport tcp or ipc expected"},
		"no port":               {"tcp://host", Endpoint{}, "missing port"},
		"a port out of range":   {"tcp://host:65536", Endpoint{}, "port from 0 to 65535"},
		"a path that is absent": {"ipc://", Endpoint{}, "the path is missing"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ParseEndpoint(tc.in)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("got %v, want %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
			if got.String() != strings.ReplaceAll(tc.in, ":*", ":0") {
				t.Errorf("String gives %q", got.String())
			}
		})
	}
}

func TestEndpointOfRank(t *testing.T) {
	tests := map[string]struct {
		endpoint string
		rank     int
		want     string
	}{
		"rank 0":                    {"tcp://h:5557", 0, "tcp://h:5557"},
		"rank 3":                    {"tcp://h:5557", 3, "tcp://h:5560"},
		"a Unix socket has rank 0":  {"ipc:///s", 0, "ipc:///s"},
		"a Unix socket has no more": {"ipc:///s", 1, ""},
		"beyond the last port":      {"tcp://h:65535", 1, ""},
		"from a free port":          {"tcp://h:*", 1, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			e, err := ParseEndpoint(tc.endpoint)
			if err != nil {
				t.Fatal(err)
			}
			got, err := e.Shift(tc.rank)
			if (err != nil) != (tc.want == "") || err == nil && got.String() != tc.want {
				t.Errorf("got %v, %v, want %q", got, err, tc.want)
			}
		})
	}
}

func TestDialWildcard(t *testing.T) {
	if _, err := Dial(t.Context(), "tcp://*:1", Options{Type: SUB}); err == nil {
		t.Error("a wildcard was dialled")
	}
}
