// SPDX-License-Identifier: Apache-2.0

// Package propagate turns the declared resources into what a server's internal
// listener takes: one policy snapshot and one set of extensions for the whole
// cluster, and a verdict for each resource.
//
// Equal resources give equal bytes, in whatever order they are listed.
package propagate
