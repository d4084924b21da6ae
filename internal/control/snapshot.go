// SPDX-License-Identifier: Apache-2.0

package control

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
)

// snapshotReplica is what one replica of a tenant holds and last said of
// itself. Absent presence bits mean "not observed yet".
type snapshotReplica struct {
	ReplicaID        string    `json:"replicaId"`
	Tenant           string    `json:"tenant,omitempty"`
	CacheMemoryBytes int64     `json:"cacheMemoryBytes"`
	HitRate          float32   `json:"hitRate"`
	Pressure         float32   `json:"pressure"`
	LastUpdate       time.Time `json:"lastUpdate"`
	PrefixCount      int64     `json:"prefixCount"`
	LastEventAt      time.Time `json:"lastEventAt"`
	StatsReported    bool      `json:"statsReported,omitempty"`
	T2HitTokens      int64     `json:"t2HitTokens,omitempty"`
	T2QueryTokens    int64     `json:"t2QueryTokens,omitempty"`
}

type snapshotTenant struct {
	TenantID        string  `json:"tenantId"`
	IndexEntries    int64   `json:"indexEntries"`
	HitRate         float32 `json:"hitRate"`
	HitRateReported bool    `json:"hitRateReported,omitempty"`
	// MemoryUsed is always 0; consumers expect it.
	MemoryUsed int64 `json:"memoryUsed"`
}

type snapshot struct {
	Replicas []snapshotReplica `json:"replicas"`
	Tenants  []snapshotTenant  `json:"tenants"`
	// TotalPrefixes is the sum of the tenants' entries.
	TotalPrefixes int64 `json:"totalPrefixes"`
	HotPrefixes   int64 `json:"hotPrefixes"`
}

// takeSnapshot reads the rows one by one: each is consistent in itself, and
// nobody waits for the whole.
func (h *Handler) takeSnapshot() snapshot {
	holdings := h.options.Holdings
	s := snapshot{Replicas: []snapshotReplica{}, Tenants: []snapshotTenant{}, HotPrefixes: h.options.HotPrefixes()}
	type rates struct {
		sum   float64
		count int
	}
	byTenant := make(map[string]rates)
	holdings.EachReplica(func(row index.ReplicaRow) {
		if row.HasStats {
			r := byTenant[row.Tenant]
			byTenant[row.Tenant] = rates{r.sum + float64(row.Stats.HitRate), r.count + 1}
		}
		s.Replicas = append(s.Replicas, renderReplica(row))
	})
	holdings.EachTenant(func(row index.TenantRow) {
		if row.Keys == 0 && !row.HasStats {
			return
		}
		tenant := snapshotTenant{TenantID: row.Tenant, IndexEntries: row.Keys}
		if r := byTenant[row.Tenant]; r.count > 0 {
			tenant.HitRate, tenant.HitRateReported = float32(r.sum/float64(r.count)), true
		}
		s.TotalPrefixes += row.Keys
		s.Tenants = append(s.Tenants, tenant)
	})
	return s
}

func renderReplica(row index.ReplicaRow) snapshotReplica {
	replica := snapshotReplica{
		ReplicaID:     row.Replica,
		Tenant:        row.Tenant,
		PrefixCount:   row.Memberships,
		LastEventAt:   timeOf(row.LastSeenMillis),
		StatsReported: row.HasStats,
	}
	if row.HasStats {
		replica.CacheMemoryBytes = row.Stats.CacheMemoryBytes
		replica.HitRate = row.Stats.HitRate
		replica.Pressure = row.Stats.Pressure
		replica.LastUpdate = timeOf(row.Stats.LivenessMillis)
		replica.T2HitTokens = row.Stats.T2HitTokens
		replica.T2QueryTokens = row.Stats.T2QueryTokens
	}
	return replica
}

// timeOf turns 0 into the zero time, which stands for never.
func timeOf(millis int64) time.Time {
	if millis == 0 {
		return time.Time{}
	}
	return time.UnixMilli(millis).UTC()
}

func (h *Handler) serveSnapshot(w http.ResponseWriter, r *http.Request) {
	body, err := json.Marshal(h.takeSnapshot())
	if err != nil {
		h.failed(w, "render snapshot", err)
		return
	}
	w.Header().Set("Vary", "Accept-Encoding")
	if acceptsGzip(r) {
		if body, err = deflate(body); err != nil {
			h.failed(w, "compress snapshot", err)
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
	}
	writeJSON(w, body)
}

// failed answers what should not happen.
func (h *Handler) failed(w http.ResponseWriter, doing string, err error) {
	h.options.Logger.Error("cannot "+doing, "error", err)
	refuse(w, http.StatusInternalServerError, "internal error")
}
