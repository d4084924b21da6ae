// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/inferencecache/inference-cache/internal/livefile"
)

var errTokenLine = errors.New("expected an audience and a token")

// TokenFile holds static tokens. Each line names an audience and a token that
// is good for it, separated by white space; empty lines and lines starting
// with # are ignored. The file is read again when it changes; while it cannot
// be used the tokens read last stay good. It is safe for concurrent use.
type TokenFile struct {
	file   *livefile.File[map[string][]tokenSum] // by audience
	logger *slog.Logger
}

// tokenSum stands for a token, so that comparing takes equal time for all.
type tokenSum [sha256.Size]byte

// OpenTokenFile reads a token file. logger is told when the file becomes
// unusable later.
func OpenTokenFile(path string, logger *slog.Logger) (*TokenFile, error) {
	file, err := livefile.Open(path, logger, parseTokens)
	if err != nil {
		return nil, fmt.Errorf("token file: %w", err)
	}
	return &TokenFile{file, logger}, nil
}

// For returns the gate of an audience.
func (f *TokenFile) For(audience string) *TokenGate {
	if len(f.file.Get()[audience]) == 0 {
		f.logger.Warn("the token file has no token for an audience", "audience", audience)
	}
	return &TokenGate{file: f, audience: audience}
}

// TokenGate admits the bearers of one audience's tokens. It is safe for
// concurrent use.
type TokenGate struct {
	file     *TokenFile
	audience string
}

// Check returns OK or Unauthenticated.
func (g *TokenGate) Check(r *http.Request) Verdict {
	token, ok := Bearer(r)
	if !ok || !g.Holds(token) {
		return Unauthenticated
	}
	return OK
}

// Holds reports whether a token is good for the audience. It takes the same
// time for all tokens.
func (g *TokenGate) Holds(token string) bool {
	shown, equal := tokenSum(sha256.Sum256([]byte(token))), 0
	for _, sum := range g.file.file.Get()[g.audience] {
		equal |= subtle.ConstantTimeCompare(shown[:], sum[:])
	}
	return equal == 1
}

// parseTokens never quotes a line: it may hold a token.
func parseTokens(text []byte) (map[string][]tokenSum, error) {
	tokens := make(map[string][]tokenSum)
	return tokens, livefile.EachLine(text, func(_ int, words []string) error {
		if len(words) != 2 {
			return errTokenLine
		}
		tokens[words[0]] = append(tokens[words[0]], sha256.Sum256([]byte(words[1])))
		return nil
	})
}
