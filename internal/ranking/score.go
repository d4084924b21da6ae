// SPDX-License-Identifier: Apache-2.0

package ranking

import "time"

// Freshness returns how much of its life an entry still has: 1 at age 0 or
// below, 0 from the time to live on.
func Freshness(ageMillis, ttlMillis int64) float32 {
	switch {
	case ageMillis <= 0:
		return 1
	case ageMillis >= ttlMillis:
		return 0
	}
	return float32(1 - float64(ageMillis)/float64(ttlMillis))
}

// Recency is the freshness of a stats row, in float32 throughout.
func Recency(age, maxAge time.Duration) float32 {
	switch {
	case age <= 0:
		return 1
	case age >= maxAge:
		return 0
	}
	return 1 - float32(float32(age)/float32(maxAge))
}

// PressureFactor is 1 without pressure and falls to 0.
func (k Knobs) PressureFactor(pressure float32) float32 {
	return min(max(1-float32(k.PressureWeight*pressure), 0), 1)
}

// SLOBias is above 1 when the request asks for a first token within the tight
// limit. ttftMillis 0 or below means the request asks for nothing.
func (k Knobs) SLOBias(ttftMillis int32, freshness float32) float32 {
	if ttftMillis <= 0 || ttftMillis >= k.SLOTightTTFTMillis {
		return 1
	}
	return 1 + float32(freshness*k.SLOTightBias)
}

// Base is the score of a match before distinguishing power.
func (k Knobs) Base(matchedTokens int32, freshness, pressureFactor, sloBias, tierWeight float32) float32 {
	score := float32(float32(matchedTokens) * freshness)
	score = float32(score * pressureFactor)
	score = float32(score * sloBias)
	if tierWeight != 1 {
		score = float32(score * tierWeight)
	}
	return score
}

// TenantHot is the score of a replica that holds nothing of the request but
// serves its tenant well.
func (k Knobs) TenantHot(hitRate, recency, pressureFactor, sloBias float32) float32 {
	score := float32(hitRate * recency)
	score = float32(score * pressureFactor)
	return float32(score * sloBias)
}

// Power is the distinguishing power of a match that matching of total serving
// replicas share: 1 when it singles one out, 0 when it says nothing.
func Power(matching, total int) float64 {
	switch {
	case total <= 1 || matching < 0:
		return 1
	case matching >= total:
		return 0
	}
	return 1 - float64(matching)/float64(total)
}

// WithPower applies distinguishing power to a base score.
func WithPower(base float32, power float64) float32 {
	if power == 1 {
		return base
	}
	return float32(base * float32(power))
}
