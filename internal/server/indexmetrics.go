// SPDX-License-Identifier: Apache-2.0

package server

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inferencecache/inference-cache/internal/index"
)

// indexCollector reads the counters of the index at each scrape.
type indexCollector struct {
	index           *index.Index
	now             func() time.Time
	models, tenants *labels
	lookups         *lookupMetrics

	mu     sync.Mutex
	seen   map[string]struct{} // labels of models that had keys once, guarded by mu
	series modelSeries         // guarded by mu
}

// descriptions of what indexCollector emits.
var (
	entriesDesc         = desc("index_entries", "Distinct keys of a model.", "model")
	membershipsDesc     = desc("index_memberships", "Memberships the bound counts.")
	maxMembershipsDesc  = desc("index_max_memberships", "Bound of memberships, 0 = none.")
	maxBytesDesc        = desc("index_max_bytes", "Bound of the index's memory, 0 = none.")
	keysDesc            = desc("index_keys", "Distinct keys.")
	tenantsDesc         = desc("index_tenants", "Tenants with keys or stats.")
	partitionsDesc      = desc("index_partitions", "Partitions.")
	replicasDesc        = desc("index_replicas", "Replicas by state.", "state")
	bytesDesc           = desc("index_bytes", "Memory of the index by its own account.", "kind")
	oldestExpiredDesc   = desc("index_oldest_expired_seconds", "How late expiry is.")
	tenantKeysDesc      = desc("index_tenant_keys", "Keys of a tenant with a quota.", "tenant_id")
	tenantQuotaDesc     = desc("index_tenant_quota_keys", "Quota of a tenant.", "tenant_id")
	tenantEvictionsDesc = desc("tenant_evictions_total", "Keys dropped to meet a tenant's quota.", "tenant_id", "reason")
	indexEvictionsDesc  = desc("index_evictions_total", "Memberships removed by a bound or by expiry.", "algorithm", "reason")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
}

func newIndexCollector(f family, x *index.Index, now func() time.Time, lookups *lookupMetrics) *indexCollector {
	c := &indexCollector{
		index: x, now: now, models: lookups.models, tenants: lookups.tenants, lookups: lookups,
		seen: make(map[string]struct{}),
	}
	f.registerer.MustRegister(c)
	return c
}

// Describe implements prometheus.Collector.
func (c *indexCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		entriesDesc, membershipsDesc, maxMembershipsDesc, keysDesc, tenantsDesc, partitionsDesc, replicasDesc,
		bytesDesc, maxBytesDesc, oldestExpiredDesc, tenantKeysDesc, tenantQuotaDesc, tenantEvictionsDesc,
		indexEvictionsDesc,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *indexCollector) Collect(ch chan<- prometheus.Metric) {
	c.collectTotals(ch)
	c.collectModels(ch)
	c.collectTenants(ch)
}

func gauge(ch chan<- prometheus.Metric, d *prometheus.Desc, value float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

// countOnce emits a counter that appears with its first event.
func countOnce(ch chan<- prometheus.Metric, d *prometheus.Desc, value int64, labels ...string) {
	if value > 0 {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
	}
}

func (c *indexCollector) collectTotals(ch chan<- prometheus.Metric) {
	n := c.index.Counters(c.now().UnixMilli())
	gauge(ch, membershipsDesc, float64(n.Memberships))
	gauge(ch, maxMembershipsDesc, float64(n.MaxMemberships))
	gauge(ch, keysDesc, float64(n.Keys))
	gauge(ch, tenantsDesc, float64(n.Tenants))
	gauge(ch, partitionsDesc, float64(n.Partitions))
	gauge(ch, replicasDesc, float64(n.Replicas.Live), "live")
	gauge(ch, replicasDesc, float64(n.Replicas.Silent), "silent")
	gauge(ch, replicasDesc, float64(n.Replicas.StatsOnly), "stats_only")
	gauge(ch, replicasDesc, float64(n.Replicas.EventsOnly), "events_only")
	gauge(ch, bytesDesc, float64(n.Bytes.Table), "table")
	gauge(ch, bytesDesc, float64(n.Bytes.Arena), "arena")
	gauge(ch, bytesDesc, float64(n.Bytes.Names), "names")
	gauge(ch, bytesDesc, float64(n.Bytes.Stats), "stats")
	gauge(ch, maxBytesDesc, float64(n.MaxBytes))
	gauge(ch, oldestExpiredDesc, float64(n.OldestExpiredMillis)/1000)
	countOnce(ch, indexEvictionsDesc, n.Evictions.CapLRU, "lru", "cap")
	countOnce(ch, indexEvictionsDesc, n.Evictions.CapLFU, "lfu", "cap")
	countOnce(ch, indexEvictionsDesc, n.Evictions.TTLLRU, "lru", "ttl")
	countOnce(ch, indexEvictionsDesc, n.Evictions.TTLLFU, "lfu", "ttl")
}

// collectModels shows a model that lost its last key as 0, and ends the series
// of its lookups in time.
func (c *indexCollector) collectModels(ch chan<- prometheus.Metric) {
	keys := make(map[string]int64)
	c.index.EachModel(func(model string, n int64) { keys[c.models.of(model, true)] += n })
	c.mu.Lock()
	defer c.mu.Unlock()
	for label := range keys {
		c.seen[label] = struct{}{}
	}
	var gone []string
	for label := range c.seen {
		gauge(ch, entriesDesc, float64(keys[label]), label)
		if keys[label] == 0 && label != otherLabel {
			gone = append(gone, label)
		}
	}
	if len(gone) == 0 {
		return
	}
	for _, label := range c.series.expired(gone, c.lookups.callsByModel(), c.now()) {
		c.lookups.forgetModel(label)
	}
}

func (c *indexCollector) collectTenants(ch chan<- prometheus.Metric) {
	type sums struct{ keys, quota, evicted int64 }
	byLabel := make(map[string]sums)
	c.index.EachQuota(func(row index.TenantRow) {
		if !row.Rules.Limited && row.QuotaEvicted == 0 {
			return
		}
		label := c.tenants.of(row.Tenant, true)
		sum := byLabel[label]
		sum.evicted += row.QuotaEvicted
		if row.Rules.Limited {
			sum.keys += row.Keys
			sum.quota += row.Rules.MaxKeys
		}
		byLabel[label] = sum
	})
	for label, sum := range byLabel {
		gauge(ch, tenantKeysDesc, float64(sum.keys), label)
		gauge(ch, tenantQuotaDesc, float64(sum.quota), label)
		countOnce(ch, tenantEvictionsDesc, sum.evicted, label, "over_entries")
	}
}
