// SPDX-License-Identifier: Apache-2.0

package template

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/inferencecache/inference-cache/internal/policy"
)

const (
	maxFileBytes = 1 << 20
	// maxFiles bounds the templates of a directory.
	maxFiles  = 10_000
	extension = ".yaml"
)

// Dir is a directory of template files, <namespace>/<name>.yaml. Other files
// and names that start with a dot are ignored. It is not safe for concurrent
// use.
type Dir struct {
	path  string
	files map[string]file // by path
}

// file is a file as it was read last. usable is false while it never was good.
type file struct {
	info   os.FileInfo
	source policy.Template
	usable bool
}

// OpenDir reads a directory, which must be without faults.
func OpenDir(path string) (*Dir, error) {
	d := &Dir{path: path}
	if _, err := d.Reload(); err != nil {
		return nil, fmt.Errorf("read templates: %w", err)
	}
	return d, nil
}

// Templates returns the templates of all usable files, in no order.
func (d *Dir) Templates() []policy.Template {
	templates := make([]policy.Template, 0, len(d.files))
	for _, f := range d.files {
		if f.usable {
			templates = append(templates, f.source)
		}
	}
	return templates
}

// Reload reads the files that changed. A file with a fault keeps what it said
// before; the error, which joins all faults, says so once. When the directory
// itself cannot be read everything stays.
func (d *Dir) Reload() (changed bool, err error) {
	paths, err := d.list()
	if err != nil {
		return false, err
	}
	var faults []error
	files := make(map[string]file, len(paths))
	for _, path := range paths {
		f, known := d.files[path]
		info, err := os.Stat(path)
		if err != nil { // gone since it was listed
			continue
		}
		if !known || !sameFile(info, f.info) {
			source, err := d.read(path)
			if err == nil {
				f.source, f.usable, changed = source, true, true
			} else {
				faults = append(faults, err)
			}
			f.info = info
		}
		files[path] = f
	}
	for path, f := range d.files {
		if _, kept := files[path]; !kept && f.usable {
			changed = true
		}
	}
	d.files = files
	return changed, errors.Join(faults...)
}

func sameFile(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// list returns the paths of all template files.
func (d *Dir) list() (paths []string, err error) {
	namespaces, err := os.ReadDir(d.path)
	if err != nil {
		return nil, err
	}
	for _, namespace := range namespaces {
		inside := filepath.Join(d.path, namespace.Name())
		if info, err := os.Stat(inside); err != nil || !info.IsDir() || strings.HasPrefix(namespace.Name(), ".") {
			continue
		}
		entries, err := os.ReadDir(inside)
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			if name := entry.Name(); strings.HasSuffix(name, extension) && !strings.HasPrefix(name, ".") {
				paths = append(paths, filepath.Join(inside, name))
			}
		}
		if len(paths) > maxFiles {
			return nil, fmt.Errorf("%s: more than %d templates", d.path, maxFiles)
		}
	}
	return paths, nil
}

// read reads one file.
func (d *Dir) read(path string) (policy.Template, error) {
	opened, err := os.Open(path)
	if err != nil {
		return policy.Template{}, err
	}
	defer opened.Close()
	text, err := io.ReadAll(io.LimitReader(opened, maxFileBytes+1))
	if err != nil {
		return policy.Template{}, err
	}
	if len(text) > maxFileBytes {
		return policy.Template{}, &FileError{File: path, Err: fmt.Errorf("more than %d bytes", maxFileBytes)}
	}
	namespace := filepath.Base(filepath.Dir(path))
	return ParseFile(path, namespace, strings.TrimSuffix(filepath.Base(path), extension), text)
}
