// SPDX-License-Identifier: Apache-2.0

package gateway

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
