// SPDX-License-Identifier: Apache-2.0

package lookup_test

import (
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/lookup"
)

// staircase holds four, two and one block of one chain.
func staircase() *fleet {
	return newFleet().
		hold("p", holding{Chain: "abcd", Block: 64, Age: time.Minute, Tier: index.TierT1}).
		hold("q", holding{Chain: "ab", Block: 64, Age: 2 * time.Minute, Tier: index.TierT2}).
		hold("r", holding{Chain: "a", Block: 64, Age: 3 * time.Minute, Tier: index.TierT3}).
		stats("p", .5, 0, time.Minute).
		stats("q", .5, .25, 2*time.Minute).
		stats("r", .5, .5, 3*time.Minute)
}

func unevenPair() *fleet {
	return newFleet().
		hold("a", holding{Chain: "p", Block: 100}).
		hold("b", holding{Chain: "p", Block: 50, Age: 15 * time.Minute}).stats("b", 0, .5, 0).
		hold("c", holding{Chain: "x", Block: 100})
}

func hotAndCool() *fleet {
	return newFleet().
		hold("hot", holding{Chain: "p", Block: 100}).stats("hot", 0, .9, 0).
		hold("cool", holding{Chain: "p", Block: 50}).
		hold("c", holding{Chain: "x", Block: 100})
}

func oneHolder(age time.Duration) *fleet {
	return newFleet().hold("a", holding{Chain: "p", Block: 100, Age: age})
}

func idle(hitRate float32, age time.Duration) *fleet {
	return newFleet().hold("w", holding{Chain: "x", Block: 100}).stats("w", hitRate, .1, age)
}

func shared() *fleet {
	return newFleet().
		hold("p", holding{Chain: "abcd", Block: 16}).
		hold("q", holding{Chain: "abcd", Block: 16, Age: 10 * time.Minute}).
		hold("r", holding{Chain: "ab", Block: 16}).
		hold("s", holding{Chain: "x", Block: 16})
}

// TestWorkedScores holds the contract's numeric checks.
func TestWorkedScores(t *testing.T) {
	for name, tc := range map[string]struct {
		fleet      *fleet
		request    lookup.Request
		wantRanked string
		wantReason lookup.Reason
		wantScores string
	}{
		"W1 chain": {
			staircase(), chain("abcd", 64),
			"p 164.97778/256, q 29.866667/128, r 0/64", lookup.PrefixMatch, "p q r",
		},
		"W2 chain with a tight SLO": {
			staircase(), tight(chain("abcd", 64), 199),
			"p 324.4563/256, q 57.742226/128, r 0/64", lookup.PrefixMatch, "p q r",
		},
		"W2 chain with an SLO at the limit": {
			staircase(), tight(chain("abcd", 64), 200),
			"p 164.97778/256, q 29.866667/128, r 0/64", lookup.PrefixMatch, "p q r",
		},
		"W3 exact": {
			staircase(), exact('b', 128),
			"p 41.244446/128, q 29.866667/128", lookup.PrefixMatch, "p q",
		},
		"W4 exact miss": {
			staircase(), tight(exact('z', 128), 50),
			"p 0.7199999/0, q 0.35999995/0, r 0.13999999/0", lookup.TenantHot, "p q r",
		},
		"W5 different counts": {
			unevenPair(), exact('p', 100),
			"a 33.333336/100, b 4.166667/50", lookup.PrefixMatch, "a",
		},
		"W5 with a tight SLO": {
			unevenPair(), tight(exact('p', 100), 50),
			"a 66.66667/100, b 6.25/50", lookup.PrefixMatch, "a",
		},
		"W6 pressure outweighs length, the floor does not": {
			hotAndCool(), exact('p', 100),
			"cool 16.666668/50, hot 3.333334/100", lookup.PrefixMatch, "hot",
		},
		"W7 fresh": {oneHolder(0), exact('p', 100), "a 100/100", lookup.PrefixMatch, "a"},
		"W7 one second before expiry": {
			oneHolder(30*time.Minute - time.Second), exact('p', 100),
			"a 0.055555556/100", lookup.AffinityHint, "a",
		},
		"W8 everyone holds it": {
			newFleet().hold("p", holding{Chain: "p", Block: 100}).hold("q", holding{Chain: "p", Block: 100}),
			exact('p', 100), "p 0/100, q 0/100", lookup.AffinityHint, "q",
		},
		"W9 tenant hot": {
			idle(.8, 30*time.Second), exact('z', 100), "w 0.64799994/0", lookup.TenantHot, "w",
		},
		"W9 tenant hot with a tight SLO": {
			idle(.8, 30*time.Second), tight(exact('z', 100), 50), "w 1.2311999/0", lookup.TenantHot, "w",
		},
		"W10 tenant hot at the lowest hit rate": {
			newFleet().hold("w", holding{Chain: "x", Block: 100}).stats("w", .1, 0, 0),
			exact('z', 100), "w 0.1/0", lookup.TenantHot, "w",
		},
		"W11 one dropped out half way": {
			shared(), chain("abcd", 16),
			"p 32/64, q 21.333334/64, r 8/32", lookup.PrefixMatch, "p q",
		},
		"W12 a hole ends the match": {
			shared().drop("p", "b"), chain("abcd", 16),
			"q 32/64, r 16/32, p 4/16", lookup.PrefixMatch, "q",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := tc.fleet.ask(tc.request)
			if ranked := brief(got.Ranked); ranked != tc.wantRanked {
				t.Errorf("ranked %s, want %s", ranked, tc.wantRanked)
			}
			if got.Reason != tc.wantReason || names(got.Scores) != tc.wantScores {
				t.Errorf("answer %s %q, want %s %q", got.Reason, names(got.Scores), tc.wantReason, tc.wantScores)
			}
		})
	}
}

func TestWorkedBoundaries(t *testing.T) {
	for name, tc := range map[string]struct {
		fleet   *fleet
		request lookup.Request
		want    string
	}{
		"W7 expired":                      {oneHolder(30 * time.Minute), exact('p', 100), ""},
		"W10 stats of the maximum age":    {idle(.8, 5*time.Minute), exact('z', 100), ""},
		"W10 one millisecond before that": {idle(.8, 5*time.Minute-time.Millisecond), exact('z', 100), "w"},
		"W10 below the lowest hit rate":   {idle(.09, 0), exact('z', 100), ""},
		"W10 at the lowest hit rate":      {idle(.1, 0), exact('z', 100), "w"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := names(tc.fleet.ask(tc.request).Ranked); got != tc.want {
				t.Errorf("ranked %q, want %q", got, tc.want)
			}
		})
	}
}

func TestWorkedProbabilityAndTier(t *testing.T) {
	got := staircase().ask(chain("abcd", 64)).Scores
	want := []struct {
		probability string
		tier        index.Tier
	}{{"0.96666664", index.TierT1}, {"0.93333334", index.TierT2}, {"0.9", index.TierT3}}
	if len(got) != len(want) {
		t.Fatalf("%d scores, want %d", len(got), len(want))
	}
	for i := range want {
		if shortest(got[i].HitProbability) != want[i].probability || got[i].Tier != want[i].tier {
			t.Errorf("score %d: probability %s tier %d, want %v", i, shortest(got[i].HitProbability), got[i].Tier, want[i])
		}
	}
}
