// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tinylib/msgp/msgp"

	"github.com/inferencecache/inference-cache/internal/zmtp"
)

// python finds an interpreter that has libzmq and msgpack. Without one the
// test is skipped, or fails inside `make test-peers`.
func python(t *testing.T) string {
	t.Helper()
	var reason []byte
	for _, name := range []string{"python3", "/usr/bin/python3"} {
		out, err := exec.CommandContext(t.Context(), name, "-c", "import zmq, msgpack").CombinedOutput()
		if err == nil {
			return name
		}
		reason = append(reason, fmt.Sprintf("%s: %v %.200s\n", name, err, out)...)
	}
	message := fmt.Sprintf("no Python with zmq and msgpack (Debian: python3-zmq python3-msgpack):\n%s", reason)
	if os.Getenv("INFERENCECACHE_PEERS") != "" {
		t.Fatal(message)
	}
	t.Skip(message)
	return ""
}

// peer is a running zmq_peer.py.
type peer struct {
	t        *testing.T
	cmd      *exec.Cmd
	in       io.WriteCloser
	out      *bufio.Scanner
	endpoint string
}

func start(t *testing.T, args ...string) *peer {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), python(t), append([]string{"zmq_peer.py"}, args...)...)
	p := &peer{t: t, cmd: cmd}
	var err error
	if p.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	p.out.Buffer(nil, 32<<20)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	p.line(&p.endpoint)
	return p
}

// kill ends the peer without a farewell.
func (p *peer) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func (p *peer) line(v any) {
	p.t.Helper()
	if !p.out.Scan() {
		p.t.Fatalf("the peer ended: %v", p.out.Err())
	}
	if err := json.Unmarshal(p.out.Bytes(), v); err != nil {
		p.t.Fatal(err)
	}
}

// received returns the next message the peer printed.
func (p *peer) received() []string {
	p.t.Helper()
	var frames []string
	p.line(&frames)
	for i, f := range frames {
		b, err := hex.DecodeString(f)
		if err != nil {
			p.t.Fatal(err)
		}
		frames[i] = string(b)
	}
	return frames
}

func (p *peer) publish(topic string, seq, size int) {
	p.t.Helper()
	if _, err := fmt.Fprintf(p.in, "%s %d %d\n", topic, seq, size); err != nil {
		p.t.Fatal(err)
	}
}

func be(n uint64) string { return string(binary.BigEndian.AppendUint64(nil, n)) }

func dial(t *testing.T, endpoint string, kind zmtp.SocketType) *zmtp.Conn {
	t.Helper()
	c, err := zmtp.Dial(t.Context(), endpoint, zmtp.Options{Type: kind})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func listen(t *testing.T, kind zmtp.SocketType) *zmtp.Listener {
	t.Helper()
	l, err := zmtp.Listen("tcp://127.0.0.1:*", zmtp.Options{Type: kind})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// recv returns topic, sequence and payload size of the next live message.
func recv(t *testing.T, c *zmtp.Conn) (topic string, seq uint64, size int) {
	t.Helper()
	m, err := c.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if len(m) != 3 || len(m[1]) != 8 {
		t.Fatalf("got %d frames, want topic, sequence and payload", len(m))
	}
	if n, _, err := msgp.ReadArrayHeaderBytes(m[2]); err != nil || n != 3 {
		t.Fatalf("payload is an array of %d, %v, want 3", n, err)
	}
	return string(m[0]), binary.BigEndian.Uint64(m[1]), len(m[2])
}

func subscribe(t *testing.T, c *zmtp.Conn, topic string) {
	t.Helper()
	if err := c.Subscribe([]byte(topic)); err != nil {
		t.Fatal(err)
	}
}

func TestOurSubWithLibzmqPub(t *testing.T) {
	// XPUB shows the subscription, so that nothing is sent before it.
	p := start(t, "pub", "tcp://127.0.0.1:*", "xpub")
	c := dial(t, p.endpoint, zmtp.SUB)
	subscribe(t, c, "kv")
	if diff := cmp.Diff([]string{"\x01kv"}, p.received()); diff != "" {
		t.Error(diff)
	}
	sizes := []int{0, 255, 256, 70_000, 5 << 20}
	for i, size := range sizes {
		p.publish("other", i, 0)
		p.publish("kv@a", i, size)
	}
	for i, size := range sizes {
		topic, seq, got := recv(t, c)
		if topic != "kv@a" || seq != uint64(i) || got < size {
			t.Errorf("got %s %d of %d bytes, want kv@a %d of %d", topic, seq, got, i, size)
		}
	}
}

func TestLibzmqPubConnectsToUs(t *testing.T) {
	l := listen(t, zmtp.SUB)
	p := start(t, "pub", l.Endpoint(), "connect")
	c, err := l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	subscribe(t, c, "")
	// The peer learns of the subscription by and by, and until then it drops.
	done := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for seq := 0; ; seq++ {
			select {
			case <-done:
				return
			case <-tick.C:
				_, _ = fmt.Fprintf(p.in, "t %d 0\n", seq)
			}
		}
	}()
	_, first, _ := recv(t, c)
	_, second, _ := recv(t, c)
	close(done)
	<-stopped
	if second != first+1 {
		t.Errorf("got %d after %d", second, first)
	}
}

func TestOurDealerWithLibzmqRouter(t *testing.T) {
	const first, total = 3, 5000
	for layout, wantFrames := range map[string]int{"old": 3, "new": 4} {
		t.Run(layout, func(t *testing.T) {
			p := start(t, "router", "tcp://127.0.0.1:*", layout, strconv.Itoa(total))
			c := dial(t, p.endpoint, zmtp.DEALER)
			if err := c.Send(nil, []byte(be(first))); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"", be(first)}, p.received()); diff != "" {
				t.Errorf("what the ROUTER saw: %s", diff)
			}
			for want := uint64(first); ; want++ {
				m, err := c.Recv()
				if err != nil {
					t.Fatal(err)
				}
				if len(m) != wantFrames {
					t.Fatalf("got %d frames, want %d", len(m), wantFrames)
				}
				seq := binary.BigEndian.Uint64(m[len(m)-2])
				if len(m[len(m)-1]) == 0 {
					if seq != 1<<64-1 || want != total {
						t.Errorf("end marker %d after %d batches", seq, want)
					}
					return
				}
				if seq != want {
					t.Fatalf("got %d, want %d", seq, want)
				}
			}
		})
	}
}

func TestLibzmqSubWithOurPub(t *testing.T) {
	for _, heartbeatMillis := range []string{"0", "20"} {
		t.Run("heartbeat "+heartbeatMillis, func(t *testing.T) {
			l := listen(t, zmtp.PUB)
			pub := zmtp.NewPub(l, zmtp.PubOptions{})
			defer pub.Close()
			p := start(t, "sub", l.Endpoint(), "kv", heartbeatMillis)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			for pub.Subscribers() == 0 {
				if ctx.Err() != nil {
					t.Fatal("no subscription arrived")
				}
				time.Sleep(time.Millisecond)
			}
			if heartbeatMillis != "0" {
				// Outlive a heartbeat that nobody answers.
				time.Sleep(100 * time.Millisecond)
			}
			big := string(make([]byte, 100_000))
			pub.Send([]byte("other"), []byte(be(0)), []byte("x"))
			pub.Send([]byte("kv@a"), []byte(be(1)), []byte("x"))
			pub.Send([]byte("kv@a"), []byte(be(2)), []byte(big))
			for _, want := range [][]string{{"kv@a", be(1), "x"}, {"kv@a", be(2), big}} {
				if diff := cmp.Diff(want, p.received()); diff != "" {
					t.Errorf("%.300s", diff)
				}
			}
		})
	}
}

func TestLibzmqDealerWithOurRouter(t *testing.T) {
	l := listen(t, zmtp.ROUTER)
	router := zmtp.NewRouter(l)
	defer router.Close()
	p := start(t, "dealer", l.Endpoint(), "7")
	req, err := router.Recv(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := make([]string, len(req.Frames))
	for i, f := range req.Frames {
		got[i] = string(f)
	}
	if diff := cmp.Diff([]string{"", be(7)}, got); diff != "" {
		t.Error(diff)
	}
	answers := [][]string{{"", "kv", be(7), "payload"}, {"", "", be(1<<64 - 1), ""}}
	for _, frames := range answers {
		var raw [][]byte
		for _, f := range frames {
			raw = append(raw, []byte(f))
		}
		if err := router.Send(req.Identity, raw...); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range answers {
		if diff := cmp.Diff(want, p.received()); diff != "" {
			t.Error(diff)
		}
	}
}

func TestLibzmqPubKilledAndRestarted(t *testing.T) {
	p := start(t, "pub", "tcp://127.0.0.1:*", "xpub")
	endpoint := p.endpoint
	for restarts := range 3 {
		c := dial(t, endpoint, zmtp.SUB)
		subscribe(t, c, "")
		p.received()
		p.publish("t", restarts, 0)
		if _, seq, _ := recv(t, c); seq != uint64(restarts) {
			t.Errorf("got %d, want %d", seq, restarts)
		}
		p.kill()
		if _, err := c.Recv(); err == nil {
			t.Fatal("a killed peer went unnoticed")
		}
		if _, err := zmtp.Dial(t.Context(), endpoint, zmtp.Options{Type: zmtp.SUB}); err == nil {
			t.Fatal("something answers for the killed peer")
		}
		p = start(t, "pub", endpoint, "xpub")
	}
}
