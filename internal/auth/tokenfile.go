// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"

	"github.com/inferencecache/inference-cache/internal/gate"
	"github.com/inferencecache/inference-cache/internal/livefile"
)

var errTokenLine = errors.New("expected an audience, a token, its tenants and its replica")

// tokenSum stands for a token.
type tokenSum [sha256.Size]byte

func sumOf(token string) tokenSum { return sha256.Sum256([]byte(token)) }

// TokenFile holds static tokens. Each line names an audience, a token that is
// good for it, the tenants it may read or write (a comma-separated list or
// "*") and the replica it may write as ("*" for all). The file is read again
// when it changes. It is safe for concurrent use.
type TokenFile struct {
	file *livefile.File[map[string][]staticToken]
}

type staticToken struct {
	sum      tokenSum
	identity Identity
}

// OpenTokenFile reads a file of static tokens. logger is told when the file
// becomes unusable later.
func OpenTokenFile(path string, logger *slog.Logger) (*TokenFile, error) {
	file, err := livefile.Open(path, logger, parseTokens)
	if err != nil {
		return nil, fmt.Errorf("token file: %w", err)
	}
	return &TokenFile{file}, nil
}

// For returns the authenticator of an audience.
func (f *TokenFile) For(audience string) *StaticTokens { return &StaticTokens{f, audience} }

// StaticTokens judges the tokens of one audience by a file.
type StaticTokens struct {
	file     *TokenFile
	audience string
}

// Authenticate returns OK or Unauthenticated. It takes the same time for all
// tokens.
func (s *StaticTokens) Authenticate(_ context.Context, _, token string) (Identity, gate.Verdict) {
	shown := sumOf(token)
	verdict, identity := gate.Unauthenticated, Identity{}
	for _, known := range s.file.file.Get()[s.audience] {
		if subtle.ConstantTimeCompare(shown[:], known.sum[:]) == 1 {
			verdict, identity = gate.OK, known.identity
		}
	}
	return identity, verdict
}

func parseTokens(text []byte) (map[string][]staticToken, error) {
	tokens := make(map[string][]staticToken)
	return tokens, livefile.EachLine(text, func(number int, words []string) error {
		if len(words) != 4 {
			return errTokenLine
		}
		tenants := ParseNames(words[2])
		tokens[words[0]] = append(tokens[words[0]], staticToken{
			sum: sumOf(words[1]),
			identity: Identity{
				Name:    fmt.Sprintf("token-file:%d", number),
				Writes:  tenants,
				Reads:   tenants,
				Replica: words[3],
			},
		})
		return nil
	})
}
