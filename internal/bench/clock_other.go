// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package bench

import "time"

// threadTime stands in for the processor time of the thread.
func threadTime() time.Duration { return time.Duration(time.Now().UnixNano()) }

// ProcessTime stands in for the processor time of the process.
func ProcessTime() time.Duration { return time.Duration(time.Now().UnixNano()) }

// fineTimer does nothing here.
func fineTimer() {}

// nap sleeps as well as the runtime can.
func nap(d time.Duration) { time.Sleep(d) }

// threadSwitches counts nothing here.
func threadSwitches() int64 { return 0 }

// ResidentBytes returns the resident memory of the process, 0 when unknown.
func ResidentBytes() float64 { return 0 }

// ResidentBytesOf returns the resident memory of a process, 0 when unknown.
func ResidentBytesOf(int) float64 { return 0 }

// ProcessTimeOf returns the processor time of a process, 0 when unknown.
func ProcessTimeOf(int) time.Duration { return 0 }

// MachineTime knows nothing here.
func MachineTime() (busy, stolen time.Duration) { return 0, 0 }

// cpuModel names the processor, "" when unknown.
func cpuModel() string { return "" }
