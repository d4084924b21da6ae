// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/inferencecache/inference-cache/internal/jsonscan"
)

// ErrUnknownField marks a body with a member the schema does not have. Names
// are compared exactly.
var ErrUnknownField = errors.New("unknown field")

// maxQuotedBytes is how much of a name an error shows.
const maxQuotedBytes = 64

// memberError says what is wrong with the member at a path.
type memberError struct {
	path string
	err  error
}

func (e *memberError) Error() string { return e.path + ": " + e.err.Error() }
func (e *memberError) Unwrap() error { return e.err }

// at puts a step in front of an error's path. Steps are names, or indices in
// brackets.
func at(step string, err error) error {
	var inner *memberError
	if !errors.As(err, &inner) {
		return &memberError{step, err}
	}
	separator := "."
	if inner.path[0] == '[' {
		separator = ""
	}
	return &memberError{step + separator + inner.path, inner.err}
}

// value is one raw JSON value, nil for null. Its methods set a destination,
// and leave it alone when the value is null.
type value []byte

// raw returns the value of a JSON text.
func raw(text []byte) value {
	if string(text) == "null" {
		return nil
	}
	return text
}

// object calls set for each member. Set returns ErrUnknownField for names it
// does not know.
func (v value) object(set func(name string, member value) error) error {
	if v == nil {
		return nil
	}
	var seen []string
	err := jsonscan.Object(v, func(key, member []byte) error {
		name := string(key)
		if slices.Contains(seen, name) {
			return at(name, errors.New("appears twice"))
		}
		seen = append(seen, name)
		switch err := set(name, raw(member)); err {
		case nil:
			return nil
		case ErrUnknownField: // of this object; an inner one's is wrapped
			return fmt.Errorf("%w %.*q", ErrUnknownField, maxQuotedBytes, name)
		default:
			return at(name, err)
		}
	})
	if errors.Is(err, jsonscan.ErrNotObject) {
		return errors.New("expected an object")
	}
	return err
}

// list calls add for each element that is not null.
func (v value) list(add func(element value) error) error {
	if v == nil {
		return nil
	}
	i := 0
	err := jsonscan.Array(v, func(element []byte) error {
		defer func() { i++ }()
		v := raw(element)
		if v == nil {
			return nil
		}
		if err := add(v); err != nil {
			return at("["+strconv.Itoa(i)+"]", err)
		}
		return nil
	})
	if errors.Is(err, jsonscan.ErrNotArray) {
		return errors.New("expected an array")
	}
	return err
}

func (v value) text(dst *string) error {
	if v == nil {
		return nil
	}
	text, ok := jsonscan.String(v)
	if !ok {
		return errors.New("expected a string")
	}
	*dst = text
	return nil
}

func (v value) boolean(dst *bool) error {
	switch {
	case v == nil:
	case string(v) == "true":
		*dst = true
	case string(v) == "false":
		*dst = false
	default:
		return errors.New("expected true or false")
	}
	return nil
}

func (v value) optionalBoolean(dst **bool) error {
	if v == nil {
		return nil
	}
	*dst = new(bool)
	return v.boolean(*dst)
}

// integer takes plain integers only: no fraction, no exponent.
func integer[T ~int32 | ~int64](v value, dst *T) error {
	if v == nil {
		return nil
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil || int64(T(n)) != n {
		return errors.New("expected an integer within its range")
	}
	*dst = T(n)
	return nil
}

func (v value) optionalFloat32(dst **float32) error {
	if v == nil {
		return nil
	}
	*dst = new(float32)
	return v.float32(*dst)
}

func (v value) float32(dst *float32) error {
	if v == nil {
		return nil
	}
	f, err := strconv.ParseFloat(string(v), 32)
	if err != nil {
		return errors.New("expected a number within the range of 32-bit floats")
	}
	*dst = float32(f)
	return nil
}

// oneOf takes the values that names has.
func oneOf[T any](v value, dst *T, names map[string]T) error {
	if v == nil {
		return nil
	}
	var name string
	if err := v.text(&name); err != nil {
		return err
	}
	chosen, ok := names[name]
	if !ok {
		known := make([]string, 0, len(names))
		for name := range names {
			known = append(known, strconv.Quote(name))
		}
		slices.Sort(known)
		return errors.New("expected one of " + strings.Join(known, ", "))
	}
	*dst = chosen
	return nil
}
