// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func families(t *testing.T, page string) Families {
	t.Helper()
	f, err := ParseFamilies(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

const vllmIdle = `
vllm:num_requests_running{engine="0",model_name="m"} 0
vllm:num_requests_waiting{engine="0",model_name="m"} 0
`

func TestLoad(t *testing.T) {
	tests := map[string]struct {
		runtime string
		opts    LoadOptions
		pages   []string
		want    Load // of the last page
		wantErr error
	}{
		"an idle vLLM": {
			pages: []string{vllmIdle},
		},
		"series are added up, and usage is the largest": {
			opts: LoadOptions{CacheBytes: 1000},
			pages: []string{`
vllm:num_requests_running{engine="0"} 40
vllm:num_requests_running{engine="1"} 20
vllm:num_requests_waiting{engine="0"} 4
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.5
`},
			want: Load{Running: 60, Waiting: 4, Pressure: 0.25, Usage: 0.5, CacheBytes: 500},
		},
		"usage under the names before 0.12": {
			pages: []string{vllmIdle + "vllm:gpu_cache_usage_perc 0.1\nvllm:cpu_cache_usage_perc 0.3\n"},
			want:  Load{Usage: 0.3},
		},
		"the new name of usage wins": {
			pages: []string{vllmIdle + "vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.2\n"},
			want:  Load{Usage: 0.2},
		},
		"pressure is cut at 1": {
			opts:  LoadOptions{Ceiling: 10},
			pages: []string{"vllm:num_requests_running 9\nvllm:num_requests_waiting 9\n"},
			want:  Load{Running: 9, Waiting: 9, Pressure: 1},
		},
		"a negative ceiling turns pressure off": {
			opts:  LoadOptions{Ceiling: -1},
			pages: []string{"vllm:num_requests_running 9\nvllm:num_requests_waiting 9\n"},
			want:  Load{Running: 9, Waiting: 9},
		},
		"no hit rate on the first scrape": {
			pages: []string{vllmIdle + "vllm:prefix_cache_hits_total 50\nvllm:prefix_cache_queries_total 100\n"},
		},
		"hit rate of what came since": {
			pages: []string{
				vllmIdle + "vllm:prefix_cache_hits_total 50\nvllm:prefix_cache_queries_total 100\n",
				vllmIdle + "vllm:prefix_cache_hits_total 65\nvllm:prefix_cache_queries_total 120\n",
			},
			want: Load{HitRate: 0.75},
		},
		"counters without _total": {
			pages: []string{
				vllmIdle + "vllm:prefix_cache_hits 50\nvllm:prefix_cache_queries 100\n",
				vllmIdle + "vllm:prefix_cache_hits 60\nvllm:prefix_cache_queries 120\n",
			},
			want: Load{HitRate: 0.5},
		},
		"counters under the names before 0.12": {
			pages: []string{
				vllmIdle + "vllm:gpu_prefix_cache_hits_total 50\nvllm:gpu_prefix_cache_queries_total 100\n",
				vllmIdle + "vllm:gpu_prefix_cache_hits_total 60\nvllm:gpu_prefix_cache_queries_total 120\n",
			},
			want: Load{HitRate: 0.5},
		},
		"no hit rate without new queries": {
			pages: []string{
				vllmIdle + "vllm:prefix_cache_hits_total 50\nvllm:prefix_cache_queries_total 100\n",
				vllmIdle + "vllm:prefix_cache_hits_total 50\nvllm:prefix_cache_queries_total 100\n",
			},
		},
		"no hit rate after a counter reset": {
			pages: []string{
				vllmIdle + "vllm:prefix_cache_hits_total 50\nvllm:prefix_cache_queries_total 100\n",
				vllmIdle + "vllm:prefix_cache_hits_total 3\nvllm:prefix_cache_queries_total 130\n",
			},
		},
		"hit rate again after a reset": {
			pages: []string{
				vllmIdle + "vllm:prefix_cache_hits_total 50\nvllm:prefix_cache_queries_total 100\n",
				vllmIdle + "vllm:prefix_cache_hits_total 0\nvllm:prefix_cache_queries_total 0\n",
				vllmIdle + "vllm:prefix_cache_hits_total 1\nvllm:prefix_cache_queries_total 4\n",
			},
			want: Load{HitRate: 0.25},
		},
		"no hit rate while a counter is missing": {
			pages: []string{
				vllmIdle + "vllm:prefix_cache_hits_total 50\nvllm:prefix_cache_queries_total 100\n",
				vllmIdle + "vllm:prefix_cache_hits_total 60\n",
			},
		},
		"a counter missing once keeps the baseline": {
			pages: []string{
				vllmIdle + "vllm:prefix_cache_hits_total 50\nvllm:prefix_cache_queries_total 100\n",
				vllmIdle,
				vllmIdle + "vllm:prefix_cache_hits_total 70\nvllm:prefix_cache_queries_total 140\n",
			},
			want: Load{HitRate: 0.5},
		},
		"external tier tokens are cumulative": {
			pages: []string{vllmIdle + "vllm:external_prefix_cache_hits_total 7\nvllm:external_prefix_cache_queries_total 9\n"},
			want:  Load{T2HitTokens: 7, T2QueryTokens: 9},
		},
		"values that are no number are left out": {
			pages: []string{`
vllm:num_requests_running{engine="0"} NaN
vllm:num_requests_running{engine="1"} 2
vllm:num_requests_waiting 1
vllm:kv_cache_usage_perc +Inf
`},
			opts: LoadOptions{Ceiling: 4},
			want: Load{Running: 2, Waiting: 1, Pressure: 0.75},
		},
		"a page of another engine": {
			pages:   []string{"process_cpu_seconds_total 4\nsglang:num_running_reqs 1\n"},
			wantErr: ErrWrongEngine,
		},
		"an empty page": {
			pages:   []string{""},
			wantErr: ErrWrongEngine,
		},
		"a load gauge is absent": {
			pages:   []string{"vllm:num_requests_running 1\nvllm:kv_cache_usage_perc 0.5\n"},
			wantErr: ErrNoLoadGauge,
		},
		"a load gauge is only NaN": {
			pages:   []string{"vllm:num_requests_running NaN\nvllm:num_requests_waiting 0\n"},
			wantErr: ErrNoLoadGauge,
		},
		"a load gauge is absent for this model": {
			opts:    LoadOptions{Model: "other"},
			pages:   []string{vllmIdle},
			wantErr: ErrNoLoadGauge,
		},
		"only this model counts": {
			opts:  LoadOptions{Model: "m", Ceiling: 10},
			pages: []string{vllmIdle + `vllm:num_requests_running{engine="0",model_name="other"} 5` + "\n"},
		},
		"only this rank counts": {
			opts: LoadOptions{HasRank: true, Rank: 1, Ceiling: 10},
			pages: []string{`
vllm:num_requests_running{engine="0"} 5
vllm:num_requests_running{engine="1"} 3
vllm:num_requests_waiting{engine="0"} 5
vllm:num_requests_waiting{engine="1"} 2
`},
			want: Load{Running: 3, Waiting: 2, Pressure: 0.5},
		},
		"a rank that is not there": {
			opts:    LoadOptions{HasRank: true, Rank: 2},
			pages:   []string{vllmIdle},
			wantErr: ErrNoLoadGauge,
		},
		"an unknown runtime reads as vLLM": {
			runtime: "acme",
			pages:   []string{"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n"},
			opts:    LoadOptions{Ceiling: 2},
			want:    Load{Running: 1, Pressure: 0.5},
		},
		"SGLang leaves out series by priority": {
			runtime: SGLang,
			opts:    LoadOptions{Ceiling: 10},
			pages: []string{`
sglang:num_running_reqs{priority=""} 3
sglang:num_running_reqs{priority="1"} 2
sglang:num_queue_reqs 1
sglang:num_queue_reqs{priority="1"} 1
sglang:token_usage 0.5
sglang:cache_hit_rate{dp_rank="0"} 0.2
sglang:cache_hit_rate{dp_rank="1"} 0.4
`},
			want: Load{Running: 3, Waiting: 1, Pressure: 0.4, Usage: 0.5, HitRate: 0.4},
		},
		"SGLang hit rate from tokens": {
			runtime: SGLang,
			opts:    LoadOptions{HitRateFromTokens: true},
			pages: []string{
				"sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\nsglang:cached_tokens_total 10\nsglang:prompt_tokens_total 100\n",
				"sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\nsglang:cached_tokens_total 90\nsglang:prompt_tokens_total 200\nsglang:cache_hit_rate 0.1\n",
			},
			want: Load{HitRate: 0.8},
		},
		"a rank of SGLang": {
			runtime: SGLang,
			opts:    LoadOptions{HasRank: true, Rank: 1, Ceiling: -1},
			pages:   []string{"sglang:num_running_reqs{dp_rank=\"0\"} 9\nsglang:num_running_reqs{dp_rank=\"1\"} 1\nsglang:num_queue_reqs{dp_rank=\"1\"} 0\n"},
			want:    Load{Running: 1},
		},
		"TensorRT-LLM counts reused and missed blocks": {
			runtime: TensorRTLLM,
			opts:    LoadOptions{Ceiling: 4},
			pages: []string{
				"trtllm_num_requests_running 1\ntrtllm_num_requests_waiting 1\ntrtllm_kv_cache_utilization 0.3\ntrtllm_kv_cache_reused_blocks_total 10\ntrtllm_kv_cache_missed_blocks_total 10\n",
				"trtllm_num_requests_running 1\ntrtllm_num_requests_waiting 1\ntrtllm_kv_cache_utilization 0.3\ntrtllm_kv_cache_reused_blocks_total 13\ntrtllm_kv_cache_missed_blocks_total 11\n",
			},
			want: Load{Running: 1, Waiting: 1, Pressure: 0.5, Usage: 0.3, HitRate: 0.75},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			runtime := tc.runtime
			if runtime == "" {
				runtime = VLLM
			}
			m := NewLoadMeter(runtime, tc.opts)
			var got Load
			var err error
			for _, page := range tc.pages {
				got, err = m.Read(families(t, page))
			}
			if !errors.Is(err, tc.wantErr) {
				t.Fatalf("got error %v, want %v", err, tc.wantErr)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestLoadStaysInItsRanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := NewLoadMeter(VLLM, LoadOptions{Ceiling: rapid.Float64().Draw(t, "ceiling"), CacheBytes: rapid.Int64().Draw(t, "bytes")})
		for range 3 {
			page := ""
			for _, name := range []string{
				"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
				"vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total",
				"vllm:external_prefix_cache_hits", "vllm:external_prefix_cache_queries",
			} {
				page += name + " " + rapid.SampledFrom([]string{"-1", "0", "3", "1e300", "NaN", "+Inf", "-Inf"}).Draw(t, name) + "\n"
			}
			f, err := ParseFamilies(strings.NewReader(page))
			if err != nil {
				t.Fatal(err)
			}
			load, err := m.Read(f)
			if err != nil {
				continue
			}
			for name, v := range map[string]float64{"pressure": load.Pressure, "usage": load.Usage, "hit rate": load.HitRate} {
				if !(v >= 0 && v <= 1) {
					t.Fatalf("%s is %v", name, v)
				}
			}
			if load.Running < 0 || load.Waiting < 0 || load.CacheBytes < 0 || load.T2HitTokens < 0 || load.T2QueryTokens < 0 {
				t.Fatalf("negative: %+v", load)
			}
		}
	})
}

func TestProfileOf(t *testing.T) {
	for _, runtime := range []string{VLLM, SGLang, TensorRTLLM} {
		p, known := ProfileOf(runtime)
		if !known || p.Runtime != runtime || p.HTTPPort == 0 || !strings.HasPrefix(p.MetricsPath, "/") {
			t.Errorf("%s: got %+v, %v", runtime, p, known)
		}
	}
	if p, known := ProfileOf("acme"); known || p.Runtime != VLLM {
		t.Errorf("an unknown runtime gives %+v, %v", p, known)
	}
}
