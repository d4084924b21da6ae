// SPDX-License-Identifier: Apache-2.0

package caller

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Caller is on whose behalf a request is served. Limits and fairness go by it.
type Caller struct {
	// Tenant names the caller. Callers of one tenant share what their limits
	// count; an empty name is a tenant of its own.
	Tenant string
	Limits Limits
}

// Limits bound what one caller may use. The zero value sets no bounds.
type Limits struct {
	// MaxInflight bounds requests under way; 0 is no bound.
	MaxInflight int
	// TokensPerMinute bounds prompt tokens; 0 is no bound.
	TokensPerMinute int64
}

// LimitsSyntax documents ParseLimits.
const LimitsSyntax = "inflight=N,tokens-per-minute=N"

// ParseLimits reads limits, all of them optional.
func ParseLimits(text string) (Limits, error) {
	var limits Limits
	if text == "" {
		return limits, nil
	}
	for _, part := range strings.Split(text, ",") {
		name, value, _ := strings.Cut(part, "=")
		number, err := strconv.ParseInt(value, 10, 32)
		if err != nil || number < 1 {
			return Limits{}, errors.New("limits: expected " + LimitsSyntax + " with numbers from 1")
		}
		switch name {
		case "inflight":
			limits.MaxInflight = int(number)
		case "tokens-per-minute":
			limits.TokensPerMinute = number
		default:
			return Limits{}, errors.New("limits: expected " + LimitsSyntax)
		}
	}
	return limits, nil
}

const maxTenantBytes = 128

// CheckTenant refuses names that no tenant has: 1 to 128 printable ASCII
// characters without spaces are expected.
func CheckTenant(name string) error {
	outside := strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' })
	if name == "" || len(name) > maxTenantBytes || outside {
		return fmt.Errorf("tenant: expected 1 to %d printable ASCII characters without spaces", maxTenantBytes)
	}
	return nil
}
