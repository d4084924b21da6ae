// SPDX-License-Identifier: Apache-2.0

package deploy

import "maps"

func controlScenarios() map[string]map[string]scenario {
	const controller = `inferencecache_build_info{role="controller",instance="c"} 1x160
	                    process_start_time_seconds 0x160` + "\n"
	push := func(entries, removals string) string {
		return `inferencecache_policy_entries{kind="policy"} ` + entries + "\ninferencecache_policy_removals_total " + removals
	}
	return map[string]map[string]scenario{
		"PolicyNeverApplied": {
			"no push since the start": {
				series: controller + `inferencecache_policy_last_applied_timestamp_seconds{kind="policy"} 0x160`,
				fires:  []string{"5m warning"},
			},
			"no controller": {
				series: "process_start_time_seconds 0x160\n" + `inferencecache_policy_last_applied_timestamp_seconds{kind="policy"} 0x160`,
			},
			"started two minutes ago": {
				series: `inferencecache_build_info{role="controller",instance="c"} 1x160
				         process_start_time_seconds 0+30x160
				         inferencecache_policy_last_applied_timestamp_seconds{kind="policy"} 0x160`,
			},
			"pushed": {
				series: controller + `inferencecache_policy_last_applied_timestamp_seconds{kind="policy"} 5x160`,
			},
		},
		"PolicyStale": {
			"nothing for more than two minutes": {
				series: `inferencecache_policy_last_applied_timestamp_seconds{kind="policy"} 779x160`,
				fires:  []string{"5m warning kind=policy"},
			},
			"four ticks old":      {series: `inferencecache_policy_last_applied_timestamp_seconds{kind="policy"} -120+30x160`},
			"never pushed at all": {series: `inferencecache_policy_last_applied_timestamp_seconds{kind="extensions"} 0x160`},
		},
		"PolicyRejected": {
			"an unknown field": {
				series: `inferencecache_policy_pushes_total{kind="policy",result="unknown_field"} 0+1x160`,
				fires:  []string{"5m critical kind=policy result=unknown_field"},
			},
			"once, six minutes before": {
				series: `inferencecache_policy_pushes_total{kind="policy",result="version"} 0x17 1x160`,
			},
			"applied and unchanged": {
				series: `inferencecache_policy_pushes_total{kind="policy",result="applied"} 0+1x160
				         inferencecache_policy_pushes_total{kind="policy",result="unchanged"} 0+1x160`,
			},
		},
		"PolicyDiverges": {
			"two revisions": {
				series: `inferencecache_policy_revision_info{instance="a",revision="1"} 1x160
				         inferencecache_policy_revision_info{instance="b",revision="2"} 1x160`,
				fires: []string{"5m warning"},
			},
			"one revision": {
				series: `inferencecache_policy_revision_info{instance="a",revision="1"} 1x160
				         inferencecache_policy_revision_info{instance="b",revision="1"} 1x160`,
			},
			"two installations": {
				series: `inferencecache_policy_revision_info{instance="a",revision="1"} 1x160
				         inferencecache_policy_revision_info{instance="b",namespace="other",revision="2"} 1x160`,
			},
		},
		"PolicyMassRemoval": {
			"six of ten":  {series: push("10x29 4x130", "0x29 6x130"), fires: []string{"0s warning"}},
			"five of ten": {series: push("10x29 5x130", "0x29 5x130")},
			"all of nine": {series: push("9x29 0x130", "0x29 9x130")},
			"a restart":   {series: push("10x29 0x130", "50x29 0x130")},
		},
		"ControlAuthDenied": {
			"the reader is refused": {
				series: `inferencecache_snapshot_auth_total{result="unauth"} 0+1x160
				         inferencecache_probe_auth_total{result="forbidden"} 0+1x160
				         inferencecache_policy_auth_total{result="unauth"} 0+1x160`,
				fires: []string{
					"5m warning endpoint=policy result=unauth", "5m warning endpoint=probe result=forbidden",
					"5m warning endpoint=snapshot result=unauth",
				},
			},
			"a stranger pushes policy": {
				series: `inferencecache_policy_auth_total{result="forbidden"} 0+1x160`,
				fires:  []string{"5m critical endpoint=policy result=forbidden"},
			},
			"once":    {series: `inferencecache_policy_auth_total{result="forbidden"} 0x28 1x160`},
			"allowed": {series: `inferencecache_policy_auth_total{result="ok"} 0+1x160`},
		},
		"ControlAuthError": {
			"reviews fail": {
				series: `inferencecache_snapshot_auth_total{result="error"} 0+1x160
				         inferencecache_policy_auth_total{result="error"} 0+1x160`,
				fires: []string{"5m warning endpoint=policy", "5m warning endpoint=snapshot"},
			},
			"once":    {series: `inferencecache_policy_auth_total{result="error"} 0x28 1x160`},
			"refused": {series: `inferencecache_policy_auth_total{result="unauth"} 0+1x160`},
		},
	}
}

// controllerMetrics are the families of the controller, which exports them.
var controllerMetrics = map[string]metric{
	"inferencecache_backend_probe_result_total":                         {kind: "counter", labels: []string{"backend", "stage", "result"}},
	"inferencecache_backend_t2_hit_rate":                                {kind: "gauge", labels: []string{"backend"}},
	"inferencecache_backend_t2_query_tokens_total":                      {kind: "counter", labels: []string{"backend"}},
	"inferencecache_controller_probe_requests_total":                    {kind: "counter", labels: []string{"result"}},
	"inferencecache_controller_probe_last_timestamp_seconds":            {kind: "gauge", labels: []string{"backend"}},
	"inferencecache_controller_snapshot_last_success_timestamp_seconds": {kind: "gauge", labels: []string{"server"}},
	"inferencecache_injection_total":                                    {kind: "counter", labels: []string{"result", "reason"}},
}

func withController(known map[string]metric) map[string]metric {
	all := maps.Clone(known)
	maps.Copy(all, controllerMetrics)
	return all
}

func controllerScenarios() map[string]map[string]scenario {
	const asked = `vllm:external_prefix_cache_queries_total{pod="p"} 0+33000x160` + "\n"
	return map[string]map[string]scenario{
		"ServerProbeFail": {
			"each of ten probes": {
				series: `inferencecache_backend_probe_result_total{backend="ns/b",stage="routing",result="failed"} 0+1x160`,
				fires:  []string{"5m critical backend=ns/b stage=routing"},
			},
			"one in five minutes": {
				series: `inferencecache_backend_probe_result_total{backend="ns/b",stage="routing",result="failed"} 0+0.1x160`,
			},
			"skipped": {
				series: `inferencecache_backend_probe_result_total{backend="ns/b",stage="t2",result="skipped"} 0+1x160`,
			},
		},
		"ProbeNotRunning": {
			"more than five minutes old": {
				series: `inferencecache_controller_probe_last_timestamp_seconds{backend="ns/b"} 599x160`,
				fires:  []string{"10m warning backend=ns/b"},
			},
			"five minutes old": {series: `inferencecache_controller_probe_last_timestamp_seconds{backend="ns/b"} -300+30x160`},
		},
		"ProbeCallsFailing": {
			"six of ten": {
				series: `inferencecache_controller_probe_requests_total{result="timeout"} 0+6x160
				         inferencecache_controller_probe_requests_total{result="ok"} 0+4x160`,
				fires: []string{"5m warning"},
			},
			"half": {
				series: `inferencecache_controller_probe_requests_total{result="timeout"} 0+5x160
				         inferencecache_controller_probe_requests_total{result="ok"} 0+5x160`,
			},
		},
		"BackendT2Degraded": {
			"asked and serving nothing": {
				series: `inferencecache_backend_t2_hit_rate{backend="ns/b"} 0x160
				         inferencecache_backend_t2_query_tokens_total{backend="ns/b"} 0+33000x160`,
				fires: []string{"5m warning backend=ns/b"},
			},
			"serving something": {
				series: `inferencecache_backend_t2_hit_rate{backend="ns/b"} 0.001x160
				         inferencecache_backend_t2_query_tokens_total{backend="ns/b"} 0+33000x160`,
			},
			"asked for 1,000 tokens a second": {
				series: `inferencecache_backend_t2_hit_rate{backend="ns/b"} 0x160
				         inferencecache_backend_t2_query_tokens_total{backend="ns/b"} 0+30000x160`,
			},
		},
		"InjectionFailing": {
			"a failure": {
				series: `inferencecache_injection_total{result="failed",reason="patch"} 0+1x160
				         inferencecache_injection_total{result="injected",reason=""} 0+100x160`,
				fires: []string{"10m warning"},
			},
			"21 % skipped": {
				series: `inferencecache_injection_total{result="skipped",reason="no_backend"} 0+21x160
				         inferencecache_injection_total{result="injected",reason=""} 0+79x160`,
				fires: []string{"10m warning"},
			},
			"20 % skipped": {
				series: `inferencecache_injection_total{result="skipped",reason="no_backend"} 0+20x160
				         inferencecache_injection_total{result="injected",reason=""} 0+80x160`,
			},
			"opted out": {
				series: `inferencecache_injection_total{result="skipped",reason="skip-inject-annotation"} 0+90x160
				         inferencecache_injection_total{result="injected",reason=""} 0+10x160`,
			},
		},
		"SnapshotPollStale": {
			"more than two minutes": {
				series: `inferencecache_controller_snapshot_last_success_timestamp_seconds{server="0"} 779x160`,
				fires:  []string{"5m warning server=0"},
			},
			"two minutes": {series: `inferencecache_controller_snapshot_last_success_timestamp_seconds{server="0"} -120+30x160`},
		},
		"LMCacheT2NoHits": {
			"asked and serving nothing": {
				series: asked + `vllm:external_prefix_cache_hits_total{pod="p"} 0x160`,
				fires:  []string{"5m warning pod=p"},
			},
			"names without _total": {
				series: `vllm:external_prefix_cache_queries{pod="p"} 0+33000x160`,
				fires:  []string{"5m warning pod=p"},
			},
			"a hit":                           {series: asked + `vllm:external_prefix_cache_hits_total{pod="p"} 0+1x160`},
			"asked for 1,000 tokens a second": {series: `vllm:external_prefix_cache_queries_total{pod="p"} 0+30000x160`},
		},
	}
}
