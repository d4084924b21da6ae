// SPDX-License-Identifier: Apache-2.0

package httpapi

import (
	"errors"
	"net/http"
	"time"
)

// ErrUnknownFault is what Options.Inject returns for a kind it does not know.
var ErrUnknownFault = errors.New("unknown kind of fault")

// fault injects one fault. The handler knows "stall" and "http_error"; all
// other kinds are the engine's.
func (h *Handler) fault(w http.ResponseWriter, r *http.Request) {
	var fault Fault
	if err := readJSON(r, &fault); err != nil {
		writeError(w, err)
		return
	}
	if fault.Rank < 0 || fault.Rank >= len(h.options.Ranks) {
		writeError(w, badRequest("rank", "rank %d is out of range [0, %d)", fault.Rank, len(h.options.Ranks)))
		return
	}
	fault.Count = max(fault.Count, 1)
	switch fault.Kind {
	case "stall":
		h.options.Ranks[fault.Rank].Stall(time.Duration(fault.Millis) * time.Millisecond)
	case "http_error":
		if fault.Status == 0 {
			fault.Status = http.StatusInternalServerError
		}
		if fault.Status < 400 || fault.Status > 599 {
			writeError(w, badRequest("status", "status %d: from 400 to 599 expected", fault.Status))
			return
		}
		h.status.Store(int64(fault.Status))
		h.failures.Store(int64(fault.Count))
	default:
		if err := h.options.Inject(r.Context(), fault); err != nil {
			writeError(w, badRequest("kind", "inject %q: %v", fault.Kind, err))
			return
		}
	}
	w.WriteHeader(http.StatusOK)
}

// injectedFailure takes one of the failures that were asked for.
func (h *Handler) injectedFailure() error {
	for {
		left := h.failures.Load()
		if left <= 0 {
			return nil
		}
		if h.failures.CompareAndSwap(left, left-1) {
			return &apiError{status: int(h.status.Load()), kind: "InjectedError", message: "injected failure"}
		}
	}
}
