// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inferencecache/inference-cache/internal/breaker"
	"github.com/inferencecache/inference-cache/internal/routing"
)

// collector reports the fleet's state at each scrape.
type collector struct {
	gateway *Gateway

	candidates, spread, indexState, approx, speculative, breakerState *prometheus.Desc
	inflight, queueTokens, rate, saturated, replicaOpen, findings     *prometheus.Desc
	dishonest                                                         *prometheus.Desc
}

// maxReplicaSeries bounds the replicas with series of their own.
const maxReplicaSeries = 2000

func newCollector(g *Gateway) *collector {
	routed := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(namespace+"_routing_"+name, help, labels, prometheus.Labels{"face": face})
	}
	plain := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(namespace+"_gateway_"+name, help, labels, nil)
	}
	return &collector{
		gateway:      g,
		candidates:   routed("candidates", "Replicas by state.", "state"),
		spread:       routed("inflight_spread", "Largest over mean in-flight requests of ready replicas."),
		indexState:   routed("index_state", "Models by the state of their index.", "state"),
		approx:       routed("approx_entries", "Remembered pairs of a replica and a block that was sent there."),
		speculative:  routed("speculative_entries", "Those of the last moments, up to 65,536."),
		breakerState: plain("breaker_state", "1 for the current state.", "target", "state"),
		inflight:     plain("replica_inflight", "Requests of this gateway at a replica.", "replica_id"),
		queueTokens:  plain("replica_queue_tokens", "Uncached tokens waiting for prefill.", "replica_id"),
		rate:         plain("replica_prefill_rate", "Measured prefill speed, tokens per second.", "replica_id"),
		saturated:    plain("replica_saturated", "1 while a replica gets no work for its cache.", "replica_id"),
		findings:     plain("findings", "Open findings; /debug/state tells what to do.", "code"),
		replicaOpen:  plain("replica_breaker", "0 closed, 1 half-open, 2 open.", "replica_id"),
		dishonest:    plain("replica_dishonest", "1 while the engine has less than half of what the index claims.", "replica_id"),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.candidates, c.approx, c.speculative, c.spread, c.indexState, c.breakerState,
		c.inflight, c.queueTokens, c.rate, c.saturated, c.replicaOpen, c.findings, c.dishonest} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	now := time.Now()
	states := c.gateway.fleet.States(now)
	for state, count := range countStates(states) {
		gauge(c.candidates, float64(count), state)
	}
	gauge(c.spread, inflightSpread(states))
	for i, s := range states {
		if i == maxReplicaSeries {
			break
		}
		gauge(c.inflight, float64(s.View.Inflight), s.ID)
		gauge(c.queueTokens, float64(s.View.QueueTokens), s.ID)
		gauge(c.rate, s.View.RateTokens, s.ID)
		gauge(c.saturated, one(s.View.Saturated), s.ID)
		gauge(c.replicaOpen, float64(s.Breaker), s.ID)
		gauge(c.dishonest, one(s.Dishonest), s.ID)
	}
	approximate, speculative := c.gateway.fleet.Entries(now)
	gauge(c.approx, float64(approximate))
	gauge(c.speculative, float64(speculative))
	for code, open := range c.gateway.found.Count() {
		gauge(c.findings, float64(open), string(code))
	}
	models := float64(c.gateway.catalog.Models())
	down := c.gateway.index != nil && c.gateway.index.state() == breaker.Open
	blind := 0.0
	if c.gateway.index != nil && !down {
		blind = float64(c.gateway.index.sight.blindModels())
	}
	gauge(c.indexState, max(models-blind, 0)*one(!down), "ok")
	gauge(c.indexState, models*one(down), "down")
	gauge(c.indexState, blind, "blind")
	for target, current := range c.gateway.breakerStates() {
		for _, state := range []breaker.State{breaker.Closed, breaker.HalfOpen, breaker.Open} {
			gauge(c.breakerState, one(state == current), target, state.String())
		}
	}
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

func countStates(states []routing.State) map[string]int {
	counts := map[string]int{"ready": 0, "unhealthy": 0, "overloaded": 0, "draining": 0, "breaker_open": 0}
	for _, s := range states {
		switch {
		case s.Draining, s.Cordoned:
			counts["draining"]++
		case !s.Ready, s.Asleep:
			counts["unhealthy"]++
		case s.Breaker == breaker.Open:
			counts["breaker_open"]++
		case s.View.Saturated:
			counts["overloaded"]++
		default:
			counts["ready"]++
		}
	}
	return counts
}

// inflightSpread is 0 while nothing is under way.
func inflightSpread(states []routing.State) float64 {
	total, largest, ready := 0, 0, 0
	for _, s := range states {
		if s.Ready {
			ready++
			total += s.View.Inflight
			largest = max(largest, s.View.Inflight)
		}
	}
	if total == 0 {
		return 0
	}
	return float64(largest) * float64(ready) / float64(total)
}
