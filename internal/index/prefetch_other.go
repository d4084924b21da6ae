// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 && !arm64

package index

// prefetch does nothing: there is no instruction for it here.
func prefetch(*bucket) {}
