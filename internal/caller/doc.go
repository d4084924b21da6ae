// SPDX-License-Identifier: Apache-2.0

// Package caller finds out on whose behalf a client of the gateway calls.
//
// A client shows an API key, a client certificate or a JSON web token. Resolver
// is the one place that turns what it shows into a tenant and its limits. Keys
// and tokens are never logged, kept or compared as such: their SHA-256 or their
// signature stands for them.
package caller
