// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"crypto/rand"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/inferencecache/inference-cache/internal/trace"
)

const generatedIDLetters = 24

// rootIDHeaders may carry the id of a request; the first present counts.
var rootIDHeaders = []string{headerRequestID, "X-Correlation-Id", "X-Trace-Id", "Request-Id"}

// rootIdentity is the id of a request and where it comes from.
type rootIdentity struct {
	id, source string
	truncated  bool
}

// rootIDOf returns the id of a request: the client's, cut to a bound, or a new
// one that starts with prefix. An id with control characters is replaced.
func (g *Gateway) rootIDOf(header http.Header, prefix string) rootIdentity {
	names := g.options.RequestIDHeaders
	if len(names) == 0 {
		names = rootIDHeaders
	}
	for _, name := range names {
		id := header.Get(name)
		if id == "" {
			continue
		}
		if !utf8.ValidString(id) || strings.ContainsFunc(id, unicode.IsControl) {
			break
		}
		kept := trace.Cut(id, trace.MaxRootIDBytes)
		return rootIdentity{kept, trace.RootInbound, len(kept) < len(id)}
	}
	return rootIdentity{id: prefix + randomLetters(generatedIDLetters), source: trace.RootGenerated}
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
