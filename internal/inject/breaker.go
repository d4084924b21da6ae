// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

const (
	trialInterval = 10 * time.Minute
	maxTrials     = 1024
)

// trials remembers when this process last wired a pod of a backend although
// publishers had kept others from starting. What other processes did is in the
// backend's status, with the delay of the leader and the cache: in one interval
// each process wires at most one pod, and all together one unless pods are
// created within that delay.
type trials struct {
	mu   sync.Mutex
	last map[types.UID]time.Time // guarded by mu
}

// due says whether a trial is, and notes it if it counts. The first is due one
// interval after since.
func (t *trials) due(uid types.UID, since, now time.Time, counts bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	last, ok := t.last[uid]
	if !ok || last.Before(since) {
		last = since
	}
	if now.Sub(last) < trialInterval {
		return false
	}
	if !counts {
		return true
	}
	if t.last == nil || len(t.last) >= maxTrials {
		t.last = map[types.UID]time.Time{}
	}
	t.last[uid] = now
	return true
}

// guarded wires a pod for its backend. While the breaker is open it does so only
// on trial, and a trial is used up by nothing but a pod that is wired.
func (h *Handler) guarded(pod *corev1.Pod, backend *v1alpha1.CacheBackend, options Options, dryRun bool) (*corev1.Pod, Outcome) {
	wired, outcome := Pod(pod, backend, options)
	message, since, open := h.heldBack(backend, options)
	if !open || outcome.Result == Injected && h.trials.due(backend.UID, since, h.options.Now(), !dryRun) {
		return wired, outcome
	}
	outcome = skip(ReasonBreakerOpen, message)
	return refuse(pod, backend, outcome), outcome
}

// heldBack says whether the backend's breaker keeps the publisher from new
// pods. It counts only for the image and configuration it opened for.
func (h *Handler) heldBack(backend *v1alpha1.CacheBackend, options Options) (message string, since time.Time, open bool) {
	if backend.Status.Injection == nil || backend.Status.Injection.Breaker == nil || !backend.Status.Injection.Breaker.Open {
		return "", since, false
	}
	breaker := backend.Status.Injection.Breaker
	if breaker.Image != h.options.Image {
		return "", since, false
	}
	if hash, err := options.Hash(backend); err != nil || hash != breaker.ConfigHash {
		return "", since, false
	}
	for _, at := range []*metav1.Time{breaker.Since, breaker.LastTrialAt} {
		if at != nil && at.After(since) {
			since = at.Time
		}
	}
	return fmt.Sprintf("publishers of CacheBackend %s kept pods from starting: %s", backend.Name, breaker.Reason), since, true
}
