// SPDX-License-Identifier: Apache-2.0

package lookup_test

import (
	"context"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/lookup"
	"github.com/inferencecache/inference-cache/internal/policy"
)

// TestCredit asks for the older of two entries, then stores a third in an
// index with room for two. A credited entry survives the newer one.
func TestCredit(t *testing.T) {
	lfu := policy.Declared{Eviction: "lfu"}
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	for name, tc := range map[string]struct {
		ctx         context.Context
		policy      policy.Declared
		request     lookup.Request
		wantSurvive bool
	}{
		"a delivered chain match":        {context.Background(), lfu, chain("a", 64), true},
		"a delivered exact match":        {context.Background(), lfu, exact('a', 64), true},
		"a tenant with LRU":              {context.Background(), policy.Declared{Eviction: "lru"}, chain("a", 64), false},
		"a match below the token floor":  {context.Background(), policy.Declared{Eviction: "lfu", MinimumMatchedTokens: 65}, chain("a", 64), false},
		"a match below the score floor":  {context.Background(), policy.Declared{Eviction: "lfu", RoutingFloorScore: ptr(float32(65))}, chain("a", 64), false},
		"a match of a prompt too short":  {context.Background(), policy.Declared{Eviction: "lfu", MinimumPrefixTokens: 65}, chain("a", 64), false},
		"a timeout":                      {cancelled, lfu, chain("a", 64), false},
		"an affinity hint for something": {context.Background(), lfu, chain("z", 64), false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleetOver(index.Config{MaxMemberships: 2}).policy(tc.policy).
				hold("r", holding{Chain: "a", Block: 64, Age: 10 * time.Minute}).
				hold("r", holding{Chain: "b", Block: 64, Age: 5 * time.Minute})
			f.askContext(tc.ctx, tc.request)
			f.hold("r", holding{Chain: "c", Block: 64})
			f.policy(policy.Declared{})
			survived := len(f.ask(chain("a", 64)).Ranked) > 0
			if survived != tc.wantSurvive {
				t.Errorf("entry survived: %v, want %v", survived, tc.wantSurvive)
			}
		})
	}
}
