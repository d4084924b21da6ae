// SPDX-License-Identifier: Apache-2.0

package imagetar

import (
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Release says which images to write.
type Release struct {
	// Binary is the path of a static Linux binary of this project. Required.
	Binary string
	// Out is the folder to write to; it is made if it is not there. Required.
	Out string
	// Registry is the host and path before the names; default ic.test.
	Registry string
	// Tag of the images; default dev.
	Tag string
}

// Checksums is the file with the sums of all others, as sha256sum reads it.
const Checksums = "SHA256SUMS"

// binaryPath is where images hold the binary.
const binaryPath = "/app"

// releaseImages are the images by name: that of all roles, and the one injected
// into engine pods, whose arguments are those of the publisher alone.
var releaseImages = []struct {
	name       string
	entrypoint []string
}{
	{"inferencecache", []string{binaryPath}},
	{"kvevent-subscriber", []string{binaryPath, "publisher"}},
}

// Write writes each image as a tar archive, what the binary was built from, and
// the checksums of all. It returns the names of the images.
func (r Release) Write() ([]string, error) {
	if r.Registry == "" {
		r.Registry = "ic.test"
	}
	if r.Tag == "" {
		r.Tag = "dev"
	}
	binary, err := os.ReadFile(r.Binary)
	if err != nil {
		return nil, fmt.Errorf("read the binary: %w", err)
	}
	architecture, err := staticArchitecture(binary)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.Binary, err)
	}
	if err := os.MkdirAll(r.Out, 0o755); err != nil {
		return nil, fmt.Errorf("make the folder of images: %w", err)
	}
	bom, err := SBOM("inferencecache", binary)
	if err != nil {
		return nil, err
	}
	var sums strings.Builder
	write := func(name string, data []byte) error {
		fmt.Fprintf(&sums, "%s  %s\n", digest(data), name)
		return os.WriteFile(filepath.Join(r.Out, name), data, 0o644)
	}
	var names []string
	for _, image := range releaseImages {
		var archive bytes.Buffer
		name := r.Registry + "/" + image.name + ":" + r.Tag
		_, err := Image{
			Name: name, Architecture: architecture, Entrypoint: image.entrypoint,
			Files: []File{{Path: binaryPath, Executable: true, Data: binary}},
		}.Write(&archive)
		if err != nil {
			return nil, err
		}
		if err := write(image.name+".tar", archive.Bytes()); err != nil {
			return nil, fmt.Errorf("write image %s: %w", name, err)
		}
		names = append(names, name)
	}
	if err := write("inferencecache.spdx.json", bom); err != nil {
		return nil, fmt.Errorf("write the list of modules: %w", err)
	}
	if err := os.WriteFile(filepath.Join(r.Out, Checksums), []byte(sums.String()), 0o644); err != nil {
		return nil, fmt.Errorf("write checksums: %w", err)
	}
	return names, nil
}

// staticArchitecture returns what a Linux binary was built for. One that needs
// a loader would not start: the image has none.
func staticArchitecture(binary []byte) (string, error) {
	file, err := elf.NewFile(bytes.NewReader(binary))
	if err != nil {
		return "", fmt.Errorf("not a Linux binary: %w", err)
	}
	for _, section := range file.Progs {
		if section.Type == elf.PT_INTERP {
			return "", fmt.Errorf("needs a loader and libraries, which the image does not have: build with CGO_ENABLED=0")
		}
	}
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return "", fmt.Errorf("read what it was built for: %w", err)
	}
	if system := setting(info, "GOOS"); system != "linux" {
		return "", fmt.Errorf("built for %q: expected linux", system)
	}
	return setting(info, "GOARCH"), nil
}
