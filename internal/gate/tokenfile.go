// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
)

// maxTokenFileBytes bounds a token file.
const maxTokenFileBytes = 1 << 20

// TokenFile holds static tokens. Each line names an audience and a token that
// is good for it, separated by white space; empty lines and lines starting
// with # are ignored. The file is read again when it changes; while it cannot
// be used the tokens read last stay good.
type TokenFile struct {
	path   string
	logger *slog.Logger

	mu     sync.Mutex
	read   os.FileInfo           // of the file as it was read last, guarded by mu
	tokens map[string][]tokenSum // by audience, guarded by mu
	broken bool                  // the file is gone or unusable, guarded by mu
}

// tokenSum stands for a token, so that comparing takes equal time for all.
type tokenSum [sha256.Size]byte

// OpenTokenFile reads a token file. logger is told when the file becomes
// unusable later.
func OpenTokenFile(path string, logger *slog.Logger) (*TokenFile, error) {
	f := &TokenFile{path: path, logger: logger}
	if err := f.refreshLocked(); err != nil {
		return nil, fmt.Errorf("token file: %w", err)
	}
	return f, nil
}

// For returns the gate of an audience.
func (f *TokenFile) For(audience string) *TokenGate {
	if len(f.sums(audience)) == 0 {
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
	if !ok {
		return Unauthenticated
	}
	shown, equal := tokenSum(sha256.Sum256([]byte(token))), 0
	for _, sum := range g.file.sums(g.audience) {
		equal |= subtle.ConstantTimeCompare(shown[:], sum[:])
	}
	if equal != 1 {
		return Unauthenticated
	}
	return OK
}

func (f *TokenFile) sums(audience string) []tokenSum {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.refreshLocked()
	if err != nil && !f.broken {
		f.logger.Warn("keeping the previous tokens", "error", err)
	}
	f.broken = err != nil
	return f.tokens[audience]
}

// refreshLocked reads the file unless it is the one read last.
func (f *TokenFile) refreshLocked() error {
	info, err := os.Stat(f.path)
	if err != nil {
		return err
	}
	if f.read != nil && os.SameFile(info, f.read) && info.Size() == f.read.Size() && info.ModTime().Equal(f.read.ModTime()) {
		return nil
	}
	file, err := os.Open(f.path)
	if err != nil {
		return err
	}
	defer file.Close()
	tokens, err := parseTokens(file)
	if err != nil {
		return fmt.Errorf("%s: %w", f.path, err)
	}
	f.read, f.tokens = info, tokens
	return nil
}

// parseTokens never quotes a line: it may hold a token.
func parseTokens(from io.Reader) (map[string][]tokenSum, error) {
	text, err := io.ReadAll(io.LimitReader(from, maxTokenFileBytes+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > maxTokenFileBytes:
		return nil, fmt.Errorf("more than %d bytes", maxTokenFileBytes)
	}
	tokens := make(map[string][]tokenSum)
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxTokenFileBytes+1)
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) != 2 {
			return nil, fmt.Errorf("line %d: expected an audience and a token", number)
		}
		tokens[fields[0]] = append(tokens[fields[0]], sha256.Sum256([]byte(fields[1])))
	}
	return tokens, lines.Err()
}
