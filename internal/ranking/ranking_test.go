// SPDX-License-Identifier: Apache-2.0

package ranking

import (
	"math"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const ttlMillis = 30 * 60 * 1000

func minutes(n int64) int64 { return n * 60 * 1000 }

func shortest(v float32) string { return strconv.FormatFloat(float64(v), 'g', -1, 32) }

func TestPrefixScore(t *testing.T) {
	knobs := DefaultKnobs()
	for name, tc := range map[string]struct {
		tokens    int32
		ageMillis int64
		pressure  float32
		ttft      int32
		matching  int
		total     int
		want      string
	}{
		"four blocks, one minute, no pressure":        {256, minutes(1), 0, 0, 1, 3, "164.97778"},
		"two blocks, a quarter of pressure":           {128, minutes(2), .25, 0, 2, 3, "29.866667"},
		"everyone holds it":                           {64, minutes(3), .5, 0, 3, 3, "0"},
		"tight SLO doubles what is fresh":             {256, minutes(1), 0, 199, 1, 3, "324.4563"},
		"tight SLO with pressure":                     {128, minutes(2), .25, 199, 2, 3, "57.742226"},
		"an SLO at the limit is not tight":            {256, minutes(1), 0, 200, 1, 3, "164.97778"},
		"a negative SLO is none":                      {256, minutes(1), 0, -1, 1, 3, "164.97778"},
		"shared by two of three":                      {128, minutes(1), 0, 0, 2, 3, "41.244446"},
		"fresh, two of three":                         {100, 0, 0, 0, 2, 3, "33.333336"},
		"half the life, half the pressure":            {50, minutes(15), .5, 0, 2, 3, "4.166667"},
		"fresh with a tight SLO":                      {100, 0, 0, 50, 2, 3, "66.66667"},
		"half the life with a tight SLO":              {50, minutes(15), .5, 50, 2, 3, "6.25"},
		"cool replica":                                {50, 0, 0, 0, 2, 3, "16.666668"},
		"hot replica":                                 {100, 0, .9, 0, 2, 3, "3.333334"},
		"the only replica":                            {100, 0, 0, 0, 1, 1, "100"},
		"one second before expiry":                    {100, minutes(30) - 1000, 0, 0, 1, 1, "0.055555556"},
		"expired":                                     {100, minutes(30), 0, 0, 1, 1, "0"},
		"pressure above one counts as one":            {100, 0, 7, 0, 1, 1, "0"},
		"pressure below zero counts as none":          {100, 0, -7, 0, 1, 1, "100"},
		"a third of the life left":                    {64, minutes(10), 0, 0, 2, 4, "21.333334"},
		"the future counts as now":                    {64, -5, 0, 0, 2, 4, "32"},
		"the largest count":                           {math.MaxInt32, 0, 0, 0, 1, 2, "1.0737418e+09"},
		"more holders than serving replicas":          {64, 0, 0, 0, 5, 4, "0"},
		"serving replicas unknown":                    {64, 0, 0, 0, 1, 0, "64"},
		"a negative number of holders is not applied": {64, 0, 0, 0, -1, 4, "64"},
	} {
		t.Run(name, func(t *testing.T) {
			freshness := Freshness(tc.ageMillis, ttlMillis)
			base := knobs.Base(tc.tokens, freshness, knobs.PressureFactor(tc.pressure), knobs.SLOBias(tc.ttft, freshness), 1)
			if got := shortest(WithPower(base, Power(tc.matching, tc.total))); got != tc.want {
				t.Errorf("score = %s, want %s", got, tc.want)
			}
		})
	}
}

func TestFreshness(t *testing.T) {
	for name, tc := range map[string]struct {
		age  int64
		want string
	}{
		"one minute":    {minutes(1), "0.96666664"},
		"two minutes":   {minutes(2), "0.93333334"},
		"three minutes": {minutes(3), "0.9"},
		"negative":      {-1, "1"},
		"at the end":    {ttlMillis, "0"},
		"beyond":        {ttlMillis + 1, "0"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := shortest(Freshness(tc.age, ttlMillis)); got != tc.want {
				t.Errorf("Freshness = %s, want %s", got, tc.want)
			}
		})
	}
}

func TestTenantHotScore(t *testing.T) {
	knobs := DefaultKnobs()
	for name, tc := range map[string]struct {
		hitRate, pressure float32
		age               time.Duration
		ttft              int32
		want              string
	}{
		"one minute, tight":                 {.5, 0, time.Minute, 50, "0.7199999"},
		"two minutes, tight, some pressure": {.5, .25, 2 * time.Minute, 50, "0.35999995"},
		"three minutes, tight":              {.5, .5, 3 * time.Minute, 50, "0.13999999"},
		"thirty seconds":                    {.8, .1, 30 * time.Second, 0, "0.64799994"},
		"thirty seconds, tight":             {.8, .1, 30 * time.Second, 50, "1.2311999"},
		"the lowest hit rate":               {.1, 0, 0, 0, "0.1"},
		"exactly the maximum age":           {.8, 0, 5 * time.Minute, 0, "0"},
	} {
		t.Run(name, func(t *testing.T) {
			recency := Recency(tc.age, knobs.TenantHotMaxAge)
			score := knobs.TenantHot(tc.hitRate, recency, knobs.PressureFactor(tc.pressure), knobs.SLOBias(tc.ttft, recency))
			if got := shortest(score); got != tc.want {
				t.Errorf("score = %s, want %s", got, tc.want)
			}
		})
	}
}

func TestTierWeight(t *testing.T) {
	knobs := DefaultKnobs()
	if got := knobs.Base(100, 1, 1, 1, 0.5); got != 50 {
		t.Errorf("Base with tier weight 0.5 = %v, want 50", got)
	}
}

func TestKnobsValidate(t *testing.T) {
	nan := float32(math.NaN())
	for name, tc := range map[string]struct {
		change func(*Knobs)
		wantOK bool
	}{
		"defaults":              {func(*Knobs) {}, true},
		"everything off":        {func(k *Knobs) { *k = Knobs{} }, true},
		"a weight that is NaN":  {func(k *Knobs) { k.PressureWeight = nan }, false},
		"an infinite weight":    {func(k *Knobs) { k.TierWeightT2 = float32(math.Inf(1)) }, false},
		"a negative bias":       {func(k *Knobs) { k.SLOTightBias = -1 }, false},
		"a negative TTFT":       {func(k *Knobs) { k.SLOTightTTFTMillis = -1 }, false},
		"a negative age":        {func(k *Knobs) { k.TenantHotMaxAge = -1 }, false},
		"a negative hit rate":   {func(k *Knobs) { k.TenantHotMinHitRate = -1 }, false},
		"a weight above one":    {func(k *Knobs) { k.TierWeightT3 = 2 }, true},
		"a hit rate above one":  {func(k *Knobs) { k.TenantHotMinHitRate = 2 }, true},
		"a negative T3 weighed": {func(k *Knobs) { k.TierWeightT3 = -0.1 }, false},
	} {
		t.Run(name, func(t *testing.T) {
			knobs := DefaultKnobs()
			tc.change(&knobs)
			if err := knobs.Validate(); (err == nil) != tc.wantOK {
				t.Errorf("Validate() = %v, want ok %v", err, tc.wantOK)
			}
		})
	}
}

func TestScoreProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		knobs := DefaultKnobs()
		age := rapid.Int64Range(0, ttlMillis).Draw(t, "age")
		older := rapid.Int64Range(age, ttlMillis).Draw(t, "older")
		tokens := rapid.Int32Range(0, 1<<20).Draw(t, "tokens")
		pressure := rapid.Float32Range(0, 2).Draw(t, "pressure")
		ttft := rapid.Int32Range(-1, 400).Draw(t, "ttft")
		score := func(age int64, tokens int32) float32 {
			freshness := Freshness(age, ttlMillis)
			return knobs.Base(tokens, freshness, knobs.PressureFactor(pressure), knobs.SLOBias(ttft, freshness), 1)
		}
		if score(older, tokens) > score(age, tokens) {
			t.Fatalf("an older match scores higher")
		}
		if score(age, tokens) > score(age, tokens+1) {
			t.Fatalf("a longer match scores lower")
		}
		total := rapid.IntRange(0, 100).Draw(t, "total")
		matching := rapid.IntRange(0, 100).Draw(t, "matching")
		if power := Power(matching, total); power < 0 || power > 1 {
			t.Fatalf("Power(%d, %d) = %v", matching, total, power)
		}
	})
}
