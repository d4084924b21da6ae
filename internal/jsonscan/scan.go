// SPDX-License-Identifier: Apache-2.0

// Package jsonscan reads single members of JSON documents without decoding
// the rest. It accepts exactly the documents encoding/json accepts, up to
// MaxDepth levels.
package jsonscan

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
)

// MaxDepth is the deepest nesting of arrays and objects accepted.
const MaxDepth = 1000

// ErrNotObject and ErrNotArray say that a valid document has another type.
var (
	ErrNotObject = errors.New("not a JSON object")
	ErrNotArray  = errors.New("not a JSON array")
)

// SyntaxError says where a document stops being JSON. It never quotes the
// document.
type SyntaxError struct {
	Offset   int
	Expected string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("invalid JSON at byte %d: expected %s", e.Offset, e.Expected)
}

// Object checks that data is one JSON object and calls visit for each member
// in order, also for repeated keys. Key is unescaped; value is the raw text.
// Both alias data, or are copies, and must not be changed. An error from visit
// ends the scan.
func Object(data []byte, visit func(key, value []byte) error) error {
	s := scanner{data: data}
	s.space()
	if s.peek() != '{' {
		return s.otherType(ErrNotObject)
	}
	if err := s.object(visit); err != nil {
		return err
	}
	return s.end()
}

// Array checks that data is one JSON array and calls visit for each element.
func Array(data []byte, visit func(value []byte) error) error {
	s := scanner{data: data}
	s.space()
	if s.peek() != '[' {
		return s.otherType(ErrNotArray)
	}
	if err := s.array(visit); err != nil {
		return err
	}
	return s.end()
}

// Uint32s appends the elements of an array of unsigned integers to dst. Any
// other element is an error.
func Uint32s(dst []uint32, data []byte) ([]uint32, error) {
	if out, ok := compactUint32s(dst, data); ok {
		return out, nil
	}
	err := Array(data, func(value []byte) error {
		number, ok := parseUint32(value)
		if !ok {
			return errors.New("array element is not an unsigned 32-bit integer")
		}
		dst = append(dst, number)
		return nil
	})
	return dst, err
}

// compactUint32s is Uint32s for arrays as encoders write them: no space but one
// after each comma. False means that data needs a closer look.
func compactUint32s(dst []uint32, data []byte) ([]uint32, bool) {
	if len(data) < 3 || data[0] != '[' || data[len(data)-1] != ']' {
		return nil, false
	}
	dst = slices.Grow(dst, bytes.Count(data, []byte{','})+1)
	data = data[1:]
	for len(data) > 0 {
		n, number := 0, uint64(0)
		for ; n <= 10 && data[n]-'0' <= 9; n++ { // ends at the bracket
			number = number*10 + uint64(data[n]-'0')
		}
		if n == 0 || number > math.MaxUint32 || data[0] == '0' && n > 1 {
			return nil, false
		}
		dst = append(dst, uint32(number))
		switch {
		case n+1 == len(data):
			return dst, true
		case data[n] != ',':
			return nil, false
		}
		data = data[n+1:]
		if data[0] == ' ' {
			data = data[1:]
		}
	}
	return nil, false
}

// String decodes a raw JSON string. False means that value is no string.
func String(value []byte) (string, bool) {
	if len(value) < 2 || value[0] != '"' {
		return "", false
	}
	var decoded string
	if err := json.Unmarshal(value, &decoded); err != nil {
		return "", false
	}
	return decoded, true
}

func parseUint32(value []byte) (uint32, bool) {
	if len(value) == 0 || len(value) > 10 {
		return 0, false
	}
	var number uint64
	for _, c := range value {
		if c < '0' || c > '9' {
			return 0, false
		}
		number = number*10 + uint64(c-'0')
	}
	return uint32(number), number <= 1<<32-1
}

// scanner walks data; pos is the next unread byte.
type scanner struct {
	data       []byte
	pos, depth int
}

func (s *scanner) fail(expected string) error {
	return &SyntaxError{Offset: s.pos, Expected: expected}
}

// peek returns the next byte, or 0 at the end.
func (s *scanner) peek() byte {
	if s.pos < len(s.data) {
		return s.data[s.pos]
	}
	return 0
}

func (s *scanner) space() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\t', '\r', '\n':
			s.pos++
		default:
			return
		}
	}
}

func (s *scanner) end() error {
	s.space()
	if s.pos != len(s.data) {
		return s.fail("the end")
	}
	return nil
}

// otherType tells a valid document of another type from an invalid one.
func (s *scanner) otherType(mismatch error) error {
	if err := s.value(); err != nil {
		return err
	}
	if err := s.end(); err != nil {
		return err
	}
	return mismatch
}

func (s *scanner) value() error {
	switch c := s.peek(); {
	case c == '"':
		return s.str()
	case c == '{':
		return s.object(nil)
	case c == '[':
		return s.array(nil)
	case c == '-' || c >= '0' && c <= '9':
		return s.number()
	case c == 't':
		return s.literal("true")
	case c == 'f':
		return s.literal("false")
	case c == 'n':
		return s.literal("null")
	default:
		return s.fail("a value")
	}
}

func (s *scanner) enter() error {
	if s.depth++; s.depth > MaxDepth {
		return s.fail("less nesting")
	}
	s.pos++
	s.space()
	return nil
}

func (s *scanner) leave() {
	s.pos++
	s.depth--
}

func (s *scanner) object(visit func(key, value []byte) error) error {
	if err := s.enter(); err != nil {
		return err
	}
	if s.peek() == '}' {
		s.leave()
		return nil
	}
	for {
		if err := s.member(visit); err != nil {
			return err
		}
		s.space()
		switch s.peek() {
		case ',':
			s.pos++
			s.space()
		case '}':
			s.leave()
			return nil
		default:
			return s.fail("a comma or the end of an object")
		}
	}
}

func (s *scanner) member(visit func(key, value []byte) error) error {
	if s.peek() != '"' {
		return s.fail("a member name")
	}
	keyStart := s.pos
	if err := s.str(); err != nil {
		return err
	}
	keyEnd := s.pos
	s.space()
	if s.peek() != ':' {
		return s.fail("a colon")
	}
	s.pos++
	s.space()
	valueStart := s.pos
	if err := s.value(); err != nil {
		return err
	}
	if visit == nil {
		return nil
	}
	return visit(unescape(s.data[keyStart:keyEnd]), s.data[valueStart:s.pos])
}

func (s *scanner) array(visit func(value []byte) error) error {
	if err := s.enter(); err != nil {
		return err
	}
	if s.peek() == ']' {
		s.leave()
		return nil
	}
	for {
		if visit == nil {
			s.integers()
		}
		start := s.pos
		if err := s.value(); err != nil {
			return err
		}
		if visit != nil {
			if err := visit(s.data[start:s.pos]); err != nil {
				return err
			}
		}
		s.space()
		switch s.peek() {
		case ',':
			s.pos++
			s.space()
		case ']':
			s.leave()
			return nil
		default:
			return s.fail("a comma or the end of an array")
		}
	}
}

// integers moves past elements of an array that are unsigned integers with a
// comma after them, up to the next element.
func (s *scanner) integers() {
	data := s.data
	for start := s.pos; start < len(data); start = s.pos {
		i := start
		for i < len(data) && data[i]-'0' <= 9 {
			i++
		}
		if i == start || i == len(data) || data[i] != ',' || data[start] == '0' && i > start+1 {
			return
		}
		s.pos = i + 1
		s.space()
	}
}

func (s *scanner) literal(word string) error {
	for i := range len(word) {
		if s.peek() != word[i] {
			return s.fail(word)
		}
		s.pos++
	}
	return nil
}

func (s *scanner) number() error {
	if s.peek() == '-' {
		s.pos++
	}
	if s.peek() == '0' {
		s.pos++
	} else if !s.digits() {
		return s.fail("a digit")
	}
	if s.peek() == '.' {
		s.pos++
		if !s.digits() {
			return s.fail("a digit")
		}
	}
	if c := s.peek(); c == 'e' || c == 'E' {
		s.pos++
		if c := s.peek(); c == '+' || c == '-' {
			s.pos++
		}
		if !s.digits() {
			return s.fail("a digit")
		}
	}
	return nil
}

func (s *scanner) digits() bool {
	start := s.pos
	for c := s.peek(); c >= '0' && c <= '9'; c = s.peek() {
		s.pos++
	}
	return s.pos > start
}

func (s *scanner) str() error {
	data := s.data
	i := s.pos + 1
	for i < len(data) {
		if i+8 <= len(data) && plain(binary.LittleEndian.Uint64(data[i:])) {
			i += 8
			continue
		}
		switch c := data[i]; {
		case c == '"':
			s.pos = i + 1
			return nil
		case c == '\\':
			s.pos = i + 1
			if err := s.escape(); err != nil {
				return err
			}
			i = s.pos
		case c < ' ':
			s.pos = i
			return s.fail("no control character in a string")
		default:
			i++
		}
	}
	s.pos = i
	return s.fail("the end of a string")
}

// plain says that none of the eight bytes of word needs a closer look: no quote,
// no backslash, no control character. It may say no for a word that is plain.
func plain(word uint64) bool {
	const (
		ones  = 0x0101010101010101
		highs = 0x8080808080808080
	)
	// (x - ones) &^ x has the high bit set in each zero byte of x.
	quote, slash := word^(ones*'"'), word^(ones*'\\')
	control := (word - ones*' ') &^ word
	return (control|(quote-ones)&^quote|(slash-ones)&^slash)&highs == 0
}

// escape reads what follows a backslash.
func (s *scanner) escape() error {
	switch s.peek() {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.pos++
		return nil
	case 'u':
		s.pos++
		for range 4 {
			if !isHex(s.peek()) {
				return s.fail("a hexadecimal digit")
			}
			s.pos++
		}
		return nil
	default:
		return s.fail("an escape")
	}
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

// unescape returns the text of a quoted, valid JSON string.
func unescape(quoted []byte) []byte {
	inner := quoted[1 : len(quoted)-1]
	for _, c := range inner {
		if c == '\\' {
			text, _ := String(quoted)
			return []byte(text)
		}
	}
	return inner
}
