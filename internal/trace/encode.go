// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
)

// appendASCII appends valid JSON with everything outside printable ASCII
// escaped. Only strings can hold such characters, so the meaning stays.
func appendASCII(dst, text []byte) []byte {
	const digits = "0123456789abcdef"
	escape := func(unit rune) {
		dst = append(dst, '\\', 'u', digits[unit>>12&15], digits[unit>>8&15], digits[unit>>4&15], digits[unit&15])
	}
	for len(text) > 0 {
		if c := text[0]; c >= ' ' && c < 0x7f {
			dst, text = append(dst, c), text[1:]
			continue
		}
		r, size := utf8.DecodeRune(text)
		text = text[size:]
		if high, low := utf16.EncodeRune(r); high != utf8.RuneError {
			escape(high)
			escape(low)
			continue
		}
		escape(r)
	}
	return dst
}

// encodeASCII returns value as JSON of printable ASCII on one line.
func encodeASCII(value any) ([]byte, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	return appendASCII(make([]byte, 0, len(text)), text), nil
}

// encodeRecord returns a record as one line without its end.
func encodeRecord(r *Record) ([]byte, error) {
	form, err := r.form()
	if err != nil {
		return nil, err
	}
	line, err := encodeASCII(form)
	if err != nil {
		return nil, fmt.Errorf("encode %s record: %w", r.Kind, err)
	}
	return line, nil
}

// encodeLine is encodeRecord for at most limit bytes. A longer record loses
// scores, then candidates, then gates of its selections, then selections from
// the middle. What decided always stays, even if that is longer than limit.
func encodeLine(r *Record, limit int) (line []byte, cut bool, err error) {
	if line, err = encodeRecord(r); err != nil || len(line) <= limit {
		return line, false, err
	}
	shorter := *r
	shorter.Truncated.Line = true
	choices := shorter.ownChoices()
	if choices == nil {
		return line, false, nil
	}
	// The length after each removal is estimated, and then looked at.
	length := len(line)
	for _, list := range []func(*Choice) (removed int){(*Choice).dropScores, (*Choice).dropCandidates, (*Choice).dropGates} {
		for i := range *choices {
			if length -= list(&(*choices)[i]); length > limit {
				continue
			}
			if line, err = encodeRecord(&shorter); err != nil || len(line) <= limit {
				return line, true, err
			}
			length = len(line)
		}
	}
	for {
		if line, err = encodeRecord(&shorter); err != nil || len(line) <= limit || len(*choices) <= 2 {
			return line, true, err
		}
		middle := len(*choices) / 2
		*choices = slices.Delete(*choices, middle, middle+1)
	}
}

// ownChoices gives the record selections of its own and returns them, or nil
// if its kind has none.
func (r *Record) ownChoices() *[]Choice {
	switch {
	case r.Dispatch != nil:
		body := *r.Dispatch
		body.Selections = slices.Clone(body.Selections)
		r.Dispatch = &body
		return &body.Selections
	case r.Failure != nil:
		body := *r.Failure
		body.Selections = slices.Clone(body.Selections)
		r.Failure = &body
		return &body.Selections
	default:
		return nil
	}
}

func (c *Choice) dropScores() (removed int) {
	c.Scores, removed = drop(c, "scores", c.Scores)
	return removed
}

func (c *Choice) dropCandidates() (removed int) {
	c.Candidates, removed = drop(c, "candidates", c.Candidates)
	return removed
}

func (c *Choice) dropGates() (removed int) {
	c.Gates, removed = drop(c, "gates", c.Gates)
	return removed
}

// drop empties a list and returns about how many bytes that removes.
func drop[T any](c *Choice, list string, entries []T) (none []T, removed int) {
	if len(entries) == 0 {
		return entries, 0
	}
	c.Elided = maps.Clone(c.Elided)
	if c.Elided == nil {
		c.Elided = map[string]int{}
	}
	c.Elided[list] = len(entries)
	if list == "candidates" {
		c.CandidatesComplete = false
	}
	text, _ := encodeASCII(entries) // it was encoded before
	return []T{}, len(text)
}
