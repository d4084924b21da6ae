// SPDX-License-Identifier: Apache-2.0

package engines

// Names of the runtimes known; each is also the hash scheme of its blocks.
const (
	VLLM        = "vllm"
	SGLang      = "sglang"
	TensorRTLLM = "tensorrt-llm"
)

// Profile holds the facts of one runtime.
type Profile struct {
	// Runtime is its name.
	Runtime string
	// HTTPPort is the default port of its HTTP API, EventsPort and ReplayPort
	// those usual for its KV event sockets.
	HTTPPort, EventsPort, ReplayPort int
	// MetricsPath is where its HTTP API serves metrics.
	MetricsPath string

	load loadProfile
}

// ProfileOf returns the facts of a runtime. Those of vLLM stand in for an
// unknown one, and known is false.
func ProfileOf(runtime string) (p Profile, known bool) {
	switch runtime {
	case VLLM:
		return vllmProfile(), true
	case SGLang:
		return sglangProfile(), true
	case TensorRTLLM:
		return tensorRTLLMProfile(), true
	default:
		return vllmProfile(), false
	}
}

// loadProfile names the metric families that load is computed from. Counter
// families are written without the suffix _total, which engines may add.
type loadProfile struct {
	running, waiting string
	// skipPriority leaves out series that have a priority; they repeat what
	// the others count.
	skipPriority bool
	// usage lists alternatives, newest first. The largest value of the
	// families of the first alternative present counts.
	usage [][]string
	// hits lists alternatives, newest first.
	hits []ratioCounters
	// hitRate is a gauge to use instead of hits.
	hitRate string
	// cachedTokens is what replaces hitRate on demand.
	cachedTokens ratioCounters
	// external counts tokens of an external cache tier.
	external ratioCounters
	// rankLabel tells the data-parallel ranks of one engine apart.
	rankLabel string
}

// ratioCounters are the two counters of a hit rate. Whole is the number of
// queries, unless missed is set: then it is part + missed.
type ratioCounters struct{ part, whole, missed string }

func vllmProfile() Profile {
	return Profile{
		Runtime: VLLM, HTTPPort: 8000, EventsPort: 5557, ReplayPort: 5600, MetricsPath: "/metrics",
		load: loadProfile{
			running: "vllm:num_requests_running",
			waiting: "vllm:num_requests_waiting",
			usage: [][]string{
				{"vllm:kv_cache_usage_perc"},
				{"vllm:gpu_cache_usage_perc", "vllm:cpu_cache_usage_perc"},
			},
			hits: []ratioCounters{
				{part: "vllm:prefix_cache_hits", whole: "vllm:prefix_cache_queries"},
				{part: "vllm:gpu_prefix_cache_hits", whole: "vllm:gpu_prefix_cache_queries"},
			},
			external:  ratioCounters{part: "vllm:external_prefix_cache_hits", whole: "vllm:external_prefix_cache_queries"},
			rankLabel: "engine",
		},
	}
}

func sglangProfile() Profile {
	return Profile{
		Runtime: SGLang, HTTPPort: 30000, EventsPort: 5557, ReplayPort: 5600, MetricsPath: "/metrics",
		load: loadProfile{
			running:      "sglang:num_running_reqs",
			waiting:      "sglang:num_queue_reqs",
			skipPriority: true,
			usage:        [][]string{{"sglang:token_usage"}},
			hitRate:      "sglang:cache_hit_rate",
			cachedTokens: ratioCounters{part: "sglang:cached_tokens", whole: "sglang:prompt_tokens"},
			rankLabel:    "dp_rank",
		},
	}
}

func tensorRTLLMProfile() Profile {
	return Profile{
		Runtime: TensorRTLLM, HTTPPort: 8000, EventsPort: 5557, ReplayPort: 5600, MetricsPath: "/prometheus/metrics",
		load: loadProfile{
			running: "trtllm_num_requests_running",
			waiting: "trtllm_num_requests_waiting",
			usage:   [][]string{{"trtllm_kv_cache_utilization"}},
			hits: []ratioCounters{
				{part: "trtllm_kv_cache_reused_blocks", missed: "trtllm_kv_cache_missed_blocks"},
			},
		},
	}
}
