// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/inferencecache/inference-cache/internal/livefile"
)

var errTenantLine = errors.New("expected a caller and its tenants")

// TenantMap says which tenants callers may read. Each line of its file names
// a caller, as in Identity.Name, and its tenants: a comma-separated list, or
// "*" for all. Callers without a line may read nothing. The file is read
// again when it changes. It is safe for concurrent use.
type TenantMap struct {
	file *livefile.File[map[string]Names]
}

// OpenTenantMap reads a file of callers and tenants. logger is told when the
// file becomes unusable later.
func OpenTenantMap(path string, logger *slog.Logger) (*TenantMap, error) {
	file, err := livefile.Open(path, logger, parseTenantMap)
	if err != nil {
		return nil, fmt.Errorf("tenant map: %w", err)
	}
	return &TenantMap{file}, nil
}

// Of returns the tenants of a caller.
func (m *TenantMap) Of(caller string) Names { return m.file.Get()[caller] }

func parseTenantMap(text []byte) (map[string]Names, error) {
	tenants := make(map[string]Names)
	return tenants, livefile.EachLine(text, func(_ int, words []string) error {
		if len(words) != 2 {
			return errTenantLine
		}
		tenants[words[0]] = tenants[words[0]].plus(ParseNames(words[1]))
		return nil
	})
}
