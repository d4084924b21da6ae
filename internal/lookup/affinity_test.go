// SPDX-License-Identifier: Apache-2.0

package lookup_test

import (
	"encoding/hex"
	"fmt"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/lookup"
	"github.com/inferencecache/inference-cache/internal/policy"
)

func unhex(t *testing.T, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// goldenChain is the chain of tokens 1 to 32, goldenExact its last key.
func goldenChain(t *testing.T) lookup.Request {
	request := in(testScope)
	request.BlockHashes = [][]byte{unhex(t, "ea06fc71a5ee6e88"), unhex(t, "ad01835a37dd294c")}
	request.BlockTokenCounts = []int32{16, 16}
	return request
}

func goldenExact(t *testing.T) lookup.Request {
	request := in(testScope)
	request.PrefixHash, request.PrefixTokens = unhex(t, "ad01835a37dd294c"), 32
	return request
}

// replicas makes a fleet of n replicas r0, r1, ... that hold something else.
func replicas(n int) *fleet {
	f := newFleet()
	for i := range n {
		f.hold(fmt.Sprintf("r%d", i), holding{Chain: "z", Block: 64})
	}
	return f
}

func TestAffinityGolden(t *testing.T) {
	contract, rendezvous := policy.Extensions{}, policy.Extensions{Hash: policy.HashRendezvous}
	for name, tc := range map[string]struct {
		extensions policy.Extensions
		policy     policy.Declared
		request    lookup.Request
		want       map[int]string // by number of replicas
	}{
		"chain":             {contract, policy.Declared{}, goldenChain(t), map[int]string{1: "r0", 2: "r1", 3: "r0", 5: "r3", 7: "r0"}},
		"exact":             {contract, policy.Declared{}, goldenExact(t), map[int]string{1: "r0", 2: "r1", 3: "r2", 5: "r1", 7: "r3"}},
		"chain, rendezvous": {rendezvous, policy.Declared{}, goldenChain(t), map[int]string{2: "r1", 3: "r2", 5: "r4", 7: "r4"}},
		"exact, rendezvous": {rendezvous, policy.Declared{}, goldenExact(t), map[int]string{2: "r0", 3: "r0", 5: "r4", 7: "r4"}},
		"token ids seed like their chain": {
			contract, policy.Declared{}, with(in(testScope), func(r *lookup.Request) { r.TokenIDs = oneTo(35) }),
			map[int]string{2: "r1", 3: "r0", 5: "r3", 7: "r0"},
		},
		"token ids without chain matching seed like their last key": {
			contract, policy.Declared{EnableChainMatching: ptr(false)},
			with(in(testScope), func(r *lookup.Request) { r.TokenIDs = oneTo(35) }),
			map[int]string{2: "r1", 3: "r2", 5: "r1", 7: "r3"},
		},
		"a longer chain seeds by its head alone": {
			policy.Extensions{SeedBlocks: 2}, policy.Declared{},
			with(goldenChain(t), func(r *lookup.Request) {
				r.BlockHashes = append(r.BlockHashes, []byte("more"))
				r.BlockTokenCounts = append(r.BlockTokenCounts, 16)
			}),
			map[int]string{2: "r1", 3: "r0", 5: "r3", 7: "r0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for n, want := range tc.want {
				got := replicas(n).policy(tc.policy).extend(tc.extensions).ask(tc.request)
				if got.Reason != lookup.AffinityHint || names(got.Scores) != want {
					t.Errorf("%d replicas: %s %q, want %q", n, got.Reason, names(got.Scores), want)
				}
			}
		})
	}
}

func oneTo(n uint32) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(i) + 1
	}
	return tokens
}

func TestAffinityAnswerHoldsOnlyTheReplica(t *testing.T) {
	got := replicas(3).ask(goldenChain(t)).Scores
	if len(got) != 1 || got[0] != (lookup.Score{Replica: "r0"}) {
		t.Errorf("scores %+v, want r0 and nothing else", got)
	}
}

func TestAffinityConditions(t *testing.T) {
	base := func() *fleet { return replicas(3) }
	for name, tc := range map[string]struct {
		fleet    *fleet
		request  lookup.Request
		want     lookup.Reason
		wantGate lookup.Gates
	}{
		"by default":               {base(), goldenChain(t), lookup.AffinityHint, 0},
		"switched off":             {base().policy(policy.Declared{AffinityRouting: ptr(false)}), goldenChain(t), lookup.NoHint, 0},
		"no seed":                  {base(), in(testScope), lookup.NoHint, 0},
		"no model":                 {base(), with(goldenChain(t), func(r *lookup.Request) { r.Model = "" }), lookup.NoHint, 0},
		"an adapter nobody has":    {base(), with(goldenChain(t), func(r *lookup.Request) { r.Adapter = "l" }), lookup.NoHint, 1 << lookup.GateAdapterUnseen},
		"an adapter somebody has":  {base().hold("r9", holding{Adapter: "l", Chain: "y", Block: 1}), with(goldenChain(t), func(r *lookup.Request) { r.Adapter = "l" }), lookup.AffinityHint, 0},
		"an empty index":           {newFleet(), goldenChain(t), lookup.NoHint, 0},
		"chain fields of no use":   {base().policy(policy.Declared{EnableChainMatching: ptr(false)}), with(goldenExact(t), func(r *lookup.Request) { r.BlockHashes = [][]byte{{1}} }), lookup.NoHint, 0},
		"chain fields left unused": {base().policy(policy.Declared{EnableChainMatching: ptr(false)}), with(goldenExact(t), func(r *lookup.Request) { r.BlockHashes, r.BlockTokenCounts = [][]byte{{1}}, []int32{1} }), lookup.AffinityHint, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := tc.fleet.ask(tc.request)
			if got.Reason != tc.want || got.Gates != tc.wantGate {
				t.Errorf("%s gates %b, want %s gates %b", got.Reason, got.Gates, tc.want, tc.wantGate)
			}
		})
	}
}

func TestAffinityPassesLoadedReplicasOver(t *testing.T) {
	for name, tc := range map[string]struct {
		hash   policy.AffinityHash
		loaded []string
		want   string
	}{
		"nobody loaded":                     {policy.HashModulo, nil, "r0"},
		"the pick loaded":                   {policy.HashModulo, []string{"r0"}, "r1"},
		"two loaded":                        {policy.HashModulo, []string{"r0", "r1"}, "r2"},
		"the ring wraps around":             {policy.HashModulo, []string{"r0", "r1", "r2"}, ""},
		"rendezvous, nobody loaded":         {policy.HashRendezvous, nil, "r2"},
		"rendezvous, the heaviest loaded":   {policy.HashRendezvous, []string{"r2"}, "r1"},
		"rendezvous, all of them loaded":    {policy.HashRendezvous, []string{"r0", "r1", "r2"}, ""},
		"rendezvous, the heaviest two gone": {policy.HashRendezvous, []string{"r2", "r1"}, "r0"},
	} {
		t.Run(name, func(t *testing.T) {
			f := replicas(3).extend(policy.Extensions{Hash: tc.hash, MaxPressure: .9})
			for _, replica := range tc.loaded {
				f.stats(replica, 0, .9, 0)
			}
			got := f.ask(goldenChain(t))
			if names(got.Scores) != tc.want {
				t.Errorf("scores %q, want %q", names(got.Scores), tc.want)
			}
			if refused := got.Gates.Has(lookup.GateAllOverPressure); refused != (tc.want == "") {
				t.Errorf("all-over-pressure gate %v", refused)
			}
		})
	}

	stale := replicas(1).policy(policy.Declared{EvictionTTL: time.Hour}).
		extend(policy.Extensions{MaxPressure: .9}).stats("r0", 0, 1, time.Hour)
	if got := stale.ask(goldenChain(t)); got.Reason != lookup.AffinityHint {
		t.Errorf("old pressure: %s, want %s", got.Reason, lookup.AffinityHint)
	}
}

func TestEqualHoldersByLoad(t *testing.T) {
	equal := func() *fleet {
		return newFleet().
			hold("a", holding{Chain: "pq", Block: 64}).stats("a", 0, .5, 0).
			hold("b", holding{Chain: "pq", Block: 64}).stats("b", 0, .25, 0).
			hold("c", holding{Chain: "p", Block: 64})
	}
	floor := func(score float32) policy.Declared { return policy.Declared{RoutingFloorScore: &score} }
	for name, tc := range map[string]struct {
		policy  policy.Declared
		request lookup.Request
		want    string
		reason  lookup.Reason
	}{
		"a match that singles out is not touched": {policy.Declared{}, chain("pq", 64), "b 32/128, a 21.333334/128, c 0/64", lookup.PrefixMatch},
		"everyone holds the block":                {policy.Declared{}, chain("p", 64), "c 64/64, b 48/64, a 32/64", lookup.PrefixMatch},
		"only the longest count":                  {floor(97), chain("pq", 64), "", lookup.AffinityHint},
		"a floor the longest reach":               {floor(96), chain("pq", 64), "b 96/128, a 64/128", lookup.PrefixMatch},
	} {
		t.Run(name, func(t *testing.T) {
			got := equal().policy(tc.policy).extend(policy.Extensions{EqualHolders: policy.EqualHoldersLoad}).ask(tc.request)
			if got.Reason != tc.reason {
				t.Errorf("reason %s, want %s", got.Reason, tc.reason)
			}
			if tc.want != "" && brief(got.Scores) != tc.want {
				t.Errorf("scores %s, want %s", brief(got.Scores), tc.want)
			}
		})
	}
}
