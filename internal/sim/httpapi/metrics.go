// SPDX-License-Identifier: Apache-2.0

package httpapi

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inferencecache/inference-cache/internal/sim/sched"
)

// secondsBuckets are vLLM's buckets of times to the first token.
var secondsBuckets = []float64{
	0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
}

// metrics speaks the names of the simulated runtime.
type metrics struct {
	firstTokenSeconds *prometheus.HistogramVec
	latencySeconds    *prometheus.HistogramVec
	succeeded         *prometheus.CounterVec
	model             string
}

func newMetrics(registry *prometheus.Registry, options *Options) *metrics {
	prefix, rank := "vllm:", "engine"
	if options.Runtime == SGLang {
		prefix, rank = "sglang:", "dp_rank"
	}
	labels := []string{"model_name", rank}
	m := &metrics{
		model: options.Model,
		firstTokenSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + "time_to_first_token_seconds", Help: "Time to first token.", Buckets: secondsBuckets,
		}, labels),
		latencySeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + "e2e_request_latency_seconds", Help: "End-to-end latency.", Buckets: secondsBuckets,
		}, labels),
		succeeded: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "request_success_total", Help: "Finished requests by reason.",
		}, append(labels, "finished_reason")),
	}
	families := vllmFamilies
	if options.Runtime == SGLang {
		families = sglangFamilies
	}
	registry.MustRegister(m.firstTokenSeconds, m.latencySeconds, m.succeeded,
		newCollector(options, labels, families(labels)))
	for i := range options.Ranks {
		m.firstTokenSeconds.WithLabelValues(m.model, strconv.Itoa(i))
		m.latencySeconds.WithLabelValues(m.model, strconv.Itoa(i))
		for _, reason := range []sched.Finish{sched.Stop, sched.Length} {
			m.succeeded.WithLabelValues(m.model, strconv.Itoa(i), string(reason))
		}
	}
	return m
}

func (m *metrics) firstToken(rank int, after time.Duration) {
	m.firstTokenSeconds.WithLabelValues(m.model, strconv.Itoa(rank)).Observe(after.Seconds())
}

func (m *metrics) finished(rank int, reason string, after time.Duration) {
	m.latencySeconds.WithLabelValues(m.model, strconv.Itoa(rank)).Observe(after.Seconds())
	m.succeeded.WithLabelValues(m.model, strconv.Itoa(rank), reason).Inc()
}

// family is one metric that is read from the scheduler's figures.
type family struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	extra []string // values of further labels
	value func(sched.Stats) float64
}

// collector reads the figures of all ranks at scrape time.
type collector struct {
	options  *Options
	families []family
	config   *prometheus.Desc // nil for runtimes without it
}

func newCollector(options *Options, labels []string, families []family) *collector {
	c := &collector{options: options, families: families}
	if options.Runtime == VLLM {
		c.config = prometheus.NewDesc("vllm:cache_config_info", "Information of the LLMEngine CacheConfig.",
			append([]string{
				"block_size", "num_gpu_blocks", "enable_prefix_caching", "prefix_caching_hash_algo",
			}, labels[1]), nil)
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, family := range c.families {
		out <- family.desc
	}
	if c.config != nil {
		out <- c.config
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	for i, rank := range c.options.Ranks {
		stats, config, number := rank.Stats(), rank.Config(), strconv.Itoa(i)
		for _, family := range c.families {
			values := append([]string{c.options.Model, number}, family.extra...)
			out <- prometheus.MustNewConstMetric(family.desc, family.kind, family.value(stats), values...)
		}
		if c.config != nil {
			out <- prometheus.MustNewConstMetric(c.config, prometheus.GaugeValue, 1,
				strconv.Itoa(config.BlockSize), strconv.Itoa(config.CapacityBlocks), "True", "sha256_cbor", number)
		}
	}
}

func usageOf(stats sched.Stats) float64 {
	return float64(stats.UsedBlocks) / float64(max(stats.CapacityBlocks, 1))
}

func hitRate(stats sched.Stats) float64 {
	return float64(stats.HitTokens) / float64(max(stats.QueriedTokens, 1))
}

func vllmFamilies(labels []string) []family {
	gauge := func(name, help string, value func(sched.Stats) float64) family {
		return family{prometheus.NewDesc("vllm:"+name, help, labels, nil), prometheus.GaugeValue, nil, value}
	}
	counter := func(name, help string, value func(sched.Stats) float64) family {
		return family{prometheus.NewDesc("vllm:"+name, help, labels, nil), prometheus.CounterValue, nil, value}
	}
	bySource := prometheus.NewDesc("vllm:prompt_tokens_by_source_total", "Prompt tokens by where they came from.",
		append(labels[:len(labels):len(labels)], "source"), nil)
	source := func(name string, value func(sched.Stats) float64) family {
		return family{bySource, prometheus.CounterValue, []string{name}, value}
	}
	return []family{
		gauge("num_requests_running", "Requests in execution batches.", running),
		gauge("num_requests_waiting", "Requests waiting to be processed.", waiting),
		gauge("kv_cache_usage_perc", "KV-cache usage; 1 is full.", usageOf),
		counter("prefix_cache_queries_total", "Prefix cache queries, in tokens.", queried),
		counter("prefix_cache_hits_total", "Prefix cache hits, in tokens.", hits),
		counter("num_preemptions_total", "Preemptions.", func(s sched.Stats) float64 { return float64(s.Preemptions) }),
		counter("prompt_tokens_total", "Prefill tokens processed.", queried),
		counter("generation_tokens_total", "Generation tokens processed.", generated),
		source("local_compute", func(s sched.Stats) float64 { return float64(s.PrefilledTokens) }),
		source("local_cache_hit", hits),
		source("external_kv_transfer", func(sched.Stats) float64 { return 0 }),
	}
}

func sglangFamilies(labels []string) []family {
	metric := func(kind prometheus.ValueType, name, help string, value func(sched.Stats) float64) family {
		return family{prometheus.NewDesc("sglang:"+name, help, labels, nil), kind, nil, value}
	}
	return []family{
		metric(prometheus.GaugeValue, "num_running_reqs", "Running requests.", running),
		metric(prometheus.GaugeValue, "num_queue_reqs", "Requests in the waiting queue.", waiting),
		metric(prometheus.GaugeValue, "token_usage", "Token usage; 1 is full.", usageOf),
		metric(prometheus.GaugeValue, "cache_hit_rate", "Prefix cache hit rate.", hitRate),
		metric(prometheus.CounterValue, "prompt_tokens_total", "Prefill tokens processed.", queried),
		metric(prometheus.CounterValue, "generation_tokens_total", "Generation tokens processed.", generated),
		metric(prometheus.CounterValue, "cached_tokens_total", "Cached prompt tokens.", hits),
	}
}

func running(s sched.Stats) float64   { return float64(s.Running) }
func waiting(s sched.Stats) float64   { return float64(s.Waiting) }
func queried(s sched.Stats) float64   { return float64(s.QueriedTokens) }
func hits(s sched.Stats) float64      { return float64(s.HitTokens) }
func generated(s sched.Stats) float64 { return float64(s.GeneratedTokens) }
