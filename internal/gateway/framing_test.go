// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

const goodRequests = "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello" +
	"\r\nPOST /b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nContent-Length: 3\r\n\r\n" +
	"GET /c HTTP/1.1\nHost: h:80\n\n" +
	"POST /d HTTP/1.1\r\nContent-Length: 40\r\n\r\nTransfer-Encoding: x\r\nContent-Length: 2\r\n" +
	"POST /e HTTP/1.1\r\nX: " + "long" + "\r\nContent-Length: 0\r\n\r\n"

// watched passes text in pieces through the framing of a connection.
func watched(text string, pieces ...int) string {
	var f framing
	out := []byte(text)
	for rest := out; len(rest) > 0; {
		n := len(rest)
		if len(pieces) > 0 {
			n, pieces = min(n, max(pieces[0], 1)), pieces[1:]
		}
		f.watch(rest[:n])
		rest = rest[n:]
	}
	return string(out)
}

func TestFramingLeavesGoodRequestsAlone(t *testing.T) {
	for size := 1; size < 30; size++ {
		if got := watched(goodRequests, slices.Repeat([]int{size}, len(goodRequests))...); got != goodRequests {
			t.Fatalf("in pieces of %d bytes:\n%s", size, got)
		}
	}
}

func TestFramingSpoilsConflicts(t *testing.T) {
	for name, tc := range map[string]struct{ header, want string }{
		"length first":   {"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "Content-Length: 5\r\nTransfer-Encoding  chunked\r\n"},
		"encoding first": {"transfer-encoding: chunked\r\nX: y\r\ncontent-length: 5\r\n", "transfer-encoding: chunked\r\nX: y\r\ncontent-length  5\r\n"},
	} {
		for _, before := range []string{"", goodRequests} {
			const line = "POST / HTTP/1.1\r\n"
			if got := watched(before+line+tc.header+"\r\n", slices.Repeat([]int{7}, 200)...); got != before+line+tc.want+"\r\n" {
				t.Errorf("%s: %q", name, got[len(before):])
			}
		}
	}
	old := "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"
	if got := watched(old); !strings.Contains(got, "Transfer-Encoding  chunked") {
		t.Errorf("an encoding in HTTP/1.0: %q", got)
	}
}

// Whatever arrives in whatever pieces: nothing but colons changes, and the
// pieces make no difference.
func FuzzFraming(f *testing.F) {
	f.Add([]byte(goodRequests), uint8(3))
	f.Add([]byte("POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"), uint8(1))
	f.Add([]byte("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n"), uint8(2))
	f.Fuzz(func(t *testing.T, text []byte, size uint8) {
		whole := watched(string(text))
		pieces := watched(string(text), slices.Repeat([]int{int(size)}, len(text))...)
		if whole != pieces {
			t.Fatalf("in pieces %q, as a whole %q", pieces, whole)
		}
		changed := 0
		for i, c := range []byte(whole) {
			if c != text[i] {
				changed++
				if text[i] != ':' || c != ' ' {
					t.Fatalf("byte %d became %q", i, c)
				}
			}
		}
		if changed > 1 || changed == 1 && !bytes.Contains(bytes.ToLower(text), []byte("transfer-encoding")) {
			t.Fatalf("%d bytes changed of %q", changed, text)
		}
	})
}
