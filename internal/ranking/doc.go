// SPDX-License-Identifier: Apache-2.0

// Package ranking turns a match into a score. It is pure arithmetic in
// float32; every product is converted explicitly, so that no platform fuses a
// multiplication with an addition and all platforms agree to the last bit.
package ranking
