// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"fmt"
	"strings"
	"time"
)

// labelled writes counters of one family that differ in one label: pairs of
// its value and the growth per 30 seconds.
func labelled(family, label string, pairs ...string) string {
	var text strings.Builder
	for i := 0; i < len(pairs); i += 2 {
		fmt.Fprintf(&text, "inferencecache_%s{face=\"http\",%s=%q} 0+%sx300\n", family, label, pairs[i], pairs[i+1])
	}
	return text.String()
}

func gatewayScenarios() map[string]map[string]scenario {
	lookups := func(pairs ...string) string { return labelled("routing_lookups_total", "reason_code", pairs...) }
	hints := func(pairs ...string) string { return labelled("routing_hints_total", "outcome", pairs...) }
	tokens := func(prompt, overlap, cached, unknown string) scenario {
		return scenario{from: 30 * time.Minute, series: labelled("routing_tokens_total", "kind",
			"prompt", prompt, "chosen_overlap", overlap, "engine_cached", cached, "engine_unknown", unknown)}
	}
	dishonest := tokens("20000", "10000", "4900", "0")
	dishonest.fires = []string{"30m warning face=http"}
	halfKnown := tokens("20000", "10000", "2400", "10000")
	halfKnown.fires = dishonest.fires
	spread := func(value, ready, inflight string) string {
		return `inferencecache_routing_inflight_spread{face="http"} ` + value + `x160
		        inferencecache_routing_candidates{face="http",state="ready"} ` + ready + `x160
		        inferencecache_gateway_replica_inflight{replica_id="a"} ` + inflight + `x160
		        inferencecache_gateway_replica_inflight{replica_id="b"} 0x160`
	}
	tokenized := func(source string, pairs ...string) string {
		text := labelled("gateway_tokenize_total", "result", pairs...)
		return strings.ReplaceAll(text, `face="http"`, `source="`+source+`"`)
	}
	headers := func(omitted, sent string) string {
		return `inferencecache_trace_header_omitted_total{reason="size"} 0+` + omitted + `x160
		        inferencecache_trace_bytes_count{form="line"} 0+9000x160
		        inferencecache_trace_bytes_count{form="header"} 0+` + sent + `x160`
	}
	return map[string]map[string]scenario{
		"TraceHeaderOmitted": {
			"2 in 100":          {series: headers("2", "98"), fires: []string{"15m info"}},
			"1 in 100":          {series: headers("1", "99")},
			"no headers wanted": {series: headers("0", "0")},
		},
		"GatewayLookupFailing": {
			"6 % without an answer": {
				series: lookups("CLIENT_TIMEOUT", "2", "UNAVAILABLE", "2", "BREAKER_OPEN", "2", "PREFIX_MATCH", "94"),
				fires:  []string{"2m warning face=http"},
			},
			"5 % without an answer":   {series: lookups("CLIENT_TIMEOUT", "5", "PREFIX_MATCH", "95")},
			"one lookup a second":     {series: lookups("UNAVAILABLE", "30", "PREFIX_MATCH", "0")},
			"not asked is no failure": {series: lookups("SKIPPED", "50", "CLIENT_TIMEOUT", "5", "PREFIX_MATCH", "95")},
			"not asked hides nothing": {
				series: lookups("SKIPPED", "500", "CLIENT_TIMEOUT", "6", "PREFIX_MATCH", "94"),
				fires:  []string{"2m warning face=http"},
			},
		},
		"IndexBlind": {
			"blind for a model": {
				series: `inferencecache_routing_index_state{face="http",state="blind"} 1x160
				         inferencecache_routing_index_state{face="http",state="ok"} 3x160`,
				fires: []string{"5m warning face=http state=blind"},
			},
			"its breaker opens and closes": {
				series: `inferencecache_routing_index_state{face="http",state="down"} ` + strings.Repeat("1 0 0 ", 50),
				fires:  []string{"5m warning face=http state=down"},
			},
			"down for a minute": {
				series: `inferencecache_routing_index_state{face="http",state="down"} 0x30 1x2 0x120`,
			},
			"ok": {series: `inferencecache_routing_index_state{face="http",state="ok"} 3x160`},
		},
		"HintsNotFollowed": {
			"49 % followed": {
				series: hints("followed", "49", "overloaded", "51", "unplaceable", "0"),
				fires:  []string{"30m info face=http"},
			},
			"half followed": {series: hints("followed", "50", "overloaded", "49", "unplaceable", "1")},
			"2 % unplaceable": {
				series: hints("followed", "98", "unplaceable", "2"),
				fires:  []string{"30m warning face=http"},
			},
			"no hints": {series: hints("followed", "0", "unplaceable", "0")},
		},
		"PredictionDishonest": {
			"49 % of what was promised":                dishonest,
			"half of what was promised":                tokens("20000", "10000", "5000", "0"),
			"48 % of what can be checked":              halfKnown,
			"half of what can be checked":              tokens("20000", "10000", "2500", "10000"),
			"too little to tell":                       tokens("20000", "4990", "0", "0"),
			"engines that do not tell what they reuse": tokens("20000", "10000", "0", "20000"),
		},
		"ParityBroken": {
			"2 % of the counts": {
				series: parity("count", "ok", "98") + parity("count", "mismatch", "2") + parity("count", "skipped", "900"),
				fires:  []string{"5m warning check=count face=http"},
			},
			"1 % of the counts": {series: parity("count", "ok", "99") + parity("count", "mismatch", "1")},
			"a canary": {
				series: `inferencecache_routing_parity_total{face="http",check="canary",result="mismatch"} 0x29 1x160
				         inferencecache_routing_parity_total{face="http",check="canary",result="ok"} 0+1000x160`,
				fires: []string{"5m warning check=canary face=http"},
			},
		},
		"RoutingHotSpot": {
			"3.1 times the mean":   {series: spread("3.1", "4", "4"), fires: []string{"10m warning face=http"}},
			"three times the mean": {series: spread("3", "4", "4")},
			"three replicas":       {series: spread("3.1", "3", "4")},
			"hardly any requests":  {series: spread("4", "4", "3")},
		},
		"TokenizerDown": {
			"21 % fail": {
				series: tokenized("engine", "timeout", "11", "failed", "10", "ok", "79"), fires: []string{"5m warning"},
			},
			"20 % fail": {series: tokenized("engine", "timeout", "20", "ok", "80")},
			"the cache hides nothing": {
				series: tokenized("engine", "timeout", "21", "ok", "79") + tokenized("cache", "ok", "900"), fires: []string{"5m warning"},
			},
			"the client's fault": {series: tokenized("engine", "rejected", "50", "too_large", "50")},
			"the server's tokenizer": {
				series: `inferencecache_tokenize_total{result="error"} 0+21x160
				         inferencecache_tokenize_total{result="ok"} 0+79x160`,
				fires: []string{"5m warning"},
			},
			"a server without a tokenizer": {series: `inferencecache_tokenize_total{result="unavailable"} 0+21x160`},
			"its breaker opens and closes": {
				series: `inferencecache_gateway_breaker_state{target="tokenizer",state="open"} ` + strings.Repeat("1 0 0 ", 50),
				fires:  []string{"5m warning"},
			},
			"its breaker opened once": {
				series: `inferencecache_gateway_breaker_state{target="tokenizer",state="open"} 0x30 1x2 0x120`,
			},
		},
	}
}

func parity(check, result, growth string) string {
	return fmt.Sprintf("inferencecache_routing_parity_total{face=\"http\",check=%q,result=%q} 0+%sx160\n", check, result, growth)
}
