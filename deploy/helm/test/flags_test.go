// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var flagInHelp = regexp.MustCompile(`(?m)^\s+(?:-\w, )?(--[a-z0-9-]+)`)

// flagInManifest finds the flags of the publisher in docs/install.md.
var flagInManifest = regexp.MustCompile(`(?m)^\s+- (--[a-z0-9-]+)`)

// TestFlagsExist checks the arguments of every container against the help of
// the command it runs, and those of the publisher in the documentation.
func TestFlagsExist(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "inferencecache")
	build := exec.Command("go", "build", "-C", "../../..", "-trimpath", "-o", binary, "./cmd/inferencecache")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	known := make(map[string]map[string]bool)
	for name, values := range variants {
		for _, d := range render(t, values).deployments(t) {
			for _, c := range d.Spec.Template.Spec.Containers {
				command := c.Args[0]
				if known[command] == nil {
					known[command] = flagsOf(t, binary, command)
				}
				seen := make(map[string]bool)
				for _, argument := range c.Args[1:] {
					flag, _, _ := strings.Cut(argument, "=")
					if !known[command][flag] {
						t.Errorf("%s: %s has no flag %s", name, command, flag)
					}
					if seen[flag] {
						t.Errorf("%s: %s gets %s twice", name, command, flag)
					}
					seen[flag] = true
				}
			}
		}
	}
	documented, err := os.ReadFile("../../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	publisher := flagsOf(t, binary, "publisher")
	shown := flagInManifest.FindAllStringSubmatch(string(documented), -1)
	if len(shown) == 0 {
		t.Error("docs/install.md shows no publisher")
	}
	for _, match := range shown {
		if !publisher[match[1]] {
			t.Errorf("docs/install.md: publisher has no flag %s", match[1])
		}
	}
	if len(known) != 3 {
		t.Errorf("commands %v, want server, controller and gateway", known)
	}
}

func flagsOf(t *testing.T, binary, command string) map[string]bool {
	t.Helper()
	help, err := exec.Command(binary, command, "--help").Output()
	if err != nil {
		t.Fatalf("%s --help: %v", command, err)
	}
	flags := make(map[string]bool)
	for _, match := range flagInHelp.FindAllStringSubmatch(string(help), -1) {
		flags[match[1]] = true
	}
	if len(flags) < 10 {
		t.Fatalf("%s --help shows %d flags", command, len(flags))
	}
	return flags
}
