// SPDX-License-Identifier: Apache-2.0

package index_test

import (
	"cmp"
	"slices"

	"github.com/inferencecache/inference-cache/internal/index"
)

func sortMatches(ms []index.Match) {
	slices.SortFunc(ms, func(a, b index.Match) int { return cmp.Compare(a.Replica, b.Replica) })
}
