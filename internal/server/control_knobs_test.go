// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/server"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// Questions to a tenant of populate, and what they meet without any policy.
var questions = map[string]func() *pb.LookupRouteRequest{
	"long":  func() *pb.LookupRouteRequest { return chain("abcd", 64) }, // 256 tokens, held by one of two
	"short": func() *pb.LookupRouteRequest { return chain("p", 32) },    // 32 tokens, held by one of two
	"all":   func() *pb.LookupRouteRequest { return chain("s", 64) },    // held by both
	"novel": func() *pb.LookupRouteRequest { return chain("yz", 64) },
	"exact": func() *pb.LookupRouteRequest { return exact('q') }, // novel, one replica is hot
	"text": func() *pb.LookupRouteRequest {
		return &pb.LookupRouteRequest{ModelId: "m", HashScheme: "vllm", PromptText: "takes 50 ms"}
	},
}

func (h *harness) populate(tenant string) {
	w, v := h.update("w", "abcd", 64), h.update("v", "x", 64)
	w.Prefixes = append(w.Prefixes, h.update("w", "p", 32).GetPrefixes()...)
	for _, update := range []*pb.CacheStateUpdate{w, v} {
		update.TenantId = tenant
		update.Prefixes = append(update.Prefixes, h.update("", "s", 64).GetPrefixes()...)
	}
	w.Stats = &pb.ReplicaStats{HitRate: .9}
	h.report(w, v)
}

// TestPushedKnobsReachLookups pushes one body of each version with a namespace
// for each case, and asks each namespace.
func TestPushedKnobsReachLookups(t *testing.T) {
	cases := map[string]struct {
		fields string // "-" means no policy
		ask    string
		want   string
		wantV3 string // if it differs
	}{
		"no policy, long":                {"-", "long", "PREFIX_MATCH", ""},
		"no policy, short":               {"-", "short", "AFFINITY_HINT", ""},
		"no policy, all":                 {"-", "all", "AFFINITY_HINT", ""},
		"no policy, exact":               {"-", "exact", "TENANT_HOT", ""},
		"absent, long":                   {"", "long", "PREFIX_MATCH", ""},
		"absent, short":                  {"", "short", "PREFIX_MATCH", "AFFINITY_HINT"},
		"absent, all":                    {"", "all", "AFFINITY_HINT", ""},
		"absent, novel":                  {"", "novel", "AFFINITY_HINT", ""},
		"absent, exact":                  {"", "exact", "TENANT_HOT", ""},
		"absent, text":                   {"", "text", "AFFINITY_HINT", ""},
		"prefix gate above":              {`"minimumPrefixTokens":257`, "long", "AFFINITY_HINT", ""},
		"prefix gate met":                {`"minimumPrefixTokens":256`, "long", "PREFIX_MATCH", ""},
		"prefix gate 0":                  {`"minimumPrefixTokens":0`, "long", "PREFIX_MATCH", ""},
		"prefix gate negative":           {`"minimumPrefixTokens":-1`, "long", "PREFIX_MATCH", ""},
		"prefix gate, affinity off":      {`"minimumPrefixTokens":257,"affinityRouting":false`, "long", "NO_HINT", ""},
		"matched floor above":            {`"minimumMatchedTokens":257`, "long", "AFFINITY_HINT", ""},
		"matched floor met":              {`"minimumMatchedTokens":32`, "short", "PREFIX_MATCH", ""},
		"matched floor 0":                {`"minimumMatchedTokens":0`, "short", "PREFIX_MATCH", "AFFINITY_HINT"},
		"matched floor negative":         {`"minimumMatchedTokens":-1`, "short", "PREFIX_MATCH", ""},
		"score floor above":              {`"routingFloorScore":200`, "long", "AFFINITY_HINT", ""},
		"score floor met":                {`"routingFloorScore":120`, "long", "PREFIX_MATCH", ""},
		"score floor 0":                  {`"routingFloorScore":0`, "all", "PREFIX_MATCH", ""},
		"score floor negative":           {`"routingFloorScore":-1`, "all", "PREFIX_MATCH", ""},
		"score floor null":               {`"routingFloorScore":null`, "all", "AFFINITY_HINT", ""},
		"timeout passed":                 {`"lookupTimeoutMs":49`, "text", "TIMEOUT", ""},
		"timeout kept":                   {`"lookupTimeoutMs":51`, "text", "AFFINITY_HINT", ""},
		"timeout 0":                      {`"lookupTimeoutMs":0`, "text", "AFFINITY_HINT", ""},
		"timeout negative":               {`"lookupTimeoutMs":-1`, "text", "AFFINITY_HINT", ""},
		"chains off":                     {`"strategy":{"enableChainMatching":false}`, "long", "NO_HINT", ""},
		"chains on":                      {`"strategy":{"enableChainMatching":true}`, "long", "PREFIX_MATCH", ""},
		"chains required":                {`"strategy":{"requireChain":true}`, "exact", "POLICY_REQUIRES_CHAIN", ""},
		"chains required, and sent":      {`"strategy":{"requireChain":true}`, "long", "PREFIX_MATCH", ""},
		"chains not required":            {`"strategy":{"requireChain":false}`, "exact", "TENANT_HOT", ""},
		"chains off, yet required":       {`"strategy":{"enableChainMatching":false,"requireChain":true}`, "long", "NO_HINT", ""},
		"hot off":                        {`"strategy":{"enableTenantHot":false}`, "exact", "NO_HINT", ""},
		"hot on":                         {`"strategy":{"enableTenantHot":true}`, "exact", "TENANT_HOT", ""},
		"strategy empty":                 {`"strategy":{}`, "exact", "TENANT_HOT", ""},
		"affinity off":                   {`"affinityRouting":false`, "novel", "NO_HINT", ""},
		"affinity on":                    {`"affinityRouting":true`, "novel", "AFFINITY_HINT", ""},
		"affinity null":                  {`"affinityRouting":null`, "novel", "AFFINITY_HINT", ""},
		"affinity off, below score":      {`"affinityRouting":false`, "all", "NO_HINT", ""},
		"eviction changes nothing":       {`"eviction":"lfu"`, "long", "PREFIX_MATCH", ""},
		"eviction nobody knows is taken": {`"eviction":"arc"`, "long", "PREFIX_MATCH", ""},
	}
	for version := 3; version <= 7; version++ {
		t.Run(fmt.Sprintf("v%d", version), func(t *testing.T) {
			var h *harness
			h = startControlled(t, func(o *server.Options) {
				o.Tokenizer = tokenizerFunc(func(context.Context) ([]uint32, error) {
					h.clock.Advance(50 * time.Millisecond)
					return sequence(1, 40), nil
				})
			})
			var policies []string
			for name, tc := range cases {
				h.populate(name)
				if tc.fields != "-" {
					policies = append(policies, declare(name, tc.fields))
				}
			}
			h.push(fmt.Sprintf(`{"version":%d,"policies":[%s]}`, version, strings.Join(policies, ",")))
			for name, tc := range cases {
				want := tc.want
				if version == 3 && tc.wantV3 != "" {
					want = tc.wantV3
				}
				h.wantReason(name, of(name, questions[tc.ask]()), want)
			}
		})
	}
}

// declare renders a policy of a namespace.
func declare(namespace, fields string) string {
	if fields != "" {
		fields = "," + fields
	}
	return fmt.Sprintf(`{"namespace":%q%s}`, namespace, fields)
}

// TestPushedLifetimesAndQuotas covers the knobs that act on the index.
func TestPushedLifetimesAndQuotas(t *testing.T) {
	for version := 3; version <= 7; version++ {
		t.Run(fmt.Sprintf("v%d", version), func(t *testing.T) {
			h := startControlled(t)
			h.push(fmt.Sprintf(`{"version":%d,"policies":[%s],"tenants":[`+
				`{"tenantID":"two","maxIndexEntries":2,"isolationMode":"Fairness"},{"tenantID":"none","maxIndexEntries":0}]}`,
				version, strings.Join([]string{
					declare("minute", `"evictionTTL":60000000000`),
					declare("minute-lfu", `"evictionTTL":60000000000,"eviction":"LFU"`),
					declare("absent", ``),
					declare("negative", `"evictionTTL":-60000000000`),
				}, ",")))
			for _, tenant := range []string{"minute", "minute-lfu", "absent", "negative", "none", "two", "free"} {
				update := h.update("w", "abcd", 64)
				update.TenantId = tenant
				h.report(update)
			}
			h.wantReason("a quota of none", of("none", chain("abcd", 64)), "UNKNOWN_TENANT")
			h.wantReason("no quota", of("free", exact('a')), "PREFIX_MATCH")
			h.wantMetric(`inferencecache_index_tenant_keys{tenant_id="two"}`, 2)
			h.wantMetric(`inferencecache_tenant_evictions_total{reason="over_entries",tenant_id="two"}`, 2)
			h.wantMetric(`inferencecache_tenant_evictions_total{reason="over_entries",tenant_id="none"}`, 4)

			h.clock.Advance(61 * time.Second)
			for tenant, want := range map[string]bool{"minute": false, "minute-lfu": false, "absent": true, "negative": true, "free": true} {
				if got := h.lookup(of(tenant, chain("abcd", 64))).GetReasonCode() == "PREFIX_MATCH"; got != want {
					t.Errorf("%s after a minute: a match is %v, want %v", tenant, got, want)
				}
			}
			h.server.Sweep()
			h.wantMetric(`inferencecache_index_evictions_total{algorithm="lru",reason="ttl"}`, 4)
			h.wantMetric(`inferencecache_index_evictions_total{algorithm="lfu",reason="ttl"}`, 4)
		})
	}
}
