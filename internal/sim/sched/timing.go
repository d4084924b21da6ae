// SPDX-License-Identifier: Apache-2.0

package sched

import "time"

// Timing says how long a step takes. The zero value uses the defaults.
type Timing struct {
	// PrefillTokensPerSecond is the rate at which prompts are computed.
	// Default 8000.
	PrefillTokensPerSecond float64
	// DecodeStep is the least time of a step that decodes. Default 8 ms.
	DecodeStep time.Duration
	// DecodeSequence is the extra time of each sequence that decodes.
	// Default 50 µs.
	DecodeSequence time.Duration
	// Speed divides all times. Default 1.
	Speed float64
}

// Step returns the time a step takes.
func (t Timing) Step(step Step) time.Duration {
	rate, base, sequence, speed := t.PrefillTokensPerSecond, t.DecodeStep, t.DecodeSequence, t.Speed
	if rate <= 0 {
		rate = 8000
	}
	if base <= 0 {
		base = 8 * time.Millisecond
	}
	if sequence <= 0 {
		sequence = 50 * time.Microsecond
	}
	if speed <= 0 {
		speed = 1
	}
	total := time.Duration(float64(step.PrefillTokens) / rate * float64(time.Second))
	if step.DecodeTokens > 0 {
		total += base + time.Duration(step.DecodeTokens)*sequence
	}
	return time.Duration(float64(total) / speed)
}
