// SPDX-License-Identifier: Apache-2.0

package index

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugePage is the size of a huge page on most systems.
const hugePage = 2 << 20

// adviseHuge asks for huge pages behind a large piece of memory. It is a hint:
// the result does not matter.
func adviseHuge(entries []entry) {
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(entries))), len(entries)*entryBytes)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(bytes))) & (hugePage - 1))
	if len(bytes) < skip+hugePage {
		return
	}
	whole := (len(bytes) - skip) &^ (hugePage - 1)
	_ = unix.Madvise(bytes[skip:skip+whole], unix.MADV_HUGEPAGE)
}
