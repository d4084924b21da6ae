// SPDX-License-Identifier: Apache-2.0

package ranking

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Knobs are the constants of the formulas. The zero value switches every
// influence off; DefaultKnobs holds the contract's values.
type Knobs struct {
	// PressureWeight is how strongly a replica's pressure lowers its score.
	PressureWeight float32
	// SLOTightTTFTMillis: requests that ask for a first token sooner than
	// this are biased towards fresh entries. 0 = no bias.
	SLOTightTTFTMillis int32
	// SLOTightBias is the size of that bias. 0 = no bias.
	SLOTightBias float32
	// TenantHotMinHitRate is the lowest hit rate a hot replica may report.
	TenantHotMinHitRate float32
	// TenantHotMaxAge is the age at which a hit rate says nothing any more.
	// 0 = no replica is ever hot.
	TenantHotMaxAge time.Duration
	// TierWeightT2 and TierWeightT3 multiply the score of matches in those
	// tiers. 1 = the tier has no influence.
	TierWeightT2, TierWeightT3 float32
}

// DefaultKnobs returns the contract's values.
func DefaultKnobs() Knobs {
	return Knobs{
		PressureWeight:      1,
		SLOTightTTFTMillis:  200,
		SLOTightBias:        1,
		TenantHotMinHitRate: 0.1,
		TenantHotMaxAge:     5 * time.Minute,
		TierWeightT2:        1,
		TierWeightT3:        1,
	}
}

// Validate refuses values the formulas have no meaning for.
func (k Knobs) Validate() error {
	var errs []error
	for _, knob := range []struct {
		name  string
		value float32
	}{
		{"pressure weight", k.PressureWeight},
		{"SLO tight bias", k.SLOTightBias},
		{"tenant hot minimum hit rate", k.TenantHotMinHitRate},
		{"tier weight T2", k.TierWeightT2},
		{"tier weight T3", k.TierWeightT3},
	} {
		if !(knob.value >= 0) || math.IsInf(float64(knob.value), 0) {
			errs = append(errs, fmt.Errorf("%s is %v, expected a finite number of at least 0", knob.name, knob.value))
		}
	}
	if k.SLOTightTTFTMillis < 0 {
		errs = append(errs, fmt.Errorf("SLO tight TTFT is %d ms, expected at least 0", k.SLOTightTTFTMillis))
	}
	if k.TenantHotMaxAge < 0 {
		errs = append(errs, fmt.Errorf("tenant hot maximum age is %v, expected at least 0", k.TenantHotMaxAge))
	}
	return errors.Join(errs...)
}
