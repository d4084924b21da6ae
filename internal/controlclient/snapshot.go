// SPDX-License-Identifier: Apache-2.0

package controlclient

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// Replica is a row of a snapshot: what one replica of a tenant holds and last
// said of itself.
type Replica struct {
	ReplicaID        string    `json:"replicaId"`
	Tenant           string    `json:"tenant"`
	CacheMemoryBytes int64     `json:"cacheMemoryBytes"`
	HitRate          float32   `json:"hitRate"`
	Pressure         float32   `json:"pressure"`
	LastUpdate       time.Time `json:"lastUpdate"`
	PrefixCount      int64     `json:"prefixCount"`
	LastEventAt      time.Time `json:"lastEventAt"`
	StatsReported    bool      `json:"statsReported"`
	T2HitTokens      int64     `json:"t2HitTokens"`
	T2QueryTokens    int64     `json:"t2QueryTokens"`
}

// HasRates reports whether the rates were ever observed. Servers that do not
// say so are judged by the time of the last report.
func (r Replica) HasRates() bool { return r.StatsReported || !r.LastUpdate.IsZero() }

// Tenant is a row of a snapshot.
type Tenant struct {
	TenantID        string  `json:"tenantId"`
	IndexEntries    int64   `json:"indexEntries"`
	HitRate         float32 `json:"hitRate"`
	HitRateReported bool    `json:"hitRateReported"`
}

// HasRate reports whether the hit rate was ever observed.
func (t Tenant) HasRate() bool { return t.HitRateReported || t.HitRate != 0 }

// Snapshot is what one server knows.
type Snapshot struct {
	Replicas      []Replica `json:"replicas"`
	Tenants       []Tenant  `json:"tenants"`
	TotalPrefixes int64     `json:"totalPrefixes"`
	HotPrefixes   int64     `json:"hotPrefixes"`
}

// Snapshot reads what the server knows.
func (c *Client) Snapshot(ctx context.Context) (*Snapshot, Identity, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.options.URLs.Snapshot, nil)
	if err != nil {
		return nil, Identity{}, fmt.Errorf("read snapshot: %w", err)
	}
	token, err := readToken(c.options.ControllerTokenFile)
	if err != nil {
		c.options.Unreadable(err)
	}
	body, identity, err := c.call(request, token, http.StatusOK)
	if err != nil {
		return nil, identity, err
	}
	snapshot := new(Snapshot)
	if err := json.Unmarshal(body, snapshot); err != nil {
		return nil, identity, failed("decode snapshot", err, token)
	}
	return snapshot, identity, nil
}
