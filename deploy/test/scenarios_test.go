// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"maps"
	"strings"
	"time"
)

// scenarios are keyed by alert and by what they show. Counters that grow by 30
// per sample grow by one a second.
func scenarios() map[string]map[string]scenario {
	all := map[string]map[string]scenario{}
	for _, part := range []map[string]map[string]scenario{
		healthScenarios(), routingScenarios(), latencyScenarios(), capacityScenarios(), ingestScenarios(), publisherScenarios(),
		controlScenarios(), gatewayScenarios(), controllerScenarios(),
	} {
		maps.Copy(all, part)
	}
	return all
}

// calls writes lookup counters of a model: pairs of a reason code and the
// calls per 30 seconds.
func calls(model string, pairs ...string) string {
	var text strings.Builder
	for i := 0; i < len(pairs); i += 2 {
		text.WriteString(`inferencecache_lookup_route_calls_total{model="` + model + `",reason_code="` + pairs[i] + `",hint_used="x"} 0+` + pairs[i+1] + "x300\n")
	}
	return text.String()
}

func healthScenarios() map[string]map[string]scenario {
	return map[string]map[string]scenario{
		"ServerDown": {
			"all targets down": {
				series: `up{job="inference-cache-server",instance="a"} 0x160
				         up{job="inference-cache-server",instance="b"} 0x160`,
				fires: []string{"2m critical"},
			},
			"one of two servers up": {
				series: `up{job="inference-cache-server",instance="a"} 0x160
				         up{job="inference-cache-server",instance="b"} 1x160`,
			},
			"down for less than two minutes": {
				series: `up{job="inference-cache-server"} 1x31 0x2 1x120`,
			},
			"gateway scraped, no server there": {
				series: `inferencecache_build_info{role="gateway"} 1x160`,
				fires:  []string{"2m critical"},
			},
			"gateway scraped, server does not serve": {
				series: `inferencecache_build_info{role="gateway"} 1x160
				         inferencecache_server_up 0x160`,
				fires: []string{"2m critical"},
			},
			"gateway and server": {
				series: `inferencecache_build_info{role="gateway"} 1x160
				         inferencecache_server_up 1x160`,
			},
			"publishers of another namespace need no server there": {
				series: `inferencecache_build_info{role="publisher"} 1x160`,
			},
		},
		"IndexEmpty": {
			"lookups against an empty index": {
				series: "inferencecache_server_up 1x160\n" + calls("m", "NO_HINT", "30"),
				fires:  []string{"2m critical"},
			},
			"all models were lost": {
				series: "inferencecache_server_up 1x160\ninferencecache_index_entries{model=\"m\"} 0x160\n" + calls("m", "NO_HINT", "30"),
				fires:  []string{"2m critical"},
			},
			"one key": {
				series: "inferencecache_server_up 1x160\ninferencecache_index_entries{model=\"m\"} 1x160\n" + calls("m", "NO_HINT", "30"),
			},
			"no lookups": {
				series: "inferencecache_server_up 1x160\n" + calls("m", "NO_HINT", "0"),
			},
		},
		"ServerIndexEmpty": {
			"one of two empty": {
				series: `inferencecache_index_memberships{instance="a"} 0x160
				         inferencecache_index_memberships{instance="b"} 1x160`,
				fires: []string{"5m warning instance=a"},
			},
			"both empty": {
				series: `inferencecache_index_memberships{instance="a"} 0x160
				         inferencecache_index_memberships{instance="b"} 0x160`,
			},
			"a full one in another namespace": {
				series: `inferencecache_index_memberships{instance="a"} 0x160
				         inferencecache_index_memberships{instance="b",namespace="other"} 5x160`,
			},
		},
		"RecoverySlow": {
			"recovering for long":            {series: `inferencecache_sync_recovering 1x160`, fires: []string{"1m warning"}},
			"recovered after thirty seconds": {series: `inferencecache_sync_recovering 1x31 0x120`},
		},
		"HandlerPanic": {
			"one panic": {
				series: `inferencecache_panics_total{component="lookup"} 0x29 1x130`,
				fires:  []string{"0s critical component=lookup"},
			},
			"a panic six minutes ago": {series: `inferencecache_panics_total{component="lookup"} 0x17 1x140`},
		},
		"CertificateExpires": {
			"in six days": {
				series: `inferencecache_tls_not_after_timestamp_seconds{listener="grpc"} 600000x300`,
				fires:  []string{"1h warning listener=grpc"},
			},
			"in eight days": {series: `inferencecache_tls_not_after_timestamp_seconds{listener="grpc"} 700000x300`},
		},
	}
}

func routingScenarios() map[string]map[string]scenario {
	return map[string]map[string]scenario{
		"LookupRouteDegenerate": {
			"91 % without a hint": {
				series: calls("m", "NO_HINT", "61", "UNKNOWN_MODEL", "15", "POLICY_REQUIRES_CHAIN", "15", "PREFIX_MATCH", "9"),
				fires:  []string{"5m warning model=m"},
			},
			"90 % without a hint": {series: calls("m", "NO_HINT", "90", "PREFIX_MATCH", "10")},
			"affinity on, keys wrong": {
				series: calls("m", "UNKNOWN_TENANT", "91", "AFFINITY_HINT", "9"),
				fires:  []string{"5m warning model=m"},
			},
			"affinity on, plain misses": {series: calls("m", "AFFINITY_HINT", "100")},
			"one call in ten seconds":   {series: calls("m", "NO_HINT", "3")},
			"more than one in ten seconds": {
				series: calls("m", "NO_HINT", "4"), fires: []string{"5m warning model=m"},
			},
		},
		"LookupRouteHighTimeout": {
			"6 % time out":      {series: calls("m", "TIMEOUT", "6", "NO_HINT", "94"), fires: []string{"5m warning model=m"}},
			"5 % time out":      {series: calls("m", "TIMEOUT", "5", "NO_HINT", "95")},
			"one call a second": {series: calls("m", "TIMEOUT", "15", "NO_HINT", "15")},
		},
		"LookupKeyMismatch": {
			"6 % under keys nobody reports": {
				series: calls("m", "UNKNOWN_TENANT", "4", "UNKNOWN_HASH_SCHEME", "2", "PREFIX_MATCH", "94"),
				fires:  []string{"10m warning model=m reason_code=UNKNOWN_HASH_SCHEME", "10m warning model=m reason_code=UNKNOWN_TENANT"},
			},
			"5 %": {series: calls("m", "UNKNOWN_TENANT", "5", "PREFIX_MATCH", "95")},
			"affinity on": {
				series: calls("m", "UNKNOWN_MODEL", "10", "AFFINITY_HINT", "90"),
				fires:  []string{"10m warning model=m reason_code=UNKNOWN_MODEL"},
			},
			"one call in twenty seconds": {series: calls("m", "UNKNOWN_MODEL", "1.5")},
			"a server recovers": {
				series: calls("m", "UNKNOWN_MODEL", "100") + "inferencecache_sync_recovering 1x300\n",
			},
			"another model is well": {
				series: calls("bad", "UNKNOWN_MODEL", "30") + calls("good", "PREFIX_MATCH", "30"),
				fires:  []string{"10m warning model=bad reason_code=UNKNOWN_MODEL"},
			},
		},
		"PrefixMatchCollapse": {
			"from 60 % to 10 %": {
				series: collapse("0+60x2880 172800+10x200", "0+40x2880 115200+90x200"),
				from:   24*time.Hour + 15*time.Minute,
				fires:  []string{"15m warning model=m"},
			},
			"affinity on, to nothing": {
				series: collapse("0+60x2880 172800+0x200", "0+40x2880 115200+100x200"),
				from:   24*time.Hour + 15*time.Minute,
				fires:  []string{"15m warning model=m"},
			},
			"from 60 % to 21 %": {
				series: collapse("0+60x2880 172800+21x200", "0+40x2880 115200+79x200"),
				from:   24*time.Hour + 15*time.Minute,
			},
			"from 9 % to nothing": {
				series: collapse("0+9x2880 25920+0x200", "0+91x2880 262080+100x200"),
				from:   24*time.Hour + 15*time.Minute,
			},
			"a server without a match since its restart": {
				series: `inferencecache_lookup_route_calls_total{model="m",reason_code="PREFIX_MATCH",instance="old"} 0+60x2880
				         inferencecache_lookup_route_calls_total{model="m",reason_code="AFFINITY_HINT",instance="old"} 0+40x2880
				         inferencecache_lookup_route_calls_total{model="m",reason_code="AFFINITY_HINT",instance="new"} _x2880 0+100x200`,
				from:  24*time.Hour + 30*time.Minute,
				fires: []string{"15m warning model=m"},
			},
			"too little traffic to tell": {
				series: collapse("0+60x2880 172800+0x200", "0+40x2880 115200+14x200"),
				from:   24*time.Hour + 15*time.Minute,
			},
		},
		"AffinityDominant": {
			"91 % over an hour": {
				series: calls("m", "AFFINITY_HINT", "91", "PREFIX_MATCH", "9") + `inferencecache_index_entries{model="m"} 1x300`,
				from:   time.Hour, fires: []string{"1h info model=m"},
			},
			"90 %": {
				series: calls("m", "AFFINITY_HINT", "90", "PREFIX_MATCH", "10") + `inferencecache_index_entries{model="m"} 1x300`,
				from:   time.Hour,
			},
			"nothing in the index yet": {
				series: calls("m", "AFFINITY_HINT", "91") + `inferencecache_index_entries{model="m"} 0x300`,
				from:   time.Hour,
			},
		},
		"EverybodyHolds": {
			"51 % of all": {
				series: calls("m", "AFFINITY_HINT", "51", "PREFIX_MATCH", "49") + "inferencecache_lookup_floor_all_hold_total 0+51x300",
				fires:  []string{"30m info"},
			},
			"half of all": {
				series: calls("m", "AFFINITY_HINT", "51", "PREFIX_MATCH", "49") + "inferencecache_lookup_floor_all_hold_total 0+50x300",
			},
		},
	}
}

func collapse(matches, affinity string) string {
	return `inferencecache_lookup_route_calls_total{model="m",reason_code="PREFIX_MATCH"} ` + matches + `
	        inferencecache_lookup_route_calls_total{model="m",reason_code="AFFINITY_HINT"} ` + affinity
}

func latencyScenarios() map[string]map[string]scenario {
	latency := func(fast, slow string) string {
		return `inferencecache_lookup_route_latency_seconds_bucket{model="m",le="0.005"} 0+` + fast + `x300
		        inferencecache_lookup_route_latency_seconds_bucket{model="m",le="0.01"} 0+` + slow + `x300
		        inferencecache_lookup_route_latency_seconds_bucket{model="m",le="+Inf"} 0+` + slow + `x300` + "\n"
	}
	critical := func(fast string) string {
		return `inferencecache_index_critical_seconds_bucket{op="apply",le="0.001"} 0+` + fast + `x300
		        inferencecache_index_critical_seconds_bucket{op="apply",le="0.0025"} 0+10000x300
		        inferencecache_index_critical_seconds_bucket{op="apply",le="+Inf"} 0+10000x300`
	}
	return map[string]map[string]scenario{
		"LookupLatencyHigh": {
			"2 % above 5 ms":     {series: latency("980", "1000") + calls("m", "PREFIX_MATCH", "1000"), fires: []string{"10m warning"}},
			"1 % above 5 ms":     {series: latency("990", "1000") + calls("m", "PREFIX_MATCH", "1000")},
			"ten calls a second": {series: latency("200", "300") + calls("m", "PREFIX_MATCH", "300")},
		},
		"IndexLockLong": {
			"2 in 1,000 above 1 ms":  {series: critical("9980"), fires: []string{"10m warning"}},
			"9 in 10,000 above 1 ms": {series: critical("9991")},
		},
	}
}

func capacityScenarios() map[string]map[string]scenario {
	return map[string]map[string]scenario{
		"IndexNearCap": {
			"91 % of the entries": {
				series: "inferencecache_index_memberships 91x160\ninferencecache_index_max_memberships 100x160",
				fires:  []string{"15m warning"},
			},
			"90 % of the entries": {series: "inferencecache_index_memberships 90x160\ninferencecache_index_max_memberships 100x160"},
			"no bound of entries": {series: "inferencecache_index_memberships 91x160\ninferencecache_index_max_memberships 0x160"},
			"91 % of the memory": {
				series: `inferencecache_index_bytes{kind="table"} 50x160
				         inferencecache_index_bytes{kind="arena"} 41x160
				         inferencecache_index_max_bytes 100x160`,
				fires: []string{"15m warning"},
			},
			"90 % of the memory": {
				series: `inferencecache_index_bytes{kind="table"} 50x160
				         inferencecache_index_bytes{kind="arena"} 40x160
				         inferencecache_index_max_bytes 100x160`,
			},
		},
		"IndexEvictionsSpike": {
			"eleven a second": {
				series: `inferencecache_index_evictions_total{algorithm="lru",reason="cap"} 0+330x160`,
				fires:  []string{"10m info algorithm=lru"},
			},
			"ten a second":          {series: `inferencecache_index_evictions_total{algorithm="lru",reason="cap"} 0+300x160`},
			"expiry is no eviction": {series: `inferencecache_index_evictions_total{algorithm="lru",reason="ttl"} 0+3000x160`},
		},
		"QuotaChurn": {
			"eleven keys a second": {
				series: `inferencecache_tenant_evictions_total{tenant_id="t",reason="over_entries"} 0+330x160`,
				fires:  []string{"15m info tenant_id=t"},
			},
			"ten keys a second": {series: `inferencecache_tenant_evictions_total{tenant_id="t",reason="over_entries"} 0+300x160`},
		},
		"IndexMemoryHigh": {
			"86 % of the limit": {
				series: "process_resident_memory_bytes 86x160\ninferencecache_server_memory_limit_bytes 100x160",
				fires:  []string{"10m warning"},
			},
			"85 % of the limit":               {series: "process_resident_memory_bytes 85x160\ninferencecache_server_memory_limit_bytes 100x160"},
			"other processes are not servers": {series: "process_resident_memory_bytes{instance=\"x\"} 99x160\ninferencecache_server_memory_limit_bytes 100x160"},
		},
	}
}
