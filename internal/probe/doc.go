// SPDX-License-Identifier: Apache-2.0

// Package probe tests a server's own path from a report to a hint, under a
// tenant that nobody else can see.
package probe
