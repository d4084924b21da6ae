// SPDX-License-Identifier: Apache-2.0

package propagate

import (
	"fmt"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

// Reasons why a PDTopology is not accepted.
const (
	ReasonDuplicatePool          = "DuplicatePool"
	ReasonUnknownAcceleratorType = "UnknownAcceleratorType"
	ReasonEmptySelector          = "EmptySelector"
	ReasonOverlappingPools       = "OverlappingPools"
)

// TopologyFault is one fault of a PDTopology.
type TopologyFault struct {
	// List is the field of the spec, Index the pool's place in it.
	List    string
	Index   int
	Reason  string
	Message string
}

// JudgeTopology finds the faults that show without looking at pods. Pools of
// different roles overlap here when the pods of one are all in the other.
func JudgeTopology(t *v1alpha1.PDTopology) (faults []TopologyFault) {
	known := map[string]bool{"": true}
	for _, kind := range t.Spec.AcceleratorTypes {
		known[kind.Name] = true
	}
	prefill := map[string]bool{}
	check := func(list string, i int, pool v1alpha1.PDPool) {
		if len(pool.MatchLabels) == 0 {
			faults = append(faults, TopologyFault{list, i, ReasonEmptySelector,
				fmt.Sprintf("pool %q has no matchLabels and would select every engine pod", pool.Name)})
		}
		if !known[pool.AcceleratorType] {
			faults = append(faults, TopologyFault{list, i, ReasonUnknownAcceleratorType,
				fmt.Sprintf("pool %q wants accelerator type %q, which acceleratorTypes does not have", pool.Name, pool.AcceleratorType)})
		}
	}
	for i, pool := range t.Spec.PrefillPools {
		check("prefillPools", i, pool)
		prefill[pool.Name] = true
	}
	for i, pool := range t.Spec.DecodePools {
		check("decodePools", i, pool)
		if prefill[pool.Name] {
			faults = append(faults, TopologyFault{"decodePools", i, ReasonDuplicatePool,
				fmt.Sprintf("pool %q is among the prefill pools too", pool.Name)})
		}
		for _, other := range t.Spec.PrefillPools {
			if within(pool, other) || within(other, pool) {
				faults = append(faults, TopologyFault{"decodePools", i, ReasonOverlappingPools,
					fmt.Sprintf("pools %q and %q select the same pods for both roles", other.Name, pool.Name)})
			}
		}
	}
	return faults
}

// within says whether every pod of a is one of b. Empty selectors are a fault
// of their own.
func within(a, b v1alpha1.PDPool) bool {
	if len(a.MatchLabels) == 0 || len(b.MatchLabels) == 0 {
		return false
	}
	for key, value := range b.MatchLabels {
		if got, ok := a.MatchLabels[key]; !ok || got != value {
			return false
		}
	}
	return b.AcceleratorType == "" || a.AcceleratorType == b.AcceleratorType
}
