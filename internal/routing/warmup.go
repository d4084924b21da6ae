// SPDX-License-Identifier: Apache-2.0

package routing

import "time"

const (
	// youngFor is how long a replica counts as young.
	youngFor = 60 * time.Second
	// Young replicas take one miss in sliceOf and one shallow hit in divertOf.
	sliceOf  = 4
	divertOf = 8
)

// noteYouth marks a replica as seen for the first time since it became ready.
func (m *member) noteYouth(now time.Time) {
	if m.ready && m.readySince.IsZero() {
		m.readySince = now
	}
}

func (m *member) young(now time.Time) bool { return now.Sub(m.readySince) < youngFor }

// warmUp offers a request to the young replicas in one case of many. branch
// tells which kind of request it is.
func (s *Selection) warmUp(oneIn int, branch Branch, source Source) (Choice, bool) {
	if !s.someYoung || s.Rand.IntN(oneIn) != 0 {
		return Choice{}, false
	}
	index, tie := s.leastWait(func(c *Candidate) bool { return c.Young && !c.Saturated })
	if index < 0 {
		return Choice{}, false
	}
	origin := OriginWarmupSlice
	if branch == BranchWarmupDivert {
		origin = OriginWarmupDivert
	}
	return Choice{Index: index, Origin: origin, Branch: branch, Source: source, TieBreak: tie}, true
}

// youthLocked marks the young among the eligible replicas. Where all are
// young, none is.
func (f *Fleet) youthLocked(now time.Time) (some bool) {
	if !f.options.Warmup {
		return false
	}
	young := 0
	for _, i := range f.eligible {
		f.considered[i].Young = f.ordered[i].young(now)
		if f.considered[i].Young {
			young++
		}
	}
	return young > 0 && young < len(f.eligible)
}
