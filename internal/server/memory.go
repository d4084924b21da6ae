// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"math"
	"os"
	"runtime/debug"
	"strconv"

	"github.com/inferencecache/inference-cache/internal/memlimit"
)

// maxDefaultMemory bounds the default bound of the index.
const maxDefaultMemory = 8 << 30

// defaultMaxMemoryBytes is half of the memory this process may use, or of
// GOMEMLIMIT if that is less.
func defaultMaxMemoryBytes() int64 {
	limit := lesser(2*maxDefaultMemory, memoryLimitBytes())
	if soft := debug.SetMemoryLimit(-1); soft != math.MaxInt64 {
		limit = lesser(limit, soft)
	}
	return limit / 2
}

// memoryLimitBytes is the memory this process may use before it is killed: the
// limit of its control group or the machine's memory; 0 = unknown.
func memoryLimitBytes() int64 {
	limit := lesser(math.MaxInt64, memlimit.Container())
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		limit = lesser(limit, parseMemTotal(text))
	}
	if limit == math.MaxInt64 {
		return 0
	}
	return limit
}

// lesser ignores values that are no limit.
func lesser(limit, other int64) int64 {
	if other <= 0 {
		return limit
	}
	return min(limit, other)
}

func parseBytes(text []byte) int64 {
	n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func parseMemTotal(meminfo []byte) int64 {
	for line := range bytes.Lines(meminfo) {
		fields := bytes.Fields(line)
		if len(fields) >= 2 && string(fields[0]) == "MemTotal:" {
			return parseBytes(fields[1]) * 1024
		}
	}
	return 0
}
