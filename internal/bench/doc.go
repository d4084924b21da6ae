// SPDX-License-Identifier: Apache-2.0

// Package bench measures the index against its goals and makes the operation
// files it is measured with.
package bench
