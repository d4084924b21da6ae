// SPDX-License-Identifier: Apache-2.0

package controlclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"
	"unicode"
)

const (
	// maxTextBytes bounds what is kept of a server's explanation, and of why it
	// could not be called.
	maxTextBytes = 256
	// rawTextBytes bounds what that is made from.
	rawTextBytes = 4 * maxTextBytes
)

// ErrTooLarge is returned for a body that the server cannot take.
var ErrTooLarge = errors.New("the body is longer than the server takes")

// ErrToken is returned when a token file exists but cannot be read and the
// call needs it.
var ErrToken = errors.New("cannot read the token")

// RefusedError is an answer other than the expected one.
type RefusedError struct {
	Status int
	// Text is the start of the server's explanation, a line without the token.
	Text string
}

func (e *RefusedError) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("the server answered %d", e.Status)
	}
	return fmt.Sprintf("the server answered %d: %s", e.Status, e.Text)
}

// CallError is a call without an answer that can be used. Its text is a short
// line, and the same for the same trouble: statuses are written with it.
type CallError struct {
	text  string
	cause error
}

func (e *CallError) Error() string { return e.text }

// Unwrap returns the cause, whose text may be long and differ at each call.
func (e *CallError) Unwrap() error { return e.cause }

// failed is a CallError about what was done.
func failed(doing string, cause error, token string) error {
	inner := cause
	var wrapped *url.Error // its text repeats the URL
	if errors.As(cause, &wrapped) {
		inner = wrapped.Err
	}
	text := inner.Error()
	var network net.Error
	if errors.Is(cause, context.DeadlineExceeded) || errors.As(cause, &network) && network.Timeout() {
		text = "no answer in time"
	}
	return &CallError{doing + ": " + Line(redact(text, token)), cause}
}

func redact(text, token string) string {
	if token == "" {
		return text
	}
	return strings.ReplaceAll(text, token, "[token]")
}

// localAddress is the caller's end of a connection, whose port is another each
// time.
var localAddress = regexp.MustCompile(`(?:[0-9.]+|\[[0-9a-fA-F:.%a-z]+\]):[0-9]+->`)

// Line makes a short printable line of a text, which stays the same when only
// the caller's port differs.
func Line(text string) string {
	text = localAddress.ReplaceAllString(text[:min(len(text), rawTextBytes)], "")
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(text, ""))
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > maxTextBytes {
		text = strings.ToValidUTF8(text[:maxTextBytes-3], "") + "..."
	}
	return text
}
