// SPDX-License-Identifier: Apache-2.0

package memlimit

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
)

func TestContainerLimit(t *testing.T) {
	for name, tc := range map[string]struct {
		texts []string // of the control group's files, "-" for one that is not there
		want  int64
	}{
		"of the second version":    {[]string{"268435456\n", "-"}, 256 << 20},
		"of the first version":     {[]string{"-", "268435456\n"}, 256 << 20},
		"none":                     {[]string{"max\n", "-"}, 0},
		"none in the first":        {[]string{"-", "9223372036854771712\n"}, 0},
		"outside of a container":   {[]string{"-", "-"}, 0},
		"something else":           {[]string{"a lot", "-"}, 0},
		"a negative one is none":   {[]string{"-1", "-"}, 0},
		"the lesser if both exist": {[]string{"2048", "1024"}, 1024},
	} {
		t.Run(name, func(t *testing.T) {
			var files []string
			for i, text := range tc.texts {
				file := filepath.Join(t.TempDir(), string(rune('a'+i)))
				if text != "-" {
					if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				files = append(files, file)
			}
			if got := lowest(files); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}

func TestApplyKeepsClearOfTheLimit(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	for name, tc := range map[string]struct {
		limit int64
		env   string
		want  int64
	}{
		"nine tenths of the container's": {1000 << 20, "", 900 << 20},
		"no limit":                       {0, "", math.MaxInt64},
		"the user's own":                 {1000 << 20, "800MiB", math.MaxInt64}, // the runtime has read it
	} {
		t.Run(name, func(t *testing.T) {
			debug.SetMemoryLimit(math.MaxInt64)
			t.Setenv("GOMEMLIMIT", tc.env)
			apply(tc.limit)
			if got := debug.SetMemoryLimit(-1); got != tc.want {
				t.Errorf("the collector keeps below %d, want %d", got, tc.want)
			}
		})
	}
}
