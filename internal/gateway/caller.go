// SPDX-License-Identifier: Apache-2.0

package gateway

import "github.com/inferencecache/inference-cache/internal/caller"

// Caller is on whose behalf a request is served. Limits and fairness go by it.
type Caller = caller.Caller

// Limits bound what one caller may use. The zero value sets no bounds.
type Limits = caller.Limits
