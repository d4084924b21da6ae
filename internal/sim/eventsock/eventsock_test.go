// SPDX-License-Identifier: Apache-2.0

package eventsock

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/inferencecache/inference-cache/internal/zmtp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, options Options) *Socket {
	t.Helper()
	s, err := Open(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// frames reads one message as text, with sequence numbers in decimal.
func frames(t *testing.T, conn *zmtp.Conn) string {
	t.Helper()
	message, err := conn.Recv()
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, frame := range message {
		if len(frame) == 8 {
			text += fmt.Sprintf("[%d]", int64(binary.BigEndian.Uint64(frame)))
		} else {
			text += fmt.Sprintf("[%s]", frame)
		}
	}
	return text
}

func subscribe(t *testing.T, s *Socket) *zmtp.Conn {
	t.Helper()
	conn, err := zmtp.Dial(t.Context(), s.Endpoint(), zmtp.Options{Type: zmtp.SUB})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.Subscribe(nil); err != nil {
		t.Fatal(err)
	}
	waitForSubscriber(t, s)
	return conn
}

func waitForSubscriber(t *testing.T, s *Socket) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for s.Subscribers() == 0 {
		if ctx.Err() != nil {
			t.Fatal("no subscriber arrived")
		}
		time.Sleep(time.Millisecond)
	}
}

func replay(t *testing.T, s *Socket, from uint64) []string {
	t.Helper()
	conn, err := zmtp.Dial(t.Context(), s.ReplayEndpoint(), zmtp.Options{Type: zmtp.DEALER})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.Send([]byte("ignored")); err != nil {
		t.Fatal(err)
	}
	if err := conn.Send(nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		t.Fatal(err)
	}
	var messages []string
	for {
		message := frames(t, conn)
		messages = append(messages, message)
		if len(message) > 6 && message[len(message)-6:] == "[-1][]" {
			return messages
		}
	}
}

func TestLive(t *testing.T) {
	s := open(t, Options{Topic: "kv"})
	conn := subscribe(t, s)
	s.Publish([]byte("a"))
	s.Lose(1)
	s.Publish([]byte("b"))
	s.Publish([]byte("c"))
	s.Repeat()
	s.Restart()
	s.Publish([]byte("d"))
	for _, want := range []string{"[kv][0][a]", "[kv][2][c]", "[kv][2][c]", "[kv][0][d]"} {
		if got := frames(t, conn); got != want {
			t.Errorf("message %s, want %s", got, want)
		}
	}
}

func TestReplay(t *testing.T) {
	cases := map[string]struct {
		options Options
		forget  bool
		from    uint64
		want    []string
	}{
		"from a number, without topics": {
			options: Options{Topic: "kv"},
			from:    2,
			want:    []string{"[][2][c]", "[][3][d]", "[][-1][]"},
		},
		"with topics": {
			options: Options{Topic: "kv", TopicInReplay: true},
			from:    3,
			want:    []string{"[][kv][3][d]", "[][][-1][]"},
		},
		"a wrapped ring starts later than asked": {
			options: Options{BufferSteps: 3},
			from:    0,
			want:    []string{"[][1][b]", "[][2][c]", "[][3][d]", "[][-1][]"},
		},
		"a forgotten ring is empty": {
			forget: true,
			from:   0,
			want:   []string{"[][-1][]"},
		},
		"the future is empty": {
			from: 9,
			want: []string{"[][-1][]"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := open(t, tc.options)
			for _, payload := range []string{"a", "b", "c", "d"} {
				s.Publish([]byte(payload))
			}
			if tc.forget {
				s.Forget()
			}
			if diff := cmp.Diff(tc.want, replay(t, s, tc.from)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestConnect(t *testing.T) {
	listener, err := zmtp.Listen("tcp://127.0.0.1:*", zmtp.Options{Type: zmtp.SUB})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	s := open(t, Options{Endpoint: listener.Endpoint(), Connect: true, Replay: NoReplay})
	conn, err := listener.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.Subscribe(nil); err != nil {
		t.Fatal(err)
	}
	waitForSubscriber(t, s)
	s.Publish([]byte("a"))
	if got, want := frames(t, conn), "[][0][a]"; got != want {
		t.Errorf("message %s, want %s", got, want)
	}
}

func TestTakenPort(t *testing.T) {
	first := open(t, Options{})
	if _, err := Open(Options{Replay: first.ReplayEndpoint()}); err == nil {
		t.Error("a taken replay port gave no error")
	}
}
