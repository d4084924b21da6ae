// SPDX-License-Identifier: Apache-2.0

// Package scale measures the controller beside a real API server that holds a
// large cluster: its test, behind the build tag scale, prints one JSON object a
// row like the other benchmarks. `make bench-controller` runs it.
package scale
