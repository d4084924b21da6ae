// SPDX-License-Identifier: Apache-2.0

// Package livefile keeps what files say in memory and up to date.
package livefile

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
)

// maxBytes bounds the files read here.
const maxBytes = 1 << 20

// File is what a file says. The file is read again when it changes; while it
// cannot be used, what was read last stays in force. It is safe for concurrent
// use.
type File[T any] struct {
	path   string
	parse  func(text []byte) (T, error)
	logger *slog.Logger
	value  atomic.Pointer[T]

	// mu lets one caller at a time look at the file; nobody waits for it.
	mu     sync.Mutex
	read   os.FileInfo // of the file as it was read last, guarded by mu
	broken bool        // the file is gone or unusable, guarded by mu
}

// Open reads a file of at most 1 MiB for the first time. Errors of parse must
// not quote the file. logger is told when the file becomes unusable later.
func Open[T any](path string, logger *slog.Logger, parse func([]byte) (T, error)) (*File[T], error) {
	f := &File[T]{path: path, parse: parse, logger: logger}
	if err := f.refreshLocked(); err != nil {
		return nil, err
	}
	return f, nil
}

// Get returns what the file says now, or said a moment ago while another
// caller is looking.
func (f *File[T]) Get() T {
	if f.mu.TryLock() {
		defer f.mu.Unlock()
		err := f.refreshLocked()
		if err != nil && !f.broken {
			f.logger.Warn("keeping what a file said before", "error", err)
		}
		f.broken = err != nil
	}
	return *f.value.Load()
}

// refreshLocked reads the file unless it is the one read last.
func (f *File[T]) refreshLocked() error {
	info, err := os.Stat(f.path)
	if err != nil {
		return err
	}
	if f.read != nil && os.SameFile(info, f.read) && info.Size() == f.read.Size() && info.ModTime().Equal(f.read.ModTime()) {
		return nil
	}
	file, err := os.Open(f.path)
	if err != nil {
		return err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxBytes+1))
	switch {
	case err != nil:
		return fmt.Errorf("read %s: %w", f.path, err)
	case len(text) > maxBytes:
		return fmt.Errorf("%s: more than %d bytes", f.path, maxBytes)
	}
	value, err := f.parse(text)
	if err != nil {
		return fmt.Errorf("%s: %w", f.path, err)
	}
	f.read = info
	f.value.Store(&value)
	return nil
}
