// SPDX-License-Identifier: Apache-2.0

// Package defaults fills in options that were left out.
package defaults

// Set gives a zero value its default.
func Set[T comparable](value *T, fallback T) {
	var zero T
	if *value == zero {
		*value = fallback
	}
}

// Positive gives a value that is not positive its default.
func Positive[T ~int | ~int64 | ~float64](value *T, fallback T) {
	if *value <= 0 {
		*value = fallback
	}
}
