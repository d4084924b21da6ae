// SPDX-License-Identifier: Apache-2.0

package index_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/inferencecache/inference-cache/internal/index"
)

// TestRunsFollowHoldersThatComeGoAndChange drives chains whose holders join,
// leave, change their tier and their time from block to block, some of them
// expired, and compares with a count by hand.
func TestRunsFollowHoldersThatComeGoAndChange(t *testing.T) {
	const ttl, now = 1_000, 10_000_000
	scope := index.Scope{Tenant: "t", Model: "m", Scheme: "s"}
	type hold struct {
		seen int64
		tier index.Tier
	}
	rapid.Check(t, func(t *rapid.T) {
		x := index.New(index.Config{DefaultRules: index.TenantRules{TTLMillis: 1 << 40}, Seed: 1})
		replicas := rapid.IntRange(1, 24).Draw(t, "replicas")
		blocks := rapid.IntRange(1, 12).Draw(t, "blocks")
		held := make([][]*hold, replicas) // nil = not held
		for r := range held {
			held[r] = make([]*hold, blocks)
			var last *hold
			for i := range held[r] {
				switch rapid.SampledFrom([]string{"same", "same", "same", "same", "time", "tier", "old", "lacks"}).Draw(t, "block") {
				case "lacks":
					last = nil
				case "time":
					last = &hold{seen: now - int64(rapid.IntRange(0, 40).Draw(t, "age")), tier: index.TierT1}
				case "tier":
					last = &hold{seen: now - 7, tier: rapid.SampledFrom([]index.Tier{index.TierT1, index.TierT2, index.TierT3}).Draw(t, "tier")}
				case "old":
					last = &hold{seen: now - ttl, tier: index.TierT1}
				default:
					if i == 0 {
						last = &hold{seen: now - 20, tier: index.TierT1}
					}
				}
				held[r][i] = last
			}
		}
		keys := make([]uint64, blocks)
		for i := range keys {
			keys[i] = uint64(1000 + i)
		}
		var want []index.Match
		for r := range held {
			name := fmt.Sprintf("r%02d", r)
			run := index.Match{Replica: name, Slot: uint32(r), LastSeenMillis: now}
			going := true
			for i, h := range held[r] {
				at, tier := int64(now-ttl), index.TierT1
				if h != nil {
					at, tier = h.seen, h.tier
					x.Apply(&index.Batch{Scope: scope, Replica: name, AtMillis: at, NowMillis: now, Ops: []index.Op{{
						Kind: index.OpStore, Tier: tier, Keys: index.Keys{Short: keys[i : i+1]},
					}}})
				} else if i == 0 { // makes the replica a member, so that slots are replicas
					x.Apply(&index.Batch{Scope: scope, Replica: name, AtMillis: now, NowMillis: now, Ops: []index.Op{{
						Kind: index.OpStore, Tier: tier, Keys: index.Keys{Short: []uint64{1}},
					}}})
				}
				if going = going && h != nil && now-at < ttl; going {
					run.Blocks++
					run.Tokens += 3
					run.LastSeenMillis = min(run.LastSeenMillis, at)
					run.Tier = max(run.Tier, tier)
				}
			}
			if run.Blocks > 0 {
				want = append(want, run)
			}
		}
		v := x.Acquire(scope, "", now, ttl)
		got := v.MatchChain(nil, index.Keys{Short: keys}, index.Tokens{Step: 3})
		v.Release()
		if diff := cmp.Diff(want, slices.Clip(got)); diff != "" {
			t.Fatalf("matches differ (-want +got):\n%s", diff)
		}
	})
}
