// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

// bubbleSub attaches a subscriber to p over memory.
func bubbleSub(t *testing.T, p *Pub, topics ...string) *Conn {
	t.Helper()
	a, b := pipe()
	type result struct {
		c   *Conn
		err error
	}
	accepted := make(chan result)
	go func() {
		c, err := newConn(t.Context(), a, Options{Type: PUB}.withDefaults())
		accepted <- result{c, err}
	}()
	c, err := newConn(t.Context(), b, Options{Type: SUB}.withDefaults())
	if err != nil {
		t.Fatal(err)
	}
	r := <-accepted
	if r.err != nil {
		t.Fatal(r.err)
	}
	p.Attach(r.c)
	for _, topic := range topics {
		if err := c.Subscribe([]byte(topic)); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Wait()
	return c
}

func recvAll(t *testing.T, c *Conn, n int) []string {
	t.Helper()
	var got []string
	for range n {
		m, err := c.Recv()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(m[0]))
	}
	return got
}

func TestPubFiltersByPrefix(t *testing.T) {
	sent := []string{"kv@a@m", "kv@b@m", "other", ""}
	tests := map[string]struct {
		topics []string
		want   []string
	}{
		"everything":        {[]string{""}, sent},
		"a prefix":          {[]string{"kv@"}, sent[:2]},
		"two prefixes":      {[]string{"kv@a", "oth"}, []string{"kv@a@m", "other"}},
		"overlapping":       {[]string{"kv@a", "kv@"}, sent[:2]},
		"a longer topic":    {[]string{"kv@a@m2", "other"}, []string{"other"}},
		"asked for 2 times": {[]string{"other", "other"}, []string{"other"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := NewPub(nil, PubOptions{})
				c := bubbleSub(t, p, tc.topics...)
				for _, topic := range sent {
					p.Send([]byte(topic))
				}
				if diff := cmp.Diff(tc.want, recvAll(t, c, len(tc.want))); diff != "" {
					t.Error(diff)
				}
				_ = p.Close()
				if m, err := c.Recv(); err == nil {
					t.Errorf("got %q beyond what was asked for", m)
				}
				_ = c.Close()
			})
		})
	}
}

func TestPubSubscriptionIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPub(nil, PubOptions{})
		defer p.Close()
		c := bubbleSub(t, p, "a", "a")
		defer c.Close()
		_ = c.Unsubscribe([]byte("a"))
		_ = c.Unsubscribe([]byte("never asked for"))
		synctest.Wait()
		if got := p.Subscribers(); got != 1 {
			t.Errorf("%d subscribers after one of two was taken back, want 1", got)
		}
		_ = c.Unsubscribe([]byte("a"))
		synctest.Wait()
		if got := p.Subscribers(); got != 0 {
			t.Errorf("%d subscribers after both were taken back, want 0", got)
		}
	})
}

func TestPubLimitsSubscriptions(t *testing.T) {
	s := &subscriber{topics: map[string]int{}}
	for i := range 2 * maxSubscriptions {
		s.change([]byte(fmt.Sprint(i)), 1)
	}
	s.change(make([]byte, maxTopicBytes+1), 1)
	if got := len(s.topics); got != maxSubscriptions {
		t.Errorf("%d topics are kept, want %d", got, maxSubscriptions)
	}
}

func TestPubDropsForTheSlowAlone(t *testing.T) {
	const hwm, total = 10, 2000
	l := listenOn(t, "tcp://127.0.0.1:*", Options{Type: PUB})
	p := NewPub(l, PubOptions{HighWaterMark: hwm})
	defer p.Close()
	slow, fast := dial(t, l.Endpoint(), Options{Type: SUB}), dial(t, l.Endpoint(), Options{Type: SUB})
	for _, c := range []*Conn{slow, fast} {
		if err := c.Subscribe(nil); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, func() bool { return p.Subscribers() == 2 })
	payload := make([]byte, 64<<10)
	for i := range total {
		p.Send([]byte(fmt.Sprint(i)), payload)
		m, err := fast.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if string(m[0]) != fmt.Sprint(i) {
			t.Fatalf("the reading subscriber got %s, want %d", m[0], i)
		}
	}
	if p.Dropped() == 0 {
		t.Error("nothing was dropped for a subscriber that never read")
	}
	if m, err := slow.Recv(); err != nil || string(m[0]) != "0" {
		t.Errorf("the slow subscriber got %.10q, %v, want the oldest message", m, err)
	}
}

func TestPubForgetsLostSubscribers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPub(nil, PubOptions{})
		c := bubbleSub(t, p, "")
		_ = c.Close()
		synctest.Wait()
		if got := p.Subscribers(); got != 0 {
			t.Errorf("%d subscribers, want 0", got)
		}
		p.Send([]byte("to nobody"))
		p.Send()
		_ = p.Close()
		a, b := pipe()
		go func() { _, _ = newConn(t.Context(), b, Options{Type: SUB, HeartbeatInterval: -1}.withDefaults()) }()
		late, err := newConn(t.Context(), a, Options{Type: PUB}.withDefaults())
		if err != nil {
			t.Fatal(err)
		}
		<-p.Attach(late)
		if _, err := late.Recv(); !errors.Is(err, ErrClosed) {
			t.Errorf("a peer attached after Close is open: %v", err)
		}
		_ = b.Close()
	})
}
