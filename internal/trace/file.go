// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/inferencecache/inference-cache/internal/defaults"
)

// FileOptions configure a file of lines. The zero value works.
type FileOptions struct {
	// MaxBytes is the size at which a new file is begun; default 100 MiB.
	MaxBytes int64
	// Keep is the number of older files kept, PATH.1 being the latest; default
	// 5.
	Keep int
}

// File is a file of lines that is rotated by size. It belongs to one
// goroutine.
type File struct {
	path    string
	options FileOptions
	file    *os.File
	size    int64
}

var _ Sink = (*File)(nil)

// OpenFile opens a file to append lines to, readable by its owner alone.
func OpenFile(path string, options FileOptions) (*File, error) {
	defaults.Set(&options.MaxBytes, 100<<20)
	defaults.Set(&options.Keep, 5)
	f := &File{path: path, options: options}
	if err := f.open(); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *File) open() error {
	file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open trace file: %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("open trace file: %w", err), file.Close())
	}
	f.file, f.size = file, info.Size()
	return nil
}

// Write implements Sink.
func (f *File) Write(_ *Record, line []byte) error { return f.WriteLine(line) }

// WriteLine appends a line and its end, in a new file if this one is full. After
// an error the next call tries again.
func (f *File) WriteLine(line []byte) error {
	if f.file != nil && f.size > 0 && f.size+int64(len(line))+1 > f.options.MaxBytes {
		if err := f.rotate(); err != nil {
			return err
		}
	}
	if f.file == nil {
		if err := f.open(); err != nil {
			return err
		}
	}
	n, err := f.file.Write(append(line, '\n'))
	f.size += int64(n)
	if err != nil {
		return fmt.Errorf("write trace file: %w", err)
	}
	return nil
}

// rotate renames PATH to PATH.1, PATH.1 to PATH.2 and so on; the last one goes.
func (f *File) rotate() error {
	closed := f.Close()
	var renamed error
	for i := f.options.Keep; i > 0; i-- {
		from := f.path
		if i > 1 {
			from = fmt.Sprintf("%s.%d", f.path, i-1)
		}
		if err := os.Rename(from, fmt.Sprintf("%s.%d", f.path, i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			renamed = err
		}
	}
	if err := errors.Join(closed, renamed); err != nil {
		return fmt.Errorf("rotate trace file: %w", err)
	}
	return nil
}

// Close implements Sink.
func (f *File) Close() error {
	if f.file == nil {
		return nil
	}
	file := f.file
	f.file = nil
	return file.Close()
}
