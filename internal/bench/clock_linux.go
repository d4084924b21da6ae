// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// threadTime returns the processor time of the calling thread. The caller is
// locked to it.
func threadTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// ProcessTime returns the processor time of the process.
func ProcessTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// fineTimer lets the calling thread, which the caller is locked to, sleep to
// the microsecond. The usual slack of a timer is 50 us.
func fineTimer() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1000, 0, 0, 0) }

// nap sleeps in the kernel. The runtime's own timers are good to a millisecond
// while all else is idle.
func nap(d time.Duration) {
	left := unix.NsecToTimespec(d.Nanoseconds())
	for unix.Nanosleep(&left, &left) == unix.EINTR { //nolint:revive // the rest is slept in the next round
	}
}

// threadSwitches counts how often the calling thread had to make room for
// another.
func threadSwitches() int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		return 0
	}
	return u.Nivcsw
}

// ResidentBytes returns the resident memory of the process, 0 when unknown.
func ResidentBytes() float64 { return residentOf("self") }

// ResidentBytesOf returns the resident memory of a process, 0 when unknown.
func ResidentBytesOf(pid int) float64 { return residentOf(strconv.Itoa(pid)) }

// ticksPerSecond is the unit of processor times in /proc.
const ticksPerSecond = 100

// ProcessTimeOf returns the processor time of a process to a hundredth of a
// second, 0 when unknown.
func ProcessTimeOf(pid int) time.Duration {
	line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(line), ") ") // the name may hold blanks
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * time.Second / ticksPerSecond
}

// MachineTime returns the processor time of everything on the machine, and what
// the host gave to other guests meanwhile.
func MachineTime() (busy, stolen time.Duration) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0
	}
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line) // cpu user nice system idle iowait irq softirq steal
	if len(fields) < 9 {
		return 0, 0
	}
	ticks := func(i int) time.Duration {
		n, _ := strconv.ParseInt(fields[i], 10, 64)
		return time.Duration(n) * time.Second / ticksPerSecond
	}
	return ticks(1) + ticks(2) + ticks(3) + ticks(6) + ticks(7), ticks(8)
}

// residentOf reads the resident memory of a process.
func residentOf(pid string) float64 {
	line, err := os.ReadFile("/proc/" + pid + "/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(line))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseFloat(fields[1], 64)
	if err != nil {
		return 0
	}
	return pages * float64(os.Getpagesize())
}

// cpuModel names the processor, "" when unknown.
func cpuModel() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(info)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
