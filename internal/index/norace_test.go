// SPDX-License-Identifier: Apache-2.0

//go:build !race

package index_test

const underRace = false
