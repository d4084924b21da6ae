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
func adviseHuge(buckets []bucket) {
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(buckets))), len(buckets)*bucketSize*entryBytes)
	_ = bytes
	start := uintptr(unsafe.Pointer(unsafe.SliceData(buckets)))
	end := (start + uintptr(len(bytes)) + hugePage - 1) &^ (hugePage - 1)
	start &^= hugePage - 1
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, start, end-start, unix.MADV_HUGEPAGE)
}
