// SPDX-License-Identifier: Apache-2.0

// Package index remembers which replica holds which block.
//
// A membership is a (key, replica) pair; a key lives in a partition, that is a
// scope plus an adapter. The package knows no policy, has no clock, starts no
// goroutine and does no I/O: times and limits are arguments.
package index
