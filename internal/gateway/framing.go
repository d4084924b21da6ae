// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"strconv"
	"strings"
	"time"
)

// framingListener refuses requests that say their length twice, which the HTTP
// server would resolve silently: proxies in front may resolve it otherwise.
type framingListener struct {
	net.Listener
	// tls is nil without TLS.
	tls *tls.Config
	// handshake bounds a TLS handshake.
	handshake time.Duration
}

// Accept implements net.Listener.
func (l *framingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if l.tls == nil {
		return &framedConn{Conn: conn}, nil
	}
	secure := tls.Server(conn, l.tls)
	return &securedConn{framedConn{Conn: secure}, secure, l.handshake}, nil
}

// framedConn watches what a client sends.
type framedConn struct {
	net.Conn
	framing framing
}

// Read implements net.Conn.
func (c *framedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.framing.watch(p[:n])
	return n, err
}

// securedConn tells the HTTP server about TLS.
type securedConn struct {
	framedConn
	tls       *tls.Conn
	handshake time.Duration
}

// ConnectionState makes the handshake, if need be. The server asks before it
// reads; if the handshake fails, so does reading.
func (c *securedConn) ConnectionState() tls.ConnectionState {
	ctx, cancel := context.WithTimeout(context.Background(), c.handshake)
	defer cancel()
	_ = c.tls.HandshakeContext(ctx)
	return c.tls.ConnectionState()
}

// framing follows the requests of one HTTP/1 connection. Where a request has
// both a Content-Length and a Transfer-Encoding, it takes the colon out of the
// later one, so that the server refuses the request as malformed and closes
// the connection.
type framing struct {
	state framingState
	// line holds the beginning of the current line, lineLength counts all of
	// it.
	line       []byte
	lineLength int
	started    bool // the request line of this header block is over

	hasLength, hasEncoding, old bool
	length, left                int64
}

type framingState uint8

const (
	framingHeader framingState = iota
	framingBody
	framingChunkSize
	framingChunk
	framingChunkEnd
	framingTrailer
	framingLost // not HTTP/1, or the server will refuse what comes
)

// http2Preface is the first line of a connection that speaks HTTP/2.
const http2Preface = "PRI * HTTP/2.0"

// maxFramingLine is how much of a line is looked at.
const maxFramingLine = 128

// watch takes the next bytes, and changes one of them if a request must be
// refused.
func (f *framing) watch(p []byte) {
	for len(p) > 0 {
		switch f.state {
		case framingLost:
			return
		case framingBody, framingChunk:
			n := min(int64(len(p)), f.left)
			p, f.left = p[n:], f.left-n
			if f.left == 0 {
				f.bodyPart()
			}
		default:
			p = p[f.lineOf(p):]
		}
	}
}

// bodyPart follows the end of a body or of a chunk.
func (f *framing) bodyPart() {
	if f.state == framingBody {
		*f = framing{line: f.line[:0]}
		return
	}
	f.state = framingChunkEnd
}

// lineOf takes bytes up to the end of a line and returns their number.
func (f *framing) lineOf(p []byte) int {
	end := bytes.IndexByte(p, '\n')
	n := end + 1
	if end < 0 {
		n = len(p)
	}
	for i, c := range p[:n] {
		if c == ':' && f.state == framingHeader && f.lineLength+i == len(f.line) && f.conflict() {
			p[i] = ' '
			f.state = framingLost
			return n
		}
		if len(f.line) < maxFramingLine && len(f.line) == f.lineLength+i {
			f.line = append(f.line, c)
		}
	}
	f.lineLength += n
	if end >= 0 {
		f.endLine(strings.TrimRight(string(f.line), "\r\n"))
		f.line, f.lineLength = f.line[:0], 0
	}
	return n
}

// conflict takes the name of a header field and reports whether the fields so
// far contradict each other.
func (f *framing) conflict() bool {
	switch {
	case bytes.EqualFold(f.line, []byte("content-length")):
		f.hasLength = true
	case bytes.EqualFold(f.line, []byte("transfer-encoding")):
		f.hasEncoding = true
	}
	return f.hasEncoding && (f.hasLength || f.old)
}

// endLine takes the beginning of a whole line without its end.
func (f *framing) endLine(line string) {
	switch f.state {
	case framingHeader:
		f.headerLine(line)
	case framingChunkSize:
		digits, _, _ := strings.Cut(line, ";")
		size, err := strconv.ParseInt(strings.TrimSpace(digits), 16, 64)
		switch {
		case err != nil || size < 0:
			f.state = framingLost
		case size == 0:
			f.state = framingTrailer
		default:
			f.state, f.left = framingChunk, size
		}
	case framingChunkEnd:
		f.state = framingChunkSize
	case framingTrailer:
		if line == "" {
			*f = framing{line: f.line}
		}
	}
}

func (f *framing) headerLine(line string) {
	switch {
	case !f.started && line == "": // tolerated after a body
	case !f.started && line == "PRI * HTTP/2.0":
		f.state = framingLost // frames say their own length
	case !f.started && line == http2Preface:
		f.state = framingLost // frames have one length only
	case !f.started:
		f.started, f.old = true, strings.HasSuffix(line, " HTTP/1.0")
	case line == "":
		switch {
		case f.hasEncoding:
			f.state = framingChunkSize
		case f.length > 0:
			f.state, f.left = framingBody, f.length
		default:
			*f = framing{line: f.line}
		}
	default:
		name, value, _ := strings.Cut(line, ":")
		if strings.EqualFold(name, "content-length") {
			length, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			if err != nil || length < 0 {
				f.state = framingLost
			}
			f.length = length
		}
	}
}
