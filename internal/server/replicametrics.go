// SPDX-License-Identifier: Apache-2.0

package server

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inferencecache/inference-cache/internal/index"
)

var (
	lastEventDesc = desc("replica_last_event_at",
		"Unix time of the newest report of blocks.", "tenant", "model", "replica_id")
	replicaMembershipsDesc = desc("replica_memberships",
		"Memberships of a replica.", "tenant", "model", "replica_id")
)

// replicaCollector shows each replica that holds keys or reports stats, up to a
// bound. A replica that has series keeps them while it is there.
type replicaCollector struct {
	index           *index.Index
	max             int
	models, tenants *labels
	suppressed      []prometheus.Counter // one for each family

	mu    sync.Mutex
	shown map[replicaKey]struct{} // guarded by mu
}

type replicaKey struct{ tenant, model, replica string }

func newReplicaCollector(f family, x *index.Index, maxReplicas int, models, tenants *labels) {
	suppressed := f.counters("metrics_suppressed_total", "Series left out of a page because there would be too many.", "family")
	c := &replicaCollector{
		index: x, max: maxReplicas, models: models, tenants: tenants, shown: make(map[replicaKey]struct{}),
	}
	for _, name := range []string{"replica_last_event_at", "replica_memberships"} {
		c.suppressed = append(c.suppressed, suppressed.WithLabelValues(namespace+"_"+name))
	}
	if maxReplicas > 0 {
		f.registerer.MustRegister(c)
	}
}

// Describe implements prometheus.Collector.
func (c *replicaCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- lastEventDesc
	ch <- replicaMembershipsDesc
}

// Collect implements prometheus.Collector.
func (c *replicaCollector) Collect(ch chan<- prometheus.Metric) {
	rows := make(map[replicaKey]index.ServingRow)
	c.index.EachServing(func(row index.ServingRow) { rows[replicaKey{row.Tenant, row.Model, row.Replica}] = row })
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.shown {
		if _, there := rows[key]; !there {
			delete(c.shown, key)
		}
	}
	for key, row := range rows {
		if !c.admitLocked(key) {
			for _, counter := range c.suppressed {
				counter.Inc()
			}
			continue
		}
		if row.LastEventMillis > 0 {
			gauge(ch, lastEventDesc, float64(row.LastEventMillis)/1000, key.tenant, key.model, key.replica)
		}
		gauge(ch, replicaMembershipsDesc, float64(row.Memberships), key.tenant, key.model, key.replica)
	}
}

// admitLocked reports whether a replica gets series, which takes labels that
// name it alone.
func (c *replicaCollector) admitLocked(key replicaKey) bool {
	if _, shown := c.shown[key]; shown {
		return true
	}
	if len(c.shown) >= c.max || len(key.replica) > maxLabelBytes || !printable(key.replica) ||
		c.tenants.of(key.tenant, true) != key.tenant || c.models.of(key.model, true) != key.model {
		return false
	}
	c.shown[key] = struct{}{}
	return true
}
