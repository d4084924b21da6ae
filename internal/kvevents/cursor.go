// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"encoding/binary"

	"github.com/tinylib/msgp/msgp"
)

// Limits on what engines send.
const (
	maxPayloadBytes = 32 << 20
	maxDepth        = 16
	maxBatchEvents  = 65536
	maxEventTokens  = 1 << 20
	maxTextBytes    = 4096
	maxMapKeys      = 64
)

// cursor reads msgpack values one after the other. After the first value that
// is not as expected, bad is set and every read returns zero. Lengths are
// checked against the bytes left before they are believed.
type cursor struct {
	rest []byte
	bad  bool
}

func (c *cursor) fail() { c.bad, c.rest = true, nil }

func (c *cursor) next() msgp.Type {
	if len(c.rest) == 0 {
		return msgp.InvalidType
	}
	return msgp.NextType(c.rest)
}

// take consumes a nil and reports whether there was one.
func (c *cursor) takeNil() bool {
	if c.next() != msgp.NilType {
		return false
	}
	c.rest = c.rest[1:]
	return true
}

func (c *cursor) array() int {
	n, rest, err := msgp.ReadArrayHeaderBytes(c.rest)
	if err != nil || uint64(n) > uint64(len(rest)) {
		c.fail()
		return 0
	}
	c.rest = rest
	return int(n)
}

func (c *cursor) mapping() int {
	n, rest, err := msgp.ReadMapHeaderBytes(c.rest)
	if err != nil || 2*uint64(n) > uint64(len(rest)) || n > maxMapKeys {
		c.fail()
		return 0
	}
	c.rest = rest
	return int(n)
}

// integer reads an integer of any width. Negative values come as their two's
// complement.
func (c *cursor) integer() (value uint64, negative bool) {
	var err error
	switch c.next() {
	case msgp.UintType:
		value, c.rest, err = msgp.ReadUint64Bytes(c.rest)
	case msgp.IntType:
		var signed int64
		signed, c.rest, err = msgp.ReadInt64Bytes(c.rest)
		value, negative = uint64(signed), signed < 0
	default:
		c.fail()
		return 0, false
	}
	if err != nil {
		c.fail()
		return 0, false
	}
	return value, negative
}

// signed reads an integer that fits int64.
func (c *cursor) signed() int64 {
	value, negative := c.integer()
	if !negative && value > 1<<63-1 {
		c.fail()
		return 0
	}
	return int64(value)
}

// text reads a string. It aliases the payload.
func (c *cursor) text() []byte {
	value, rest, err := msgp.ReadStringZC(c.rest)
	if err != nil || len(value) > maxTextBytes {
		c.fail()
		return nil
	}
	c.rest = rest
	return value
}

// binary reads a byte string. It aliases the payload.
func (c *cursor) binary() []byte {
	value, rest, err := msgp.ReadBytesZC(c.rest)
	if err != nil || len(value) > maxTextBytes {
		c.fail()
		return nil
	}
	c.rest = rest
	return value
}

// skip passes over one value, whatever it is. depth is how deep a container
// at this place would be.
func (c *cursor) skip(depth int) {
	elements := 0
	switch c.next() {
	case msgp.ArrayType:
		elements = c.array()
	case msgp.MapType:
		n, rest, err := msgp.ReadMapHeaderBytes(c.rest)
		if err != nil || 2*uint64(n) > uint64(len(rest)) {
			c.fail()
			return
		}
		elements, c.rest = 2*int(n), rest
	default:
		rest, err := msgp.Skip(c.rest)
		if err != nil {
			c.fail()
			return
		}
		c.rest = rest
		return
	}
	if depth > maxDepth {
		c.fail()
	}
	for ; elements > 0 && !c.bad; elements-- {
		c.skip(depth + 1)
	}
}

// hash reads a block hash: an integer, or the last 8 bytes of a byte string.
func (c *cursor) hash() (value uint64, isBytes bool) {
	var text []byte
	switch c.next() {
	case msgp.BinType:
		text = c.binary()
	case msgp.StrType:
		text = c.text()
	default:
		value, _ = c.integer()
		return value, false
	}
	if len(text) < 8 {
		c.fail()
		return 0, false
	}
	return binary.BigEndian.Uint64(text[len(text)-8:]), true
}

// token reads a token id: an integer of 32 bits, or a pair whose first is it.
// A string stands for a part of a multimodal input.
func (c *cursor) token() (id uint32, isText bool) {
	switch c.next() {
	case msgp.StrType:
		c.text()
		return 0, true
	case msgp.ArrayType:
		if c.array() != 2 {
			c.fail()
			return 0, false
		}
		id = c.tokenInteger()
		c.tokenInteger()
		return id, false
	default:
		return c.tokenInteger(), false
	}
}

func (c *cursor) tokenInteger() uint32 {
	value, negative := c.integer()
	if negative || value > 1<<32-1 {
		c.fail()
		return 0
	}
	return uint32(value)
}

// tokens appends a list of token ids to dst. A nil is an empty list.
func (c *cursor) tokens(dst []uint32) (out []uint32, hasText bool) {
	if c.takeNil() {
		return dst, false
	}
	n := c.array()
	if n > maxEventTokens {
		c.fail()
	}
	for ; n > 0 && !c.bad; n-- {
		if id, rest, ok := commonToken(c.rest); ok {
			dst, c.rest = append(dst, id), rest
			continue
		}
		id, isText := c.token()
		dst, hasText = append(dst, id), hasText || isText
	}
	return dst, hasText
}

// commonToken reads the widths that encoders choose for token ids.
func commonToken(b []byte) (id uint32, rest []byte, ok bool) {
	switch {
	case len(b) > 0 && b[0] < 0x80:
		return uint32(b[0]), b[1:], true
	case len(b) > 2 && b[0] == 0xcd:
		return uint32(binary.BigEndian.Uint16(b[1:])), b[3:], true
	case len(b) > 4 && b[0] == 0xce:
		return binary.BigEndian.Uint32(b[1:]), b[5:], true
	default:
		return 0, nil, false
	}
}

// hashes appends a list of block hashes to dst.
func (c *cursor) hashes(dst []uint64) (out []uint64, anyBytes bool) {
	for n := c.array(); n > 0 && !c.bad; n-- {
		if len(c.rest) > 8 && c.rest[0] == 0xcf {
			dst, c.rest = append(dst, binary.BigEndian.Uint64(c.rest[1:])), c.rest[9:]
			continue
		}
		value, isBytes := c.hash()
		dst, anyBytes = append(dst, value), anyBytes || isBytes
	}
	return dst, anyBytes
}
