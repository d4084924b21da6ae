// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var writeTo = flag.String("write-to", "", "folder to write what the chart renders to, for tests with an API server")

// TestWriteRendered writes the objects of the variant with everything, without
// those of kinds that Kubernetes does not have.
func TestWriteRendered(t *testing.T) {
	if *writeTo == "" {
		t.Skip("writes the rendered chart for other tests, only with -write-to DIR")
	}
	files, err := templates(t, strings.ReplaceAll(everything, "true, podMonitors: true", "false, podMonitors: false"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if !strings.HasSuffix(name, ".yaml") || strings.TrimSpace(text) == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(*writeTo, filepath.Base(name)), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
