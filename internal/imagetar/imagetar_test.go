// SPDX-License-Identifier: Apache-2.0

package imagetar

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func sample() Image {
	return Image{
		Name:       "ic.test/server:dev",
		Files:      []File{{Path: "/app", Executable: true, Data: []byte("binary")}, {Path: "/etc/models/a", Data: []byte("text")}},
		Entrypoint: []string{"/app", "server"},
	}
}

type member struct {
	header *tar.Header
	data   []byte
}

// unpack reads an archive and checks that nothing in it depends on when or by
// whom it was made.
func unpack(t *testing.T, archive []byte) map[string]member {
	t.Helper()
	members := make(map[string]member)
	reader := tar.NewReader(bytes.NewReader(archive))
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return members
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		if header.ModTime.Unix() != 0 || header.Uid != 0 || header.Gid != 0 || header.Uname != "" || header.Gname != "" {
			t.Errorf("%s: time %v, owner %d:%d %s:%s", header.Name, header.ModTime, header.Uid, header.Gid, header.Uname, header.Gname)
		}
		members[header.Name] = member{header, data}
	}
}

func write(t *testing.T, image Image) ([]byte, string) {
	t.Helper()
	var archive bytes.Buffer
	id, err := image.Write(&archive)
	if err != nil {
		t.Fatal(err)
	}
	return archive.Bytes(), id
}

func TestImageLayout(t *testing.T) {
	archive, id := write(t, sample())
	outer := unpack(t, archive)
	if len(outer) != 3 {
		t.Errorf("%d members", len(outer))
	}
	configName := strings.TrimPrefix(id, "sha256:") + ".json"
	wantManifest := `[{"Config":"` + configName + `","RepoTags":["ic.test/server:dev"],"Layers":["layer.tar"]}]`
	if diff := cmp.Diff(wantManifest, string(outer["manifest.json"].data)); diff != "" {
		t.Errorf("manifest: %s", diff)
	}
	config, layer := outer[configName].data, outer["layer.tar"].data
	if digest(config)+".json" != configName {
		t.Errorf("the configuration is called %s", configName)
	}
	wantConfig := `{"architecture":"amd64","os":"linux","config":{"Entrypoint":["/app","server"],"User":"65532"},` +
		`"rootfs":{"type":"layers","diff_ids":["sha256:` + digest(layer) + `"]}}`
	if diff := cmp.Diff(wantConfig, string(config)); diff != "" {
		t.Errorf("configuration: %s", diff)
	}
	files := unpack(t, layer)
	if app := files["app"]; string(app.data) != "binary" || app.header.Mode != 0o755 {
		t.Errorf("app: mode %o, %q", app.header.Mode, app.data)
	}
	if text := files["etc/models/a"]; string(text.data) != "text" || text.header.Mode != 0o644 {
		t.Errorf("etc/models/a: mode %o, %q", text.header.Mode, text.data)
	}
}

func TestImagesAreReproducible(t *testing.T) {
	first, firstID := write(t, sample())
	second, secondID := write(t, sample())
	if !bytes.Equal(first, second) || firstID != secondID {
		t.Error("equal input made different archives")
	}
	other := sample()
	other.Files[0].Data = []byte("binarY")
	if third, thirdID := write(t, other); bytes.Equal(first, third) || firstID == thirdID {
		t.Error("another binary made the same archive")
	}
}

func TestImagesThatCouldNotRunAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Image)
		want   string
	}{
		"a short name":                    {func(i *Image) { i.Name = "server:dev" }, "image name"},
		"a name without tag":              {func(i *Image) { i.Name = "ic.test/server" }, "image name"},
		"the tag latest":                  {func(i *Image) { i.Name = "ic.test/server:latest" }, "image name"},
		"a user by name":                  {func(i *Image) { i.User = "nobody" }, "user"},
		"root":                            {func(i *Image) { i.User = "0" }, "user"},
		"no entry point":                  {func(i *Image) { i.Entrypoint = nil }, "entry point"},
		"an entry point that is missing":  {func(i *Image) { i.Entrypoint = []string{"/bin/sh"} }, "entry point"},
		"an entry point that cannot run":  {func(i *Image) { i.Entrypoint = []string{"/etc/models/a"} }, "entry point"},
		"a relative path":                 {func(i *Image) { i.Files[1].Path = "a" }, "absolute"},
		"a path that leaves its folder":   {func(i *Image) { i.Files[1].Path = "/etc/../a" }, "absolute"},
		"a file twice":                    {func(i *Image) { i.Files[1].Path = "/app" }, "twice"},
		"a path no archive of ours takes": {func(i *Image) { i.Files[1].Path = "/" + strings.Repeat("a", 300) }, "layer"},
	} {
		t.Run(name, func(t *testing.T) {
			image := sample()
			tc.change(&image)
			_, err := image.Write(io.Discard)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one about %q", err, tc.want)
			}
		})
	}
}

func decodeSBOM(t *testing.T, text []byte) spdxDocument {
	t.Helper()
	var document spdxDocument
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&document); err != nil {
		t.Fatal(err)
	}
	return document
}
