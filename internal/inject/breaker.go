// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

const (
	trialInterval = 10 * time.Minute
	maxTrials     = 1024
)

// trials remembers when a pod of a backend was last wired although publishers
// had kept others from starting.
type trials struct {
	mu   sync.Mutex
	last map[types.UID]time.Time // guarded by mu
}

// due says whether a trial is, and notes it. The first is due one interval
// after since.
func (t *trials) due(uid types.UID, since, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	last, ok := t.last[uid]
	if !ok || last.Before(since) {
		last = since
	}
	if now.Sub(last) < trialInterval {
		return false
	}
	if t.last == nil || len(t.last) >= maxTrials {
		t.last = map[types.UID]time.Time{}
	}
	t.last[uid] = now
	return true
}

// heldBack says whether the backend's breaker keeps the publisher from new
// pods. It counts only for the image and configuration it opened for.
func (h *Handler) heldBack(backend *v1alpha1.CacheBackend) (message string, open bool) {
	if backend.Status.Injection == nil || backend.Status.Injection.Breaker == nil || !backend.Status.Injection.Breaker.Open {
		return "", false
	}
	breaker := backend.Status.Injection.Breaker
	a, ok := h.options.Registry.For(backend)
	if !ok || breaker.Image != h.options.Image {
		return "", false
	}
	if hash, err := ConfigHash(backend, a); err != nil || hash != breaker.ConfigHash {
		return "", false
	}
	var since time.Time
	if breaker.Since != nil {
		since = breaker.Since.Time
	}
	if h.trials.due(backend.UID, since, h.options.Now()) {
		return "", false
	}
	return fmt.Sprintf("publishers of CacheBackend %s kept pods from starting: %s", backend.Name, breaker.Reason), true
}
