// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
)

// Frame flags. A frame is flags (1 byte), size (1 byte, or 8 bytes big-endian
// with flagLong) and body.
const (
	flagMore    = 0x01
	flagLong    = 0x02
	flagCommand = 0x04
)

const (
	maxCommandBytes = 64 << 10
	readBufferBytes = 32 << 10
	// growBytes is the most that is allocated ahead of the bytes received,
	// until a body has outgrown it; from there on memory doubles.
	growBytes = 64 << 10
)

// item is a whole message, or one command if command is not empty.
type item struct {
	message [][]byte
	command string
	body    []byte
}

// reader cuts a byte stream into messages and commands.
type reader struct {
	buf       *bufio.Reader
	maxFrame  int64
	maxTotal  int64
	maxFrames int

	// The frames read so far of a message whose end has not arrived; libzmq
	// may send a command between them.
	parts [][]byte
	total int64
}

func newReader(r io.Reader, o Options) *reader {
	return &reader{
		buf:       bufio.NewReaderSize(r, readBufferBytes),
		maxFrame:  o.MaxFrameBytes,
		maxTotal:  o.MaxMessageBytes,
		maxFrames: o.MaxFrames,
	}
}

// next returns the next message or command; its slices belong to the caller.
func (r *reader) next() (item, error) {
	for {
		flags, size, err := r.header()
		if err != nil {
			return item{}, err
		}
		if flags&flagCommand != 0 {
			return r.command(flags, size)
		}
		switch {
		case size > r.maxFrame:
			return item{}, fmt.Errorf("%w: frame of %d bytes, at most %d allowed", ErrLimit, size, r.maxFrame)
		case size > r.maxTotal-r.total:
			return item{}, fmt.Errorf("%w: message of more than %d bytes", ErrLimit, r.maxTotal)
		case len(r.parts) >= r.maxFrames:
			return item{}, fmt.Errorf("%w: message of more than %d frames", ErrLimit, r.maxFrames)
		}
		body, err := r.body(size)
		if err != nil {
			return item{}, err
		}
		r.parts = append(r.parts, body)
		r.total += size
		if flags&flagMore == 0 {
			it := item{message: r.parts}
			r.parts, r.total = nil, 0
			return it, nil
		}
	}
}

func (r *reader) header() (flags byte, size int64, err error) {
	if flags, err = r.buf.ReadByte(); err != nil {
		return 0, 0, err
	}
	if flags&^(flagMore|flagLong|flagCommand) != 0 {
		return 0, 0, fmt.Errorf("%w: reserved frame flags 0x%02x", ErrProtocol, flags)
	}
	if flags&flagLong == 0 {
		b, err := r.buf.ReadByte()
		return flags, int64(b), noEOF(err)
	}
	var b [8]byte
	if _, err := io.ReadFull(r.buf, b[:]); err != nil {
		return 0, 0, noEOF(err)
	}
	n := binary.BigEndian.Uint64(b[:])
	if n > 1<<63-1 {
		return 0, 0, fmt.Errorf("%w: frame size above 2^63-1", ErrProtocol)
	}
	return flags, int64(n), nil
}

func (r *reader) command(flags byte, size int64) (item, error) {
	if flags&flagMore != 0 {
		return item{}, fmt.Errorf("%w: command with the more flag", ErrProtocol)
	}
	if size > maxCommandBytes {
		return item{}, fmt.Errorf("%w: command of %d bytes, at most %d allowed", ErrLimit, size, maxCommandBytes)
	}
	body, err := r.body(size)
	if err != nil {
		return item{}, err
	}
	if len(body) == 0 || body[0] == 0 || int(body[0]) > len(body)-1 {
		return item{}, fmt.Errorf("%w: command without a name", ErrProtocol)
	}
	n := 1 + int(body[0])
	return item{command: string(body[1:n]), body: body[n:]}, nil
}

// body reads size bytes, allocating no more than twice what has arrived
// (or growBytes).
func (r *reader) body(size int64) ([]byte, error) {
	b := make([]byte, min(size, growBytes))
	for have := 0; ; {
		if _, err := io.ReadFull(r.buf, b[have:]); err != nil {
			return nil, noEOF(err)
		}
		have = len(b)
		if int64(have) == size {
			return b, nil
		}
		more := int(min(size-int64(have), int64(have)))
		b = slices.Grow(b, more)[:have+more]
	}
}

// noEOF turns an end of stream inside a frame into an unexpected one.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// appendMessage encodes a message of at least one frame.
func appendMessage(dst []byte, frames [][]byte) []byte {
	for i, f := range frames {
		flags := byte(0)
		if i < len(frames)-1 {
			flags = flagMore
		}
		dst = appendFrame(dst, flags, f)
	}
	return dst
}

func appendFrame(dst []byte, flags byte, body []byte) []byte {
	if len(body) > 255 {
		dst = append(dst, flags|flagLong)
		dst = binary.BigEndian.AppendUint64(dst, uint64(len(body)))
	} else {
		dst = append(dst, flags, byte(len(body)))
	}
	return append(dst, body...)
}

func appendCommand(dst []byte, name string, body []byte) []byte {
	b := make([]byte, 0, 1+len(name)+len(body))
	b = append(b, byte(len(name)))
	b = append(b, name...)
	return appendFrame(dst, flagCommand, append(b, body...))
}

func encodedLen(frames [][]byte) int {
	n := 0
	for _, f := range frames {
		n += 9 + len(f)
	}
	return n
}
