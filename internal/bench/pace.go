// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"runtime"
	"time"
)

// spinFor is how long before a time WaitUntil stops to sleep.
const spinFor = 20 * time.Microsecond

// Pacer gives the calling goroutine a thread whose sleeps are exact; release
// gives it back. The thread keeps its fine timer.
func Pacer() (release func()) {
	runtime.LockOSThread()
	fineTimer()
	return runtime.UnlockOSThread
}

// WaitUntil sleeps, and spins at the end. It is exact under a Pacer.
func WaitUntil(due time.Time) {
	for {
		left := time.Until(due)
		switch {
		case left <= 0:
			return
		case left > 2*spinFor:
			nap(left - spinFor)
		}
	}
}
