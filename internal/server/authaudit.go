// SPDX-License-Identifier: Apache-2.0

package server

import (
	"log/slog"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/ingest"
)

const (
	auditInterval  = time.Minute
	maxAuditedNow  = 1024
	auditAnonymous = "anonymous"
	auditOthers    = "others"
)

// auditLog writes one line a minute for each caller whose writes are refused.
// Beyond a number of callers, further ones share a line. It is safe for
// concurrent use.
type auditLog struct {
	logger *slog.Logger

	mu      sync.Mutex
	callers map[string]*auditedCaller // guarded by mu
}

type auditedCaller struct {
	logged time.Time
	// unlogged counts refusals since then.
	unlogged int
}

func newAuditLog(logger *slog.Logger) *auditLog {
	return &auditLog{logger: logger, callers: make(map[string]*auditedCaller)}
}

// refused takes note of a write by a caller; "" is one without credentials.
func (a *auditLog) refused(name string, w ingest.Write, reason ingest.DenyReason, now time.Time) {
	if name == "" {
		name = auditAnonymous
	}
	refusals, due := a.due(name, now)
	if !due {
		return
	}
	a.logger.Warn("writes refused", "audit", true, "caller", name, "reason", reason, "refusals", refusals,
		"tenant", w.Tenant, "replica", w.Replica, "model", w.Model)
}

// due counts a refusal and reports how many a line now due stands for.
func (a *auditLog) due(name string, now time.Time) (refusals int, due bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	audited := a.callers[name]
	if audited == nil {
		audited = a.admitLocked(name, now)
	}
	audited.unlogged++
	if now.Sub(audited.logged) < auditInterval {
		return 0, false
	}
	refusals, audited.unlogged, audited.logged = audited.unlogged, 0, now
	return refusals, true
}

func (a *auditLog) admitLocked(name string, now time.Time) *auditedCaller {
	if len(a.callers) >= maxAuditedNow {
		for other, audited := range a.callers {
			if now.Sub(audited.logged) >= auditInterval {
				delete(a.callers, other)
			}
		}
	}
	if len(a.callers) >= maxAuditedNow {
		name = auditOthers
		if audited := a.callers[name]; audited != nil {
			return audited
		}
	}
	audited := new(auditedCaller)
	a.callers[name] = audited
	return audited
}
