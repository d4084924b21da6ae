// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package index

// prefetch asks for the memory of a bucket without waiting for it.
//
//go:noescape
func prefetch(b *bucket)
