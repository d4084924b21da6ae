// SPDX-License-Identifier: Apache-2.0

package index

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugePage is the size of a huge page on most systems.
const hugePage = 2 << 20

// adviseHuge asks for huge pages behind a large piece of memory and what shares
// its first and last one: pieces come one behind the other on the heap. It is a
// hint: the result does not matter.
func adviseHuge(buckets []bucket) {
	bytes := uintptr(len(buckets)) * bucketSize * entryBytes
	if bytes < hugePage/4 {
		return
	}
	start := uintptr(unsafe.Pointer(unsafe.SliceData(buckets)))
	end := (start + bytes + hugePage - 1) &^ (hugePage - 1)
	start &^= hugePage - 1
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, start, end-start, unix.MADV_HUGEPAGE)
}
