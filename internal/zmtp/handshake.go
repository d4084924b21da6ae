// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
)

// The greeting, 64 bytes each way:
//
//	0      0xFF, 8 bytes of padding, 0x7F
//	10     major, minor version
//	12     mechanism, 20 bytes, zero padded
//	32     as-server, 31 bytes of filler
const (
	greetingBytes  = 64
	greetingPrefix = 12
	major          = 3
	mechanism      = "NULL"
)

func greeting(minor byte) []byte {
	b := make([]byte, greetingBytes)
	b[0], b[9] = 0xFF, 0x7F
	b[10], b[11] = major, minor
	copy(b[12:], mechanism)
	return b
}

// readGreeting returns the minor version of the peer.
func readGreeting(r io.Reader) (byte, error) {
	var b [greetingBytes]byte
	// Peers before ZMTP 3 send less than a whole greeting and wait, so the
	// version is judged first.
	if _, err := io.ReadFull(r, b[:greetingPrefix]); err != nil {
		return 0, noEOF(err)
	}
	if b[0] != 0xFF || b[9]&1 == 0 {
		return 0, fmt.Errorf("%w: not a ZMTP greeting", ErrProtocol)
	}
	if b[10] < major {
		return 0, fmt.Errorf("%w: peer speaks ZMTP %d, version 3 is needed", ErrIncompatible, b[10])
	}
	if _, err := io.ReadFull(r, b[greetingPrefix:]); err != nil {
		return 0, noEOF(err)
	}
	if name := bytes.TrimRight(b[12:32], "\x00"); string(name) != mechanism {
		return 0, fmt.Errorf("%w: security mechanism %.20q, NULL is needed", ErrIncompatible, name)
	}
	if b[10] > major {
		return 1, nil
	}
	return b[11], nil
}

// metadata of a READY command that matters here.
type metadata struct {
	socketType SocketType
	identity   []byte
}

func (m metadata) encode() []byte {
	b := appendProperty(nil, "Socket-Type", []byte(m.socketType))
	switch m.socketType {
	case DEALER, ROUTER:
		b = appendProperty(b, "Identity", m.identity)
	}
	return b
}

func appendProperty(dst []byte, name string, value []byte) []byte {
	dst = append(dst, byte(len(name)))
	dst = append(dst, name...)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(value)))
	return append(dst, value...)
}

func parseMetadata(b []byte) (metadata, error) {
	var m metadata
	for len(b) > 0 {
		n := 1 + int(b[0])
		if n == 1 || len(b) < n+4 {
			return m, fmt.Errorf("%w: metadata name cut short", ErrProtocol)
		}
		name := string(b[1:n])
		size := binary.BigEndian.Uint32(b[n:])
		b = b[n+4:]
		if uint64(size) > uint64(len(b)) {
			return m, fmt.Errorf("%w: metadata value of %d bytes, %d left", ErrProtocol, size, len(b))
		}
		value := b[:size]
		b = b[size:]
		switch strings.ToLower(name) {
		case "socket-type":
			m.socketType = SocketType(value)
		case "identity":
			m.identity = bytes.Clone(value)
		}
	}
	if len(m.identity) > 255 {
		return m, fmt.Errorf("%w: identity of %d bytes", ErrProtocol, len(m.identity))
	}
	return m, nil
}

// compatible lists the peers each of our socket types may talk to.
var compatible = map[SocketType][]SocketType{
	SUB:    {PUB, "XPUB"},
	PUB:    {SUB, "XSUB"},
	DEALER: {ROUTER, DEALER, "REP"},
	ROUTER: {DEALER, ROUTER, "REQ"},
}
