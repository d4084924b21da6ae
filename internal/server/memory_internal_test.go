// SPDX-License-Identifier: Apache-2.0

package server

import "testing"

func TestParseMemory(t *testing.T) {
	for name, tc := range map[string]struct{ got, want int64 }{
		"a limit of a control group":   {parseBytes([]byte("1073741824\n")), 1 << 30},
		"no limit of a control group":  {parseBytes([]byte("max\n")), 0},
		"nothing":                      {parseBytes(nil), 0},
		"the memory of the machine":    {parseMemTotal([]byte("MemFree: 1 kB\nMemTotal:       16384 kB\n")), 16 << 20},
		"a machine that does not say":  {parseMemTotal([]byte("MemFree: 1 kB\n")), 0},
		"a line without a number":      {parseMemTotal([]byte("MemTotal:\n")), 0},
		"the lesser of two":            {lesser(8, 4), 4},
		"a limit of 0 is none":         {lesser(8, 0), 8},
		"a limit above the bound":      {lesser(8, 16), 8},
		"the default is at most 8 GiB": {min(defaultMaxMemoryBytes(), maxDefaultMemory), defaultMaxMemoryBytes()},
		"and half of the limit":        {lesser(defaultMaxMemoryBytes(), memoryLimitBytes()/2), defaultMaxMemoryBytes()},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.got != tc.want {
				t.Errorf("got %d, want %d", tc.got, tc.want)
			}
		})
	}
}
