// SPDX-License-Identifier: Apache-2.0

package deploy

func ingestScenarios() map[string]map[string]scenario {
	stalled := func(lookups, memberships, blocks, running string) scenario {
		return scenario{series: calls("m", "PREFIX_MATCH", lookups) + `
			inferencecache_index_memberships ` + memberships + `x160
			inferencecache_ingest_blocks_total{source="sync",op="store"} 5+` + blocks + `x160
			inferencecache_publisher_engine_running_requests{namespace="engines",instance="p"} ` + running + `x160`}
	}
	quietServer := stalled("30", "9", "0", "1")
	quietServer.fires = []string{"5m warning"}
	lag := func(late string) string {
		return `inferencecache_ingest_lag_seconds_bucket{source="sync",le="1"} 0+` + late + `x160
		        inferencecache_ingest_lag_seconds_bucket{source="sync",le="2.5"} 0+1000x160
		        inferencecache_ingest_lag_seconds_bucket{source="sync",le="+Inf"} 0+1000x160`
	}
	replicas := func(live, silent, statsOnly string) string {
		return `inferencecache_index_replicas{state="live"} ` + live + `x160
		        inferencecache_index_replicas{state="silent"} ` + silent + `x160
		        inferencecache_index_replicas{state="stats_only"} ` + statsOnly + `x160`
	}
	return map[string]map[string]scenario{
		"IngestStalled": {
			"engines work, nothing arrives": quietServer,
			"one block in five minutes":     stalled("30", "9", "0.1", "1"),
			"one lookup in ten seconds":     stalled("3", "9", "0", "1"),
			"engines idle":                  stalled("30", "9", "0", "0"),
			"an empty index":                stalled("30", "0", "0", "1"),
		},
		"IngestDrops": {
			"two a second of 100": {
				series: `inferencecache_ingest_dropped_total{source="sync",reason="hash_empty"} 0+60x160
				         inferencecache_ingest_blocks_total{source="sync",op="store"} 0+3000x160`,
				fires: []string{"10m warning reason=hash_empty"},
			},
			"one a second": {
				series: `inferencecache_ingest_dropped_total{source="sync",reason="hash_empty"} 0+30x160
				         inferencecache_ingest_blocks_total{source="sync",op="store"} 0+300x160`,
			},
			"1 % of what is taken in": {
				series: `inferencecache_ingest_dropped_total{source="sync",reason="hash_empty"} 0+60x160
				         inferencecache_ingest_blocks_total{source="sync",op="store"} 0+6000x160`,
			},
			"nothing is taken in": {
				series: `inferencecache_ingest_dropped_total{source="contract",reason="no_tenant"} 0+60x160
				         inferencecache_ingest_blocks_total{source="contract",op="store"} 0x160`,
				fires: []string{"10m warning reason=no_tenant"},
			},
			"each reason counts alone": {
				series: `inferencecache_ingest_dropped_total{source="sync",reason="hash_empty"} 0+60x160
				         inferencecache_ingest_dropped_total{source="sync",reason="no_model"} 0+3x160
				         inferencecache_ingest_blocks_total{source="sync",op="store"} 0+100x160`,
				fires: []string{"10m warning reason=hash_empty"},
			},
			"probes and clocks are no drops": {
				series: `inferencecache_ingest_dropped_total{source="sync",reason="reserved_tenant"} 0+60x160
				         inferencecache_ingest_dropped_total{source="sync",reason="timestamp_future"} 0+60x160
				         inferencecache_ingest_blocks_total{source="sync",op="store"} 0+100x160`,
			},
		},
		"IngestLagHigh": {
			"2 % above a second": {series: lag("980"), fires: []string{"5m warning source=sync"}},
			"1 % above a second": {series: lag("990")},
		},
		"ClockSkew": {
			"one report in ten minutes": {
				series: `inferencecache_ingest_dropped_total{source="sync",reason="timestamp_future"} 0+0.05x160`,
				fires:  []string{"15m info source=sync"},
			},
			"one report": {
				series: `inferencecache_ingest_dropped_total{source="sync",reason="timestamp_future"} 0x5 1x160`,
			},
			"none": {series: `inferencecache_ingest_dropped_total{source="sync",reason="timestamp_future"} 4x160`},
		},
		"ReplicaSilent": {
			"6 of 100":     {series: replicas("94", "6", "0"), fires: []string{"5m warning"}},
			"5 of 100":     {series: replicas("95", "5", "0")},
			"one of three": {series: replicas("2", "1", "0"), fires: []string{"5m warning"}},
			"none":         {series: replicas("3", "0", "0")},
		},
		"ReplicaPublishesNothing": {
			"one":  {series: replicas("99", "0", "1"), fires: []string{"10m warning"}},
			"none": {series: replicas("99", "1", "0")},
		},
		"SyncResyncLoop": {
			"1.1 a minute": {
				series: `inferencecache_sync_resyncs_total{reason="gap"} 0+0.55x160`,
				fires:  []string{"15m warning"},
			},
			"one a minute":  {series: `inferencecache_sync_resyncs_total{reason="gap"} 0+0.5x160`},
			"server starts": {series: `inferencecache_sync_resyncs_total{reason="server_start"} 0+50x160`},
			"several causes": {
				series: `inferencecache_sync_resyncs_total{reason="gap"} 0+0.3x160
				         inferencecache_sync_resyncs_total{reason="overflow"} 0+0.3x160`,
				fires: []string{"15m warning"},
			},
		},
		"IngestForged": {
			"again and again": {
				series: `inferencecache_ingest_denied_total{reason="tenant"} 0+0.2x160`,
				fires:  []string{"5m critical reason=tenant"},
			},
			"once":  {series: `inferencecache_ingest_denied_total{reason="tenant"} 0x28 1x160`},
			"never": {series: `inferencecache_ingest_denied_total{reason="tenant"} 0x160`},
		},
	}
}

func publisherScenarios() map[string]map[string]scenario {
	const running = "inferencecache_publisher_engine_running_requests 3x160\n"
	return map[string]map[string]scenario{
		"KvEventsStaleness": {
			"an engine at work is silent": {
				series: running + `inferencecache_publisher_last_event_timestamp_seconds{rank="0"} 839x160`,
				fires:  []string{"2m warning"},
			},
			"an engine at work has never sent one": {series: running, fires: []string{"2m warning"}},
			"its last event is a minute old": {
				series: running + `inferencecache_publisher_last_event_timestamp_seconds{rank="0"} -60+30x160`,
			},
			"one of two ranks speaks": {
				series: running + `inferencecache_publisher_last_event_timestamp_seconds{rank="0"} 5x160
				                   inferencecache_publisher_last_event_timestamp_seconds{rank="1"} -1+30x160`,
			},
			"idle within five minutes": {
				series: `inferencecache_publisher_engine_running_requests 3x26 0 3x130
				         inferencecache_publisher_last_event_timestamp_seconds{rank="0"} 5x25 795x8 1035+30x120`,
			},
			"idle": {
				series: `inferencecache_publisher_engine_running_requests 0x160
				         inferencecache_publisher_last_event_timestamp_seconds{rank="0"} 5x160`,
			},
			"engines of one process are told apart": {
				series: `inferencecache_publisher_engine_running_requests{replica_id="a"} 3x160
				         inferencecache_publisher_engine_running_requests{replica_id="b"} 3x160
				         inferencecache_publisher_last_event_timestamp_seconds{replica_id="a",rank="0"} 0+30x160`,
				fires: []string{"2m warning replica_id=b"},
			},
		},
		"PublisherDisconnected": {
			"one of two streams": {
				series: "inferencecache_publisher_streams 1x160\ninferencecache_publisher_streams_expected 2x160",
				fires:  []string{"5m warning"},
			},
			"all streams and servers": {
				series: "inferencecache_publisher_streams 2x160\ninferencecache_publisher_streams_expected 2x160\n" +
					`inferencecache_publisher_servers{state="live"} 1x160`,
			},
			"no live server": {
				series: `inferencecache_publisher_servers{state="live"} 0x160
				         inferencecache_publisher_servers{state="snapshot"} 1x160`,
				fires: []string{"5m warning"},
			},
		},
		"PublisherGaps": {
			"incomplete, then suspect": {
				series: `inferencecache_publisher_view{state="incomplete"} 1x35 0x120
				         inferencecache_publisher_view{state="suspect"} 0x35 1x120
				         inferencecache_publisher_view{state="complete"} 0x160`,
				fires: []string{"10m warning"},
			},
			"complete again after nine minutes": {
				series: `inferencecache_publisher_view{state="incomplete"} 1x47 0x120
				         inferencecache_publisher_view{state="suspect"} 0x160
				         inferencecache_publisher_view{state="complete"} 0x47 1x120`,
			},
		},
		"PublisherSkips": {
			"6 % of what is stored": {
				series: `inferencecache_publisher_events_skipped_total{reason="extra_key"} 0+6x160
				         inferencecache_publisher_events_total{type="stored"} 0+100x160`,
				fires: []string{"15m warning reason=extra_key"},
			},
			"5 % of what is stored": {
				series: `inferencecache_publisher_events_skipped_total{reason="extra_key"} 0+5x160
				         inferencecache_publisher_events_total{type="stored"} 0+100x160`,
			},
			"events that nobody needs": {
				series: `inferencecache_publisher_events_skipped_total{reason="placeholder"} 0+60x160
				         inferencecache_publisher_events_skipped_total{reason="non_main_group"} 0+60x160
				         inferencecache_publisher_events_skipped_total{reason="partial"} 0+60x160
				         inferencecache_publisher_events_total{type="stored"} 0+100x160`,
			},
		},
		"LoadSignalStale": {
			"stale": {series: "inferencecache_publisher_load_signal_stale 1x160", fires: []string{"5m warning"}},
			"stale for four minutes": {
				series: "inferencecache_publisher_load_signal_stale 1x38 0x120",
			},
		},
	}
}
