// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package index

// adviseHuge does nothing: there is no such hint here.
func adviseHuge([]bucket) {}
