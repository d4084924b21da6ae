// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/inferencecache/inference-cache/internal/policy"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// script runs the commands of a behaviour script against a server.
type script struct{ *harness }

// command is one line: a verb, words and key=value settings.
type command struct {
	harness  *harness
	verb     string
	words    []string
	settings map[string]string
}

func (s *script) run(line string) string {
	s.t.Helper()
	fields := strings.Fields(line)
	c := command{harness: s.harness, verb: fields[0], settings: make(map[string]string)}
	for _, field := range fields[1:] {
		if key, value, ok := strings.Cut(field, "="); ok {
			c.settings[key] = value
		} else {
			c.words = append(c.words, field)
		}
	}
	switch c.verb {
	case "report", "exact", "stats":
		s.report(c.update())
	case "evict", "clear":
		s.publish(c.event())
	case "policy":
		s.server.SetPolicies([]policy.Declared{c.declared()}, nil)
	case "advance":
		s.clock.Advance(c.duration(c.words[0]))
	case "sweep":
		s.server.Sweep()
	case "lookup":
		return render(s.lookup(c.request()))
	default:
		s.t.Fatalf("script: unknown command %q", line)
	}
	return ""
}

func (c command) text(key, otherwise string) string {
	if value, ok := c.settings[key]; ok {
		return value
	}
	return otherwise
}

func (c command) number(key string, otherwise float64) float64 {
	value, ok := c.settings[key]
	if !ok {
		return otherwise
	}
	n, err := strconv.ParseFloat(value, 64)
	if err != nil {
		c.harness.t.Fatalf("script: %s=%q is no number", key, value)
	}
	return n
}

func (c command) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		c.harness.t.Fatalf("script: %q is no duration", text)
	}
	return d
}

func (c command) update() *pb.CacheStateUpdate {
	update := &pb.CacheStateUpdate{
		ReplicaId: c.words[0], ModelId: c.text("model", "m"), TenantId: c.text("tenant", "team"),
		HashScheme: c.text("scheme", "vllm"), AdapterId: c.text("adapter", ""),
		TimestampUs: c.harness.clock.Now().Add(-c.duration(c.text("age", "0s"))).UnixMicro(),
	}
	tier := pb.CacheTier(c.number("tier", 0))
	switch c.verb {
	case "report":
		entry := c.harness.update("", c.words[1], int32(c.number("block", 64))).GetPrefixes()[0]
		entry.Tier = tier
		update.Prefixes = []*pb.PrefixEntry{entry}
	case "exact":
		update.Prefixes = []*pb.PrefixEntry{{PrefixHash: hash(c.words[1][0]), TokenCount: int32(c.number("tokens", 0)), Tier: tier}}
	case "stats":
		update.Stats = &pb.ReplicaStats{HitRate: float32(c.number("hit", 0)), Pressure: float32(c.number("pressure", 0))}
	}
	return update
}

func (c command) event() *pb.CacheEvent {
	event := &pb.CacheEvent{
		Type: pb.CacheEvent_ALL_CLEARED, ReplicaId: c.words[0],
		ModelId: c.text("model", "m"), TenantId: c.text("tenant", "team"), AdapterId: c.text("adapter", ""),
	}
	if c.verb == "evict" {
		event.Type, event.PrefixHash = pb.CacheEvent_PREFIX_EVICTED, hash(c.words[1][0])
	}
	return event
}

func (c command) declared() policy.Declared {
	return policy.Declared{
		Namespace:            "team",
		MinimumPrefixTokens:  int32(c.number("prefix", 0)),
		MinimumMatchedTokens: int32(c.number("matched", 64)),
		RoutingFloorScore:    ptr(float32(c.number("floor", .1))),
		EnableTenantHot:      ptr(c.text("hot", "true") == "true"),
		AffinityRouting:      ptr(c.text("affinity", "true") == "true"),
		RequireChain:         ptr(c.text("chain", "") == "required"),
		EnableChainMatching:  ptr(c.text("chain", "") != "off"),
	}
}

func (c command) request() *pb.LookupRouteRequest {
	request := chain(c.text("chain", ""), int32(c.number("block", 64)))
	request.TenantId, request.ModelId = c.text("tenant", "team"), c.text("model", "m")
	request.HashScheme, request.AdapterId = c.text("scheme", "vllm"), c.text("adapter", "")
	if exact := c.text("exact", ""); exact != "" {
		request.PrefixHash, request.PrefixTokenCount = hash(exact[0]), int32(c.number("count", 100))
	}
	if n := int(c.number("tokens", 0)); n > 0 {
		request.TokenIds = sequence(1, n)
	}
	if ttft := int32(c.number("ttft", 0)); ttft > 0 {
		request.Slo = &pb.SLO{TtftMs: ttft}
	}
	return request
}

func render(response *pb.LookupRouteResponse) string {
	var out strings.Builder
	fmt.Fprintln(&out, response.GetReasonCode())
	for _, s := range response.GetReplicaScores() {
		fmt.Fprintf(&out, "  %s score=%s tokens=%d prob=%s tier=%d\n", s.GetReplicaId(),
			shortest(s.GetScore()), s.GetMatchedTokens(), shortest(s.GetEstimatedCacheHitProb()), s.GetTier())
	}
	return out.String()
}
