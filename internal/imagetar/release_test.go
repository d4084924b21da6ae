// SPDX-License-Identifier: Apache-2.0

package imagetar

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// buildStatic builds a program that needs nothing but Go's runtime.
func buildStatic(t *testing.T) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("builds a Linux binary with the cache of this system")
	}
	folder := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":  "module example.com/small\n\ngo 1.26\n",
		"main.go": "package main\n\nfunc main() { println(\"up\") }\n",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	command := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", "small", ".")
	command.Dir, command.Env = folder, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return filepath.Join(folder, "small")
}

func readFolder(t *testing.T, folder string) map[string][]byte {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string][]byte)
	for _, entry := range entries {
		if files[entry.Name()], err = os.ReadFile(filepath.Join(folder, entry.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// TestReleaseIsReproducible builds the same program in two folders, and its
// images twice.
func TestReleaseIsReproducible(t *testing.T) {
	var runs []map[string][]byte
	for range 2 {
		out := filepath.Join(t.TempDir(), "images")
		names, err := Release{Binary: buildStatic(t), Out: out, Tag: "v1"}.Write()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"ic.test/inferencecache:v1", "ic.test/kvevent-subscriber:v1"}, names); diff != "" {
			t.Errorf("names: %s", diff)
		}
		runs = append(runs, readFolder(t, out))
	}
	if len(runs[0]) != 4 {
		t.Errorf("%d files", len(runs[0]))
	}
	for name, data := range runs[0] {
		if !bytes.Equal(data, runs[1][name]) {
			t.Errorf("%s differs between two runs", name)
		}
		line := digest(data) + "  " + name + "\n"
		if name != Checksums && !strings.Contains(string(runs[0][Checksums]), line) {
			t.Errorf("%s has no line of %s", Checksums, name)
		}
	}
	binary, err := os.ReadFile(buildStatic(t))
	if err != nil {
		t.Fatal(err)
	}
	for archive, want := range map[string][]string{"inferencecache.tar": {"/app"}, "kvevent-subscriber.tar": {"/app", "publisher"}} {
		for name, file := range unpack(t, runs[0][archive]) {
			if !strings.HasSuffix(name, ".json") || name == "manifest.json" {
				continue
			}
			var config imageConfig
			if err := json.Unmarshal(file.data, &config); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, config.Config.Entrypoint); diff != "" {
				t.Errorf("%s: entry point: %s", archive, diff)
			}
		}
	}
	layer := unpack(t, unpack(t, runs[0]["kvevent-subscriber.tar"])["layer.tar"].data)
	if !bytes.Equal(layer["app"].data, binary) {
		t.Error("the image does not hold the binary")
	}
}

func TestBinariesThatCouldNotRunAreRefused(t *testing.T) {
	text := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(text, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ binary, want string }{
		"a script":                     {text, "not a Linux binary"},
		"a file that is not there":     {text + "x", "read the binary"},
		"a binary that needs a loader": {"/bin/sh", "needs a loader"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Release{Binary: tc.binary, Out: t.TempDir()}.Write()
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one about %q", err, tc.want)
			}
		})
	}
}

// TestSBOM compares the list of a program with what the linker recorded.
func TestSBOM(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	if output, err := exec.Command("go", "build", "-trimpath", "-o", path, "./testdata/program").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	binary, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text, err := SBOM("test", binary)
	if err != nil {
		t.Fatal(err)
	}
	document := decodeSBOM(t, text)
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(info.Deps) == 0 || len(document.Packages) != len(info.Deps)+2 {
		t.Fatalf("%d packages for %d modules", len(document.Packages), len(info.Deps))
	}
	main := document.Packages[0]
	if main.Name != info.Main.Path || main.Checksums[0].Value != digest(binary) {
		t.Errorf("main package %+v", main)
	}
	if goRelease := document.Packages[1]; "go"+goRelease.VersionInfo != info.GoVersion {
		t.Errorf("Go %s, want %s", goRelease.VersionInfo, info.GoVersion)
	}
	related := make(map[string]string)
	for _, r := range document.Relationships {
		related[r.Related] = r.Element + " " + r.Type
	}
	ids := make(map[string]bool)
	for i, p := range document.Packages {
		want := "SPDXRef-main DEPENDS_ON"
		if i == 0 {
			want = "SPDXRef-DOCUMENT DESCRIBES"
		}
		if related[p.SPDXID] != want || ids[p.SPDXID] {
			t.Errorf("%s %s: related as %q", p.SPDXID, p.Name, related[p.SPDXID])
		}
		ids[p.SPDXID] = true
	}
	for i, m := range info.Deps {
		p := document.Packages[i+2]
		if p.Name != m.Path || p.VersionInfo != m.Version || p.ExternalRefs[0].Locator != "pkg:golang/"+m.Path+"@"+m.Version {
			t.Errorf("module %s %s: %+v", m.Path, m.Version, p)
		}
	}
	if _, err := SBOM("test", []byte("no binary")); err == nil {
		t.Error("a list of what is no binary")
	}
}
