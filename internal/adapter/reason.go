// SPDX-License-Identifier: Apache-2.0

package adapter

import "fmt"

// Reasons why an adapter does not wire a pod.
const (
	ReasonEngineArgsConflict   = "engine-args-conflict"
	ReasonParallelism          = "parallelism-unsupported"
	ReasonPageSizeMissing      = "page-size-missing"
	ReasonPageSizeMismatch     = "page-size-mismatch"
	ReasonReservedNameConflict = "reserved-name-conflict"
	ReasonShmConflict          = "shm-conflict"
)

// PodError says why a pod cannot be wired.
type PodError struct {
	// Reason is one of the reason codes of an injection.
	Reason string
	Err    error
}

func (e *PodError) Error() string { return e.Err.Error() }

// Unwrap returns the error without the code.
func (e *PodError) Unwrap() error { return e.Err }

func unfit(reason, format string, args ...any) error {
	return &PodError{Reason: reason, Err: fmt.Errorf(format, args...)}
}
