// SPDX-License-Identifier: Apache-2.0

// Package imagetar writes container images of static binaries, without a base
// image, a daemon or a registry. Equal input makes equal bytes, so the checksum
// of an archive proves a build.
package imagetar

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// DefaultUser is who a container runs as: nobody's own account.
const DefaultUser = "65532"

// maxUser is the largest user id of Linux.
const maxUser = 1<<31 - 1

// Image is an image of one layer.
type Image struct {
	// Name is fully qualified and has a tag: ic.test/server:dev. Importers
	// expand short names to some registry's. Required.
	Name string
	// Architecture is that of the binaries, in Go's words; default amd64.
	Architecture string
	// Files are what the image holds. At least one.
	Files []File
	// Entrypoint is the command, its first word the absolute path of a file of
	// the image. Required.
	Entrypoint []string
	// User is the numeric id, at least 1, that the command runs as: a name
	// would not do for runAsNonRoot. Default DefaultUser.
	User string
}

// File is a regular file of an image, owned by root and never written to.
type File struct {
	// Path is absolute.
	Path string
	// Executable files have mode 0755, others 0644.
	Executable bool
	Data       []byte
}

// imageName is host/path:tag, with a dot in the host.
var imageName = regexp.MustCompile(`^[a-z0-9-]+(\.[a-z0-9-]+)+(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+:[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)

func (i Image) withDefaults() Image {
	if i.Architecture == "" {
		i.Architecture = "amd64"
	}
	if i.User == "" {
		i.User = DefaultUser
	}
	return i
}

func (i Image) validate() error {
	if !imageName.MatchString(i.Name) || strings.HasSuffix(i.Name, ":latest") {
		return fmt.Errorf("image name %q: expected host.domain/path:tag, and a tag other than latest", i.Name)
	}
	if id, err := strconv.Atoi(i.User); err != nil || id < 1 || id > maxUser {
		return fmt.Errorf("image %s: user %q: expected a number from 1", i.Name, i.User)
	}
	executable := make(map[string]bool)
	for _, file := range i.Files {
		if !path.IsAbs(file.Path) || path.Clean(file.Path) != file.Path || file.Path == "/" {
			return fmt.Errorf("image %s: file %q: expected a clean absolute path", i.Name, file.Path)
		}
		if _, twice := executable[file.Path]; twice {
			return fmt.Errorf("image %s: file %s is there twice", i.Name, file.Path)
		}
		executable[file.Path] = file.Executable
	}
	if len(i.Entrypoint) == 0 || !executable[i.Entrypoint[0]] {
		return fmt.Errorf("image %s: entry point %q: expected an executable file of the image", i.Name, i.Entrypoint)
	}
	return nil
}

type imageConfig struct {
	Architecture string       `json:"architecture"`
	OS           string       `json:"os"`
	Config       configValues `json:"config"`
	RootFS       rootFS       `json:"rootfs"`
}

type configValues struct {
	Entrypoint []string `json:"Entrypoint"`
	User       string   `json:"User"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

type manifestEntry struct {
	Config   string   `json:"Config"`
	RepoTags []string `json:"RepoTags"`
	Layers   []string `json:"Layers"`
}

// Write writes the image as a docker archive: layer.tar, the configuration
// named by its digest, and manifest.json. It returns that digest, which is the
// id of the image.
func (i Image) Write(w io.Writer) (string, error) {
	i = i.withDefaults()
	if err := i.validate(); err != nil {
		return "", err
	}
	var layer bytes.Buffer
	if err := writeTar(&layer, i.Files); err != nil {
		return "", fmt.Errorf("write the layer of %s: %w", i.Name, err)
	}
	config, err := json.Marshal(imageConfig{
		Architecture: i.Architecture, OS: "linux",
		Config: configValues{Entrypoint: i.Entrypoint, User: i.User},
		RootFS: rootFS{Type: "layers", DiffIDs: []string{"sha256:" + digest(layer.Bytes())}},
	})
	if err != nil {
		return "", fmt.Errorf("write the configuration of %s: %w", i.Name, err)
	}
	configName := digest(config) + ".json"
	manifest, err := json.Marshal([]manifestEntry{{Config: configName, RepoTags: []string{i.Name}, Layers: []string{"layer.tar"}}})
	if err != nil {
		return "", fmt.Errorf("write the manifest of %s: %w", i.Name, err)
	}
	err = writeTar(w, []File{
		{Path: "/layer.tar", Data: layer.Bytes()}, {Path: "/" + configName, Data: config}, {Path: "/manifest.json", Data: manifest},
	})
	if err != nil {
		return "", fmt.Errorf("write image %s: %w", i.Name, err)
	}
	return "sha256:" + digest(config), nil
}

// writeTar writes files with all that differs between builds left at zero.
func writeTar(w io.Writer, files []File) error {
	archive := tar.NewWriter(w)
	for _, file := range files {
		mode := int64(0o644)
		if file.Executable {
			mode = 0o755
		}
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: strings.TrimPrefix(file.Path, "/"), Mode: mode,
			Size: int64(len(file.Data)), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR,
		}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(file.Data); err != nil {
			return err
		}
	}
	return archive.Close()
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
