// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
)

// maxFileBytes bounds the files read here.
const maxFileBytes = 1 << 20

// watched is what a file says. The file is read again when it changes; while
// it cannot be used, what was read last stays in force.
type watched[T any] struct {
	path   string
	parse  func(text []byte) (T, error)
	logger *slog.Logger
	value  atomic.Pointer[T]

	// mu lets one caller at a time look at the file; nobody waits for it.
	mu     sync.Mutex
	read   os.FileInfo // of the file as it was read last, guarded by mu
	broken bool        // the file is gone or unusable, guarded by mu
}

// watch reads a file for the first time. Errors of parse must not quote the
// file.
func watch[T any](path string, logger *slog.Logger, parse func([]byte) (T, error)) (*watched[T], error) {
	w := &watched[T]{path: path, parse: parse, logger: logger}
	if err := w.refreshLocked(); err != nil {
		return nil, err
	}
	return w, nil
}

// get returns what the file says now, or said a moment ago while another
// caller is looking.
func (w *watched[T]) get() T {
	if w.mu.TryLock() {
		defer w.mu.Unlock()
		err := w.refreshLocked()
		if err != nil && !w.broken {
			w.logger.Warn("keeping what a file said before", "error", err)
		}
		w.broken = err != nil
	}
	return *w.value.Load()
}

// refreshLocked reads the file unless it is the one read last.
func (w *watched[T]) refreshLocked() error {
	info, err := os.Stat(w.path)
	if err != nil {
		return err
	}
	if w.read != nil && os.SameFile(info, w.read) && info.Size() == w.read.Size() && info.ModTime().Equal(w.read.ModTime()) {
		return nil
	}
	file, err := os.Open(w.path)
	if err != nil {
		return err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	switch {
	case err != nil:
		return fmt.Errorf("read %s: %w", w.path, err)
	case len(text) > maxFileBytes:
		return fmt.Errorf("%s: more than %d bytes", w.path, maxFileBytes)
	}
	value, err := w.parse(text)
	if err != nil {
		return fmt.Errorf("%s: %w", w.path, err)
	}
	w.read = info
	w.value.Store(&value)
	return nil
}
