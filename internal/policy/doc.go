// SPDX-License-Identifier: Apache-2.0

// Package policy knows what each tenant wants: it resolves declared policies
// against the defaults and keeps the result as one immutable view.
package policy
