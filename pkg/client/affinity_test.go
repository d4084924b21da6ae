// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/inferencecache/inference-cache/pkg/client"
)

func replicas(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("r%d", i))
	}
	return names
}

func TestAffinityGolden(t *testing.T) {
	chain := client.ChainFromTokens(tokensUpTo(32), 16, "")
	for name, tc := range map[string]struct {
		pick func([]string) (string, bool)
		want map[int]string // by number of replicas
	}{
		"chain": {
			func(r []string) (string, bool) { return client.AffinityPick(chain, r) },
			map[int]string{1: "r0", 2: "r1", 3: "r0", 5: "r3", 7: "r0"},
		},
		"exact": {
			func(r []string) (string, bool) { return client.AffinityPickExact(chain.Hashes[1], r) },
			map[int]string{1: "r0", 2: "r1", 3: "r2", 5: "r1", 7: "r3"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for n, want := range tc.want {
				if got, ok := tc.pick(replicas(n)); !ok || got != want {
					t.Errorf("of %d replicas: %s, want %s", n, got, want)
				}
			}
			if got, ok := tc.pick(nil); ok {
				t.Errorf("of no replica: %q", got)
			}
		})
	}
	if got, ok := client.AffinityPick(client.Chain{}, replicas(3)); ok {
		t.Errorf("an empty chain picks %q", got)
	}
	if got, ok := client.AffinityPickExact(nil, replicas(3)); ok {
		t.Errorf("an empty hash picks %q", got)
	}
}

func TestAffinityDependsOnTheSetAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		chain := client.Chain{Hashes: rapid.SliceOfN(rapid.SliceOf(rapid.Byte()), 1, 8).Draw(t, "hashes")}
		names := rapid.SliceOfN(rapid.StringN(1, 3, 12), 1, 12).Draw(t, "names")
		given := slices.Clone(names)
		got, ok := client.AffinityPick(chain, names)
		if !ok || !slices.Contains(names, got) {
			t.Fatalf("picked %q, %v", got, ok)
		}
		if diff := cmp.Diff(given, names); diff != "" {
			t.Fatalf("the replicas were changed: %s", diff)
		}
		set := slices.Compact(slices.Sorted(slices.Values(names)))
		if again, _ := client.AffinityPick(chain, set); again != got {
			t.Fatalf("picked %q, and %q of the sorted set", got, again)
		}
	})
}
