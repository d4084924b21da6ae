// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRouterAnswersEachPeer(t *testing.T) {
	tests := map[string]struct {
		identity string
		want     string
	}{
		"a peer with a name":        {"named", "named"},
		"a second with that name":   {"named", "\x00\x00\x00\x00\x01"},
		"a peer without a name":     {"", "\x00\x00\x00\x00\x02"},
		"another one without":       {"", "\x00\x00\x00\x00\x03"},
		"one that names itself odd": {"\x00\x00\x00\x00\x04", "\x00\x00\x00\x00\x04"},
	}
	order := []string{"a peer with a name", "a second with that name", "a peer without a name", "another one without", "one that names itself odd"}
	l := listenOn(t, "tcp://127.0.0.1:*", Options{Type: ROUTER})
	r := NewRouter(l)
	defer r.Close()
	peers := map[string]*Conn{}
	for _, name := range order {
		tc := tests[name]
		c := dial(t, l.Endpoint(), Options{Type: DEALER, Identity: []byte(tc.identity)})
		peers[name] = c
		if err := c.Send(nil, []byte(name)); err != nil {
			t.Fatal(err)
		}
		req, err := r.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tc.want, string(req.Identity)); diff != "" {
			t.Errorf("%s: identity: %s", name, diff)
		}
		if diff := cmp.Diff([]string{"", name}, stringsOf(req.Frames)); diff != "" {
			t.Error(diff)
		}
	}
	for name, c := range peers {
		if err := r.Send([]byte(tests[name].want), []byte(name), []byte("answer")); err != nil {
			t.Fatal(err)
		}
		got, err := c.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{name, "answer"}, stringsOf(got)); diff != "" {
			t.Error(diff)
		}
	}
}

func TestRouterUnknownPeer(t *testing.T) {
	l := listenOn(t, "tcp://127.0.0.1:*", Options{Type: ROUTER})
	r := NewRouter(l)
	c := dial(t, l.Endpoint(), Options{Type: DEALER, Identity: []byte("x")})
	if err := c.Send([]byte("hi")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Recv(t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	waitFor(t, func() bool { return errors.Is(r.Send([]byte("x"), []byte("answer")), ErrUnknownPeer) })
	_ = r.Close()
	if _, err := r.Recv(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
}

func TestRouterCloseWithRequestsWaiting(t *testing.T) {
	l := listenOn(t, "tcp://127.0.0.1:*", Options{Type: ROUTER})
	r := NewRouter(l)
	c := dial(t, l.Endpoint(), Options{Type: DEALER})
	for range 10 {
		if err := c.Send([]byte("nobody fetches this")); err != nil {
			t.Fatal(err)
		}
	}
	_ = r.Close()
	if _, err := c.Recv(); err == nil {
		t.Error("the peer is still connected after Close")
	}
}

func TestListenerIsNotHeldUp(t *testing.T) {
	l := listenOn(t, "tcp://127.0.0.1:*", Options{Type: PUB})
	e, err := ParseEndpoint(l.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	for range maxPending - 1 {
		nc, err := net.Dial("tcp", e.address())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
	}
	dial(t, l.Endpoint(), Options{Type: SUB})
	c, err := l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Accept(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want canceled", err)
	}
	_ = l.Close()
	if _, err := l.Accept(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
}

func TestListenerTellsWhomItRefused(t *testing.T) {
	refused := make(chan error, 1)
	l := listenOn(t, "tcp://127.0.0.1:*", Options{Type: PUB, Refused: func(_ net.Addr, err error) { refused <- err }})
	if _, err := Dial(t.Context(), l.Endpoint(), Options{Type: DEALER}); !errors.Is(err, ErrIncompatible) {
		t.Errorf("the dialling side got %v, want ErrIncompatible", err)
	}
	if err := <-refused; err == nil {
		t.Error("no reason was given")
	}
}
