// SPDX-License-Identifier: Apache-2.0

package caller

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"

	"github.com/inferencecache/inference-cache/internal/livefile"
)

var errKeyLine = errors.New("expected the SHA-256 of a key in hex, a tenant and at most one list of limits")

// keySum stands for a key.
type keySum [sha256.Size]byte

type apiKey struct {
	sum    keySum
	caller Caller
}

// keyTable is a parsed file of keys.
type keyTable struct {
	// shelves hold the keys by the first byte of their sum, so that a lookup
	// compares few of them.
	shelves [256][]apiKey
	tenants map[string]bool
}

// keys is a file of API keys, which is read again when it changes.
type keys struct{ file *livefile.File[*keyTable] }

// openKeys reads a file of keys; accept may refuse it for its tenants.
func openKeys(path string, logger *slog.Logger, accept func(tenants map[string]bool) error) (*keys, error) {
	file, err := livefile.Open(path, logger, func(text []byte) (*keyTable, error) {
		table, err := parseKeys(text)
		if err == nil {
			err = accept(table.tenants)
		}
		return table, err
	})
	if err != nil {
		return nil, fmt.Errorf("API keys: %w", err)
	}
	return &keys{file}, nil
}

// find compares a key with all that share a byte of its sum, each in constant
// time.
func (k *keys) find(key string) (Caller, bool) {
	shown := keySum(sha256.Sum256([]byte(key)))
	found, caller := false, Caller{}
	for _, known := range k.file.Get().shelves[shown[0]] {
		if subtle.ConstantTimeCompare(shown[:], known.sum[:]) == 1 {
			found, caller = true, known.caller
		}
	}
	return caller, found
}

func parseKeys(text []byte) (*keyTable, error) {
	table := &keyTable{tenants: map[string]bool{}}
	limitsOf := map[string]Limits{}
	return table, livefile.EachLine(text, func(_ int, words []string) error {
		if len(words) != 2 && len(words) != 3 {
			return errKeyLine
		}
		key := apiKey{caller: Caller{Tenant: words[1]}}
		if n, err := hex.Decode(key.sum[:], []byte(words[0][:min(len(words[0]), 2*sha256.Size)])); err != nil ||
			n != sha256.Size || len(words[0]) != 2*sha256.Size {
			return errKeyLine
		}
		if err := CheckTenant(key.caller.Tenant); err != nil {
			return err
		}
		var err error
		if len(words) == 3 {
			if key.caller.Limits, err = ParseLimits(words[2]); err != nil {
				return err
			}
		}
		// Limits are a tenant's, so its keys must not disagree about them.
		if before, known := limitsOf[words[1]]; known && before != key.caller.Limits {
			return errors.New("limits: another line gives the same tenant other limits")
		}
		limitsOf[words[1]] = key.caller.Limits
		table.tenants[words[1]] = true
		table.shelves[key.sum[0]] = append(table.shelves[key.sum[0]], key)
		return nil
	})
}
