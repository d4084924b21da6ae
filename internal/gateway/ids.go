// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	maxRootIDBytes     = 128
	generatedIDLetters = 24
)

// rootIDHeaders may carry the id of a request; the first present counts.
var rootIDHeaders = [...]string{headerRequestID, "X-Correlation-Id", "X-Trace-Id", "Request-Id"}

// rootID returns the id of a request: the client's, cut to a bound, or a new
// one that starts with prefix.
func rootID(header http.Header, prefix string) string {
	for _, name := range rootIDHeaders {
		id := header.Get(name)
		if id == "" {
			continue
		}
		if strings.ContainsFunc(id, func(r rune) bool { return r < ' ' || r == 0x7f || r == utf8.RuneError }) {
			break
		}
		for len(id) > maxRootIDBytes {
			_, size := utf8.DecodeLastRuneInString(id)
			id = id[:len(id)-size]
		}
		return id
	}
	return prefix + randomLetters(generatedIDLetters)
}

func randomLetters(n int) string {
	const letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	text := make([]byte, n)
	_, _ = rand.Read(text) // never fails
	for i, b := range text {
		text[i] = letters[int(b)%len(letters)]
	}
	return string(text)
}

// newDispatchID returns a version 7 UUID: milliseconds, then random bits.
func newDispatchID(now time.Time) string {
	var id [16]byte
	binary.BigEndian.PutUint64(id[:8], uint64(now.UnixMilli())<<16)
	_, _ = rand.Read(id[6:]) // never fails
	id[6] = id[6]&0x0f | 0x70
	id[8] = id[8]&0x3f | 0x80
	text := hex.EncodeToString(id[:])
	return text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]
}
