// SPDX-License-Identifier: Apache-2.0

package control

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/inferencecache/inference-cache/internal/version"
)

// statusReport is what an operator sees of a server at a glance.
type statusReport struct {
	ServerEpoch  string            `json:"serverEpoch"`
	StartedAt    time.Time         `json:"startedAt"`
	Version      string            `json:"version"`
	Capabilities []string          `json:"capabilities"`
	Ready        bool              `json:"ready"`
	Policy       *statusPolicy     `json:"policy"`     // null before the first push
	Extensions   *statusExtensions `json:"extensions"` // null before the first push
	Index        statusIndex       `json:"index"`
}

type statusPolicy struct {
	Revision  string    `json:"revision"`
	Version   int       `json:"version"`
	AppliedAt time.Time `json:"appliedAt"`
	Policies  int       `json:"policies"`
	Tenants   int       `json:"tenants"`
	Bytes     int       `json:"bytes"`
}

type statusExtensions struct {
	Revision  string    `json:"revision"`
	AppliedAt time.Time `json:"appliedAt"`
}

type statusIndex struct {
	Memberships int64 `json:"memberships"`
	Keys        int64 `json:"keys"`
	Tenants     int64 `json:"tenants"`
	// MaxEntries bounds memberships, 0 = no bound.
	MaxEntries int64 `json:"maxEntries"`
	Bytes      int64 `json:"bytes"`
}

func (h *Handler) status() statusReport {
	view := h.options.Policies.View()
	counters := h.options.Holdings.Counters(h.options.Now().UnixMilli())
	report := statusReport{
		ServerEpoch:  h.options.Epoch,
		StartedAt:    h.options.StartedAt.UTC(),
		Version:      version.Get().Version,
		Capabilities: capabilities,
		Ready:        h.options.Ready(),
		Index: statusIndex{
			Memberships: counters.Memberships,
			Keys:        counters.Keys,
			Tenants:     counters.Tenants,
			MaxEntries:  counters.MaxMemberships,
			Bytes:       counters.Bytes.Total(),
		},
	}
	if origin := view.Origin(); !origin.AppliedAt.IsZero() {
		report.Policy = &statusPolicy{
			Revision:  origin.Revision,
			Version:   origin.Version,
			AppliedAt: origin.AppliedAt.UTC(),
			Policies:  view.Policies(),
			Tenants:   view.Quotas(),
			Bytes:     origin.Bytes,
		}
	}
	if origin := view.ExtensionsOrigin(); !origin.AppliedAt.IsZero() {
		report.Extensions = &statusExtensions{Revision: origin.Revision, AppliedAt: origin.AppliedAt.UTC()}
	}
	return report
}

func (h *Handler) serveStatus(w http.ResponseWriter, _ *http.Request) {
	body, err := json.Marshal(h.status())
	if err != nil {
		h.failed(w, "render status", err)
		return
	}
	writeJSON(w, body)
}
