// SPDX-License-Identifier: Apache-2.0

package routing

// Pressure names what spoke against a holder of the prefix.
type Pressure string

// Pressures.
const (
	// PressureWait: the wait for it, in seconds, exceeds the least wait and
	// what the prefix is worth.
	PressureWait Pressure = "wait_seconds"
	// PressureCrowd: the requests it was given lately exceed the mean too far.
	PressureCrowd Pressure = "recent_requests"
)

// PassedOver is the holder of the prefix that a spill gave up although it was
// not saturated. The zero value is none.
type PassedOver struct {
	Replica         string
	By              Pressure
	Observed, Limit float64
}

func (s *Selection) passedOver(index int, by Pressure, observed, limit float64) PassedOver {
	return PassedOver{Replica: s.At(index).ID, By: by, Observed: observed, Limit: limit}
}
