// SPDX-License-Identifier: Apache-2.0

//go:build race

package index_test

// underRace says that pools drop at random, so that allocations cannot be
// counted.
const underRace = true
