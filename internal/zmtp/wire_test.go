// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestMessagesSurviveTheWire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		frame := rapid.SliceOfN(rapid.Byte(), 0, 600)
		want := rapid.SliceOfN(rapid.SliceOfN(frame, 1, 5), 1, 4).Draw(t, "messages")
		var stream []byte
		for _, m := range want {
			stream = appendMessage(stream, m)
		}
		r := newReader(iotest.HalfReader(bytes.NewReader(stream)), Options{}.withDefaults())
		for i, m := range want {
			it, err := r.next()
			if err != nil {
				t.Fatal(err)
			}
			if !slices.EqualFunc(it.message, m, bytes.Equal) {
				t.Fatalf("message %d: got %x, want %x", i, it.message, m)
			}
		}
		if _, err := r.next(); err != io.EOF {
			t.Fatalf("after the last message: got %v, want EOF", err)
		}
	})
}

func TestCommandBetweenFrames(t *testing.T) {
	stream := appendFrame(nil, flagMore, []byte("a"))
	stream = appendCommand(stream, "PING", []byte{0, 1})
	stream = appendFrame(stream, 0, []byte("b"))
	r := newReader(bytes.NewReader(stream), Options{}.withDefaults())
	first, err := r.next()
	if err != nil || first.command != "PING" {
		t.Fatalf("got %+v, %v, want the PING", first, err)
	}
	second, err := r.next()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a", "b"}, stringsOf(second.message)); diff != "" {
		t.Error(diff)
	}
}

func longHeader(flags byte, size uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{flags | flagLong}, size)
}

func TestReaderRefuses(t *testing.T) {
	opts := Options{MaxFrameBytes: 1000, MaxMessageBytes: 1500, MaxFrames: 3}.withDefaults()
	tests := map[string]struct {
		stream  []byte
		wantErr error
	}{
		"a frame that claims more than the limit":       {longHeader(0, 1001), ErrLimit},
		"a frame that claims 1 GiB":                     {longHeader(0, 1<<30), ErrLimit},
		"a frame that claims 2^64-1 bytes":              {longHeader(0, 1<<64-1), ErrProtocol},
		"frames that add up to more than the limit":     {appendMessage(nil, [][]byte{make([]byte, 900), make([]byte, 900)}), ErrLimit},
		"more frames than the limit":                    {appendMessage(nil, bytesOf("", "", "", "")), ErrLimit},
		"a command that claims more than the limit":     {longHeader(flagCommand, maxCommandBytes+1), ErrLimit},
		"a command with the more flag":                  {[]byte{flagCommand | flagMore, 1, 0}, ErrProtocol},
		"an empty command":                              {[]byte{flagCommand, 0}, ErrProtocol},
		"a command with an empty name":                  {[]byte{flagCommand, 2, 0, 'x'}, ErrProtocol},
		"a command whose name is longer than the frame": {[]byte{flagCommand, 2, 2, 'x'}, ErrProtocol},
		"reserved flags":                                {[]byte{0x08, 0}, ErrProtocol},
		"a header cut after the flags":                  {[]byte{0}, io.ErrUnexpectedEOF},
		"a long size cut short":                         {[]byte{flagLong, 0, 0}, io.ErrUnexpectedEOF},
		"a body cut short":                              {[]byte{0, 3, 'x'}, io.ErrUnexpectedEOF},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := newReader(bytes.NewReader(tc.stream), opts).next()
			if !errors.Is(err, tc.wantErr) {
				t.Errorf("got %v, want %v", err, tc.wantErr)
			}
		})
	}
}

func TestReaderAllocatesByWhatArrives(t *testing.T) {
	const claimed = 1 << 30
	stream := append(longHeader(0, claimed), make([]byte, 300<<10)...)
	r := newReader(bytes.NewReader(stream), Options{MaxFrameBytes: 2 * claimed}.withDefaults())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := r.next()
	runtime.ReadMemStats(&after)
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("got %v, want an unexpected EOF", err)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > 4<<20 {
		t.Errorf("300 KiB of a claimed GiB arrived, %d bytes were allocated", got)
	}
}

func TestParseMetadata(t *testing.T) {
	tests := map[string]struct {
		in      []byte
		want    metadata
		wantErr error
	}{
		"what we send":                 {metadata{DEALER, []byte("me")}.encode(), metadata{DEALER, []byte("me")}, nil},
		"names in any case":            {appendProperty(nil, "SOCKET-type", []byte("PUB")), metadata{socketType: PUB}, nil},
		"unknown properties":           {appendProperty(metadata{socketType: SUB}.encode(), "X-Y", []byte("z")), metadata{socketType: SUB}, nil},
		"nothing":                      {nil, metadata{}, nil},
		"a name cut short":             {[]byte{5, 'a'}, metadata{}, ErrProtocol},
		"an empty name":                {[]byte{0, 0, 0, 0, 0}, metadata{}, ErrProtocol},
		"a value that claims 4 GiB":    {[]byte{1, 'a', 255, 255, 255, 255}, metadata{}, ErrProtocol},
		"an identity beyond 255 bytes": {appendProperty(nil, "Identity", make([]byte, 256)), metadata{}, ErrProtocol},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parseMetadata(tc.in)
			if !errors.Is(err, tc.wantErr) {
				t.Fatalf("got error %v, want %v", err, tc.wantErr)
			}
			if err == nil && (got.socketType != tc.want.socketType || !bytes.Equal(got.identity, tc.want.identity)) {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestReadGreeting(t *testing.T) {
	edit := func(f func(b []byte)) []byte {
		b := greeting(1)
		f(b)
		return b
	}
	tests := map[string]struct {
		in        []byte
		wantMinor byte
		wantErr   error
	}{
		"ZMTP 3.1":                          {greeting(1), 1, nil},
		"ZMTP 3.0":                          {greeting(0), 0, nil},
		"a later major version":             {edit(func(b []byte) { b[10], b[11] = 4, 0 }), 1, nil},
		"an HTTP server":                    {[]byte("HTTP/1.1 400 Bad Request\r\n"), 0, ErrProtocol},
		"ZMTP 2, which sends 12 bytes":      {edit(func(b []byte) { b[10] = 1 })[:12], 0, ErrIncompatible},
		"another mechanism":                 {edit(func(b []byte) { copy(b[12:], "CURVE") }), 0, ErrIncompatible},
		"a mechanism that starts with ours": {edit(func(b []byte) { copy(b[12:], "NULLX") }), 0, ErrIncompatible},
		"half a greeting":                   {greeting(1)[:40], 0, io.ErrUnexpectedEOF},
		"nothing":                           {nil, 0, io.ErrUnexpectedEOF},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := readGreeting(bytes.NewReader(tc.in))
			if !errors.Is(err, tc.wantErr) {
				t.Fatalf("got error %v, want %v", err, tc.wantErr)
			}
			if got != tc.wantMinor {
				t.Errorf("got minor %d, want %d", got, tc.wantMinor)
			}
		})
	}
}

func FuzzReader(f *testing.F) {
	f.Add(appendMessage(nil, bytesOf("topic", "12345678", "payload")))
	f.Add(appendCommand(nil, "SUBSCRIBE", []byte("topic")))
	f.Add(longHeader(flagMore, 1<<40))
	opts := Options{MaxFrameBytes: 1 << 16, MaxFrames: 8}.withDefaults()
	f.Fuzz(func(t *testing.T, stream []byte) {
		r := newReader(bytes.NewReader(stream), opts)
		for {
			it, err := r.next()
			if err != nil {
				return
			}
			total := len(it.body)
			for _, m := range it.message {
				total += len(m)
			}
			if total > len(stream) || len(it.message) > 8 {
				t.Fatalf("%d bytes in %d frames out of %d bytes", total, len(it.message), len(stream))
			}
		}
	})
}

// FuzzPeer runs a whole connection against arbitrary bytes.
func FuzzPeer(f *testing.F) {
	hello := append(greeting(1), appendCommand(nil, "READY", metadata{socketType: SUB}.encode())...)
	f.Add(hello)
	f.Add(append(bytes.Clone(hello), appendCommand(nil, "PING", []byte("\x00\x01ctx"))...))
	f.Add(append(bytes.Clone(hello), appendFrame(nil, 0, []byte("\x01topic"))...))
	f.Add(append(greeting(0), appendCommand(nil, "ERROR", []byte("\x02no"))...))
	f.Fuzz(func(t *testing.T, stream []byte) {
		ours, theirs := pipe()
		if _, err := theirs.Write(stream); err != nil {
			t.Fatal(err)
		}
		_ = theirs.Close()
		c, err := newConn(t.Context(), ours, Options{Type: PUB, HeartbeatInterval: -1}.withDefaults())
		if err != nil {
			return
		}
		p := NewPub(nil, PubOptions{})
		<-p.Attach(c)
		_ = p.Close()
	})
}
