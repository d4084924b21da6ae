// SPDX-License-Identifier: Apache-2.0

package main

func dashboards() []dashboard {
	return []dashboard{overview(), routing(), index(), ingest(), control(), gateway()}
}

const (
	calls  = "lookup_route_calls_total"
	tokens = "routing_tokens_total"
	hints  = "routing_hints_total"
)

func code(matcher string) string { return "reason_code" + matcher }

func kind(name string) string { return total(tokens, `kind="`+name+`"`) }

func overview() dashboard {
	return dashboard{
		name: "overview", title: "Overview", about: "Is it up, does it hit, is it honest.",
		rows: []row{
			{"Does it work", []panel{
				{title: "Servers up", unit: "short", queries: one(gauge("sum", "server_up", "namespace"), "{{namespace}}")},
				{title: "Lookups", unit: "reqps", queries: one(rate(calls, "namespace"), "{{namespace}}")},
				{title: "Panics", unit: "short", about: "Any is a defect.", queries: one("sum by (component) (increase(inferencecache_panics_total{$where}[$__rate_interval]))", "{{component}}")},
			}},
			{"Does it hit", []panel{
				{title: "Share of lookups", unit: "percentunit", about: "What the answers are made of.", queries: []query{
					{share(total(calls, code(`="PREFIX_MATCH"`)), total(calls)), "prefix hit"},
					{share(total(calls, `hint_used="true"`), total(calls)), "any hint"},
					{share(total(calls, code(`="AFFINITY_HINT"`)), total(calls)), "affinity"},
					{share(total(calls, code(`=~"UNKNOWN_.+"`)), total(calls)), "configuration error"},
				}},
				{title: "Reuse by tokens", unit: "percentunit", about: "predicted: as lookups see it; proven: as engines report it.", queries: []query{
					{share(total("lookup_matched_tokens_total"), total("lookup_requested_tokens_total")), "predicted"},
					{kind("engine_cached") + " / (" + kind("prompt") + " - " + kind("engine_unknown") + ")", "proven"},
				}},
				{title: "Honesty", unit: "percentunit", about: "Reuse proven by reuse promised, and what load cost.", queries: []query{
					{share(kind("engine_cached"), kind("chosen_overlap")), "proven / promised"},
					{"1 - " + share(kind("chosen_overlap"), kind("best_overlap")), "given up for load"},
				}},
			}},
			{"Is it fast, does it fit", []panel{
				{title: "Lookup latency", unit: "s", queries: quantiles("lookup_route_latency_seconds", "")},
				{title: "Freshness", unit: "s", about: "From the engine's event to the index.", queries: quantiles("ingest_lag_seconds", "source")},
				{title: "Index fill", unit: "percentunit", queries: []query{
					{gauge("max", "index_memberships", "instance") + " / (" + gauge("max", "index_max_memberships", "instance") + " > 0)", "{{instance}} entries"},
					{gauge("sum", "index_bytes", "instance") + " / (" + gauge("max", "index_max_bytes", "instance") + " > 0)", "{{instance}} memory"},
				}},
			}},
		},
	}
}

func routing() dashboard {
	return dashboard{
		name: "routing", title: "Routing", about: "Why lookups answer what they answer.",
		rows: []row{
			{"Answers", []panel{
				{title: "By reason", unit: "reqps", stacked: true, queries: one(rate(calls, "reason_code"), "{{reason_code}}")},
				{title: "By model", unit: "reqps", stacked: true, queries: one("topk(10, "+rate(calls, "model")+")", "{{model}}")},
				{title: "Configuration errors", unit: "reqps", queries: one(rate(calls, "model, reason_code", code(`=~"UNKNOWN_.+"`)), "{{model}} {{reason_code}}")},
			}},
			{"Matches", []panel{
				{title: "Best match by prompt", unit: "percentunit", about: "Before any floor.", queries: quantiles("lookup_match_ratio", "")},
				{title: "Holders of the prefix", unit: "short", queries: quantiles("lookup_holders", "")},
				{title: "Tier of the top score", unit: "reqps", stacked: true, queries: one(rate("lookup_tier_total", "tier"), "{{tier}}")},
			}},
			{"Hints withheld", []panel{
				{title: "By gate", unit: "reqps", queries: one(rate("lookup_downgrades_total", "gate"), "{{gate}}")},
				{title: "Everybody holds the prefix", unit: "percentunit", queries: one(share(total("lookup_floor_all_hold_total"), total(calls)), "share of lookups")},
				{title: "Malformed lookups", unit: "reqps", queries: one(rate("lookup_invalid_total", "reason")+" > 0", "{{reason}}")},
			}},
			{"Time", []panel{
				{title: "Decision alone", unit: "s", queries: quantiles("lookup_decision_seconds", "")},
				{title: "Stages, 99th percentile", unit: "s", queries: quantiles("lookup_stage_seconds", "stage")[1:]},
				{title: "Tokenization in the server", unit: "s", queries: quantiles("tokenize_seconds", "result")[1:]},
			}},
		},
	}
}

func index() dashboard {
	return dashboard{
		name: "index", title: "Index", about: "What the index holds and what it costs.",
		rows: []row{
			{"Contents", []panel{
				{title: "Memberships", unit: "short", queries: []query{
					{gauge("max", "index_memberships", "instance"), "{{instance}}"},
					{gauge("max", "index_max_memberships", "instance") + " > 0", "{{instance}} bound"},
				}},
				{title: "Keys by model", unit: "short", queries: one("topk(10, "+gauge("max", "index_entries", "model")+")", "{{model}}")},
				{title: "Replicas", unit: "short", stacked: true, queries: one(gauge("max", "index_replicas", "state"), "{{state}}")},
			}},
			{"Memory", []panel{
				{title: "Of the index", unit: "bytes", stacked: true, queries: one(gauge("sum", "index_bytes", "instance, kind"), "{{instance}} {{kind}}")},
				{title: "Of the process", unit: "bytes", queries: []query{
					{"max by (instance) (process_resident_memory_bytes{$where}) and on (instance) " + gauge("max", "server_up", "instance"), "{{instance}}"},
					{gauge("max", "server_memory_limit_bytes", "instance") + " > 0", "{{instance}} limit"},
				}},
				{title: "Tenants, partitions, hot prefixes", unit: "short", queries: []query{
					{gauge("max", "index_tenants", "instance"), "{{instance}} tenants"},
					{gauge("max", "index_partitions", "instance"), "{{instance}} partitions"},
					{gauge("max", "index_hot_prefixes", "instance"), "{{instance}} hot prefixes"},
				}},
			}},
			{"What goes", []panel{
				{title: "Evictions and expiry", unit: "cps", queries: one(rate("index_evictions_total", "algorithm, reason"), "{{algorithm}} {{reason}}")},
				{title: "Keys lost to quotas", unit: "cps", queries: one("topk(10, "+rate("tenant_evictions_total", "tenant_id")+")", "{{tenant_id}}")},
				{title: "How full quotas are", unit: "percentunit", queries: one("topk(10, "+gauge("max", "index_tenant_keys", "tenant_id")+" / ("+gauge("max", "index_tenant_quota_keys", "tenant_id")+" > 0))", "{{tenant_id}}")},
			}},
			{"Time", []panel{
				{title: "Exclusive sections, 99th percentile", unit: "s", queries: quantiles("index_critical_seconds", "op")[1:]},
				{title: "Waits for the locks, 99th percentile", unit: "s", queries: quantiles("index_wait_seconds", "side")[1:]},
				{title: "Maintenance, 99th percentile", unit: "s", queries: quantiles("index_maintenance_seconds", "task")[1:]},
				{title: "How late expiry is", unit: "s", queries: one(gauge("max", "index_oldest_expired_seconds", "instance"), "{{instance}}")},
			}},
		},
	}
}

func ingest() dashboard {
	return dashboard{
		name: "ingest", title: "Ingest and sync", about: "From the engines' events to the index.",
		rows: []row{
			{"Into the index", []panel{
				{title: "Blocks", unit: "cps", stacked: true, queries: one(rate("ingest_blocks_total", "op"), "{{op}}")},
				{title: "Dropped parts", unit: "cps", queries: one(rate("ingest_dropped_total", "source, reason")+" > 0", "{{source}} {{reason}}")},
				{title: "Lag", unit: "s", queries: quantiles("ingest_lag_seconds", "source")},
				{title: "Time to apply", unit: "s", queries: quantiles("ingest_apply_seconds", "source")},
			}},
			{"Sessions", []panel{
				{title: "By state", unit: "short", queries: one(gauge("sum", "sync_sessions", "instance, state"), "{{instance}} {{state}}")},
				{title: "Snapshots and resyncs", unit: "cps", queries: []query{
					{rate("sync_snapshots_total", "result"), "snapshot {{result}}"},
					{rate("sync_resyncs_total", "reason"), "resync {{reason}}"},
				}},
				{title: "Gaps", unit: "cps", queries: []query{
					{rate("sync_gaps_total", "instance"), "{{instance}} gaps"},
					{rate("sync_missed_frames_total", "instance"), "{{instance}} frames"},
				}},
				{title: "Oldest heartbeat, recovering", unit: "s", queries: []query{
					{gauge("max", "sync_heartbeat_age_seconds", "instance"), "{{instance}} heartbeat"},
					{gauge("max", "sync_recovering", "instance"), "{{instance}} recovering"},
				}},
			}},
			{"Publishers", []panel{
				{title: "Streams that are missing", unit: "short", queries: one("("+gauge("sum", "publisher_streams_expected", "instance, replica_id")+" - "+gauge("sum", "publisher_streams", "instance, replica_id")+") > 0", "{{instance}} {{replica_id}}")},
				{title: "Publishers by view", unit: "short", stacked: true, queries: one(gauge("sum", "publisher_view", "state"), "{{state}}")},
				{title: "Events", unit: "cps", queries: one(rate("publisher_events_total", "type"), "{{type}}")},
				{title: "Skipped events", unit: "cps", queries: one(rate("publisher_events_skipped_total", "reason")+" > 0", "{{reason}}")},
			}},
			{"Publishers to servers", []panel{
				{title: "Links", unit: "short", stacked: true, queries: one(gauge("sum", "publisher_servers", "state"), "{{state}}")},
				{title: "Frames not acknowledged", unit: "short", queries: one("topk(10, "+gauge("max", "publisher_queue_frames", "instance, replica_id")+")", "{{instance}} {{replica_id}}")},
				{title: "Time to acknowledgement", unit: "s", queries: quantiles("publisher_send_seconds", "")},
				{title: "Resets, replays, overflows", unit: "cps", queries: []query{
					{rate("publisher_resets_total", "cause"), "reset {{cause}}"},
					{rate("publisher_replays_total", "result"), "replay {{result}}"},
					{total("publisher_queue_overflows_total"), "queue overflow"},
				}},
			}},
		},
	}
}

func control() dashboard {
	age := "time() - (" + gauge("max", "policy_last_applied_timestamp_seconds", "instance, kind") + " > 0)"
	refused := func(endpoint string) query {
		return query{rate(endpoint+"_auth_total", "result", `result!="ok"`), endpoint + " {{result}}"}
	}
	return dashboard{
		name: "control", title: "Control channel", about: "Policy into the servers, and who may push it.",
		rows: []row{
			{"Policy", []panel{
				{title: "Age", unit: "s", queries: one(age, "{{instance}} {{kind}}")},
				{title: "Pushes", unit: "cps", queries: one(rate("policy_pushes_total", "kind, result")+" > 0", "{{kind}} {{result}}")},
				{title: "Revisions in force", unit: "short", about: "More than one for long: servers disagree.", queries: one("count by (revision) ("+selector("policy_revision_info", nil)+")", "{{revision}}")},
			}},
			{"Contents", []panel{
				{title: "Entries", unit: "short", queries: one(gauge("max", "policy_entries", "kind"), "{{kind}}")},
				{title: "Policies removed", unit: "short", queries: one("sum by (instance) (increase("+selector("policy_removals_total", nil)+"[$__rate_interval]))", "{{instance}}")},
				{title: "Body", unit: "bytes", queries: one(gauge("max", "policy_body_bytes", "kind"), "{{kind}}")},
			}},
			{"Callers", []panel{
				{title: "Refused", unit: "cps", queries: []query{refused("policy"), refused("snapshot"), refused("probe")}},
				{title: "Token reviews", unit: "cps", queries: one(rate("auth_reviews_total", "endpoint, result")+" > 0", "{{endpoint}} {{result}}")},
				{title: "Refused writes", unit: "cps", queries: one(rate("ingest_denied_total", "reason"), "{{reason}}")},
			}},
			{"Calls", []panel{
				{title: "Internal requests", unit: "reqps", queries: one(rate("internal_requests_total", "endpoint, code")+" > 0", "{{endpoint}} {{code}}")},
				{title: "Time of internal requests", unit: "s", queries: quantiles("internal_seconds", "endpoint")[1:]},
				{title: "gRPC errors", unit: "reqps", queries: one(rate("grpc_requests_total", "method, code", `code!="OK"`)+" > 0", "{{method}} {{code}}")},
			}},
		},
	}
}

func gateway() dashboard {
	return dashboard{
		name: "gateway", title: "Gateway", about: "What clients get, and where their requests go.",
		rows: []row{
			{"Clients", []panel{
				{title: "Requests", unit: "reqps", stacked: true, queries: one(rate("gateway_requests_total", "endpoint, code"), "{{endpoint}} {{code}}")},
				{title: "Time to first byte", unit: "s", queries: quantiles("gateway_ttft_seconds", "")},
				{title: "Time per output token", unit: "s", queries: quantiles("gateway_tpot_seconds", "")},
				{title: "Our own share", unit: "s", queries: quantiles("gateway_overhead_seconds", "")},
			}},
			{"Choices", []panel{
				{title: "Branches", unit: "reqps", stacked: true, queries: one(rate("routing_decisions_total", "branch")+" > 0", "{{branch}}")},
				{title: "Fate of hints", unit: "reqps", stacked: true, queries: one(rate(hints, "outcome"), "{{outcome}}")},
				{title: "What choices rest on", unit: "reqps", stacked: true, queries: one(rate("routing_predictions_total", "source"), "{{source}}")},
				{title: "Tokens", unit: "cps", queries: one(rate(tokens, "kind"), "{{kind}}")},
			}},
			{"Replicas", []panel{
				{title: "By state", unit: "short", stacked: true, queries: one(gauge("max", "routing_candidates", "state"), "{{state}}")},
				{title: "Requests under way", unit: "short", queries: one("topk(20, "+gauge("sum", "gateway_replica_inflight", "replica_id")+")", "{{replica_id}}")},
				{title: "Tokens waiting for prefill", unit: "short", queries: one("topk(20, "+gauge("sum", "gateway_replica_queue_tokens", "replica_id")+")", "{{replica_id}}")},
				{title: "Spread", unit: "short", about: "Largest over mean in-flight requests.", queries: one(gauge("max", "routing_inflight_spread", "instance"), "{{instance}}")},
			}},
			{"The index, as seen from here", []panel{
				{title: "Lookups", unit: "reqps", stacked: true, queries: one(rate("routing_lookups_total", "reason_code")+" > 0", "{{reason_code}}")},
				{title: "Time of lookups", unit: "s", queries: quantiles("routing_lookup_seconds", "")},
				{title: "Models by state", unit: "short", queries: one(gauge("max", "routing_index_state", "state"), "{{state}}")},
				{title: "Parity", unit: "cps", queries: one(rate("routing_parity_total", "check, result"), "{{check}} {{result}}")},
			}},
			{"Trouble", []panel{
				{title: "Upstream errors", unit: "cps", queries: one(rate("gateway_upstream_errors_total", "kind"), "{{kind}}")},
				{title: "Retries", unit: "cps", queries: one(rate("gateway_retries_total", "result"), "{{result}}")},
				{title: "Rejected", unit: "reqps", queries: one(rate("gateway_rejected_total", "reason"), "{{reason}}")},
				{title: "Trace headers omitted", unit: "reqps", queries: one(rate("trace_header_omitted_total", "reason"), "{{reason}}")},
				{title: "Tokenizer", unit: "reqps", stacked: true, queries: one(rate("gateway_tokenize_total", "source, result")+" > 0", "{{source}} {{result}}")},
			}},
		},
	}
}
