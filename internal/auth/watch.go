// SPDX-License-Identifier: Apache-2.0

package auth

import "log/slog"

// File is what a file says, parsed. The file is read again when it changes;
// while it cannot be used, what was read last stays in force. It is safe for
// concurrent use.
type File[T any] struct{ file *watched[T] }

// OpenFile reads a file of at most 1 MiB. logger is told when the file becomes
// unusable later. Errors of parse must not quote the file.
func OpenFile[T any](path string, logger *slog.Logger, parse func(text []byte) (T, error)) (*File[T], error) {
	file, err := watch(path, logger, parse)
	if err != nil {
		return nil, err
	}
	return &File[T]{file}, nil
}

// Get returns what the file says now.
func (f *File[T]) Get() T { return f.file.get() }

// EachLine calls use with the words of every line; empty lines and those that
// start with # are passed over. Errors name the line and never quote it.
func EachLine(text []byte, use func(number int, words []string) error) error {
	return eachLine(text, use)
}
