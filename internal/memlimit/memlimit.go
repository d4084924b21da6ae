// SPDX-License-Identifier: Apache-2.0

// Package memlimit keeps a process below the memory at which its container is
// killed.
package memlimit

import (
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// unlimited is more than any machine has; control groups of the first version
// say so where there is no limit.
const unlimited = 1 << 60

// Container is the memory limit of this process's container in bytes, 0 for
// none.
func Container() int64 {
	return lowest([]string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"})
}

// Apply has the garbage collector work harder above nine tenths of the
// container's limit. With GOMEMLIMIT it leaves that as it is.
func Apply() { apply(Container()) }

func apply(limit int64) {
	if limit > 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit / 10 * 9)
	}
}

// lowest is the lowest limit in files of a control group, 0 for none.
func lowest(files []string) int64 {
	limit := int64(math.MaxInt64)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 {
			limit = min(limit, n)
		}
	}
	if limit >= unlimited {
		return 0
	}
	return limit
}
