// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package bench

import "time"

// threadTime stands in for the processor time of the thread.
func threadTime() time.Duration { return time.Duration(time.Now().UnixNano()) }

// threadSwitches counts nothing here.
func threadSwitches() int64 { return 0 }

// residentBytes returns the resident memory of the process, 0 when unknown.
func residentBytes() float64 { return 0 }

// cpuModel names the processor, "" when unknown.
func cpuModel() string { return "" }
