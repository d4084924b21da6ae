// SPDX-License-Identifier: Apache-2.0

package client

import (
	"sync"
	"time"
)

const (
	warnEvery = time.Minute
	// warnSubjects bounds the subjects remembered per reason. Beyond it new
	// ones stay quiet until an old one's minute is over.
	warnSubjects = 64
)

// subject is what a warning is about. Keys narrower than the one in question
// are left empty.
type subject struct{ tenant, model, scheme, detail string }

// warnings lets each subject through once per warnEvery. Reasons do not crowd
// each other out. It is safe for concurrent use.
type warnings struct {
	mu   sync.Mutex
	last map[Reason]map[subject]time.Time
}

func (w *warnings) allow(reason Reason, about subject, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last == nil {
		w.last = map[Reason]map[subject]time.Time{}
	}
	last := w.last[reason]
	if last == nil {
		last = map[subject]time.Time{}
		w.last[reason] = last
	}
	at, known := last[about]
	if known && now.Sub(at) < warnEvery {
		return false
	}
	if !known && len(last) >= warnSubjects {
		for other, at := range last {
			if now.Sub(at) >= warnEvery {
				delete(last, other)
			}
		}
		if len(last) >= warnSubjects {
			return false
		}
	}
	last[about] = now
	return true
}
