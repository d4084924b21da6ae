// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"maps"
	"time"

	"github.com/inferencecache/inference-cache/internal/kvevents"
)

// outcome is what became of one event.
type outcome struct {
	verb outcomeVerb
	// why is the reason of a skip, and says more about a no-op.
	why string
}

type outcomeVerb string

const (
	outcomeIndex   outcomeVerb = "index"
	outcomeTierAdd outcomeVerb = "tier_add"
	outcomeRemove  outcomeVerb = "remove"
	outcomeClear   outcomeVerb = "clear"
	outcomeNoOp    outcomeVerb = "noop"
	outcomePark    outcomeVerb = "park"
	outcomeSkip    outcomeVerb = "skip"
)

func skip(reason kvevents.Reason) outcome { return outcome{verb: outcomeSkip, why: string(reason)} }

// added reports whether the blocks of a store are in the mirror.
func (o outcome) added() bool {
	return o.verb == outcomeIndex || o == skip(kvevents.ReasonHiddenIdentity)
}

// tally counts what a session saw. Every received event ends in exactly one of
// applied, noOps and skipped, or is parked.
type tally struct {
	received, applied, noOps                 uint64
	batches, gaps, missedBatches, duplicates uint64
	hidden, rankDisagreements                uint64

	events  map[kvevents.Kind]uint64
	skipped map[kvevents.Reason]uint64
	// newlySkipped are reasons that no step has told yet.
	newlySkipped []kvevents.Reason
	unknown      map[string]uint64
	resets       map[ResetCause]uint64
	replays      map[ReplayResult]uint64

	lastReceived, lastEvent time.Time
	rank                    int
	hasRank                 bool
}

func newTally() tally {
	return tally{
		events: map[kvevents.Kind]uint64{}, skipped: map[kvevents.Reason]uint64{},
		unknown: map[string]uint64{}, resets: map[ResetCause]uint64{},
		replays: map[ReplayResult]uint64{},
	}
}

func (s *Session) record(o outcome) {
	s.tally.count(o)
	if s.observe != nil {
		s.observe(o)
	}
}

func (t *tally) count(o outcome) {
	switch o.verb {
	case outcomePark:
	case outcomeNoOp:
		t.noOps++
	case outcomeSkip:
		reason := kvevents.Reason(o.why)
		if t.skipped[reason] == 0 {
			t.newlySkipped = append(t.newlySkipped, reason)
		}
		t.skipped[reason]++
	default:
		t.applied++
	}
}

// countUnknown counts the first 16 names of unknown fields and the rest as
// other.
func (t *tally) countUnknown(fields []kvevents.FieldCount) {
	const maxNames = 16
	for _, field := range fields {
		name := field.Name
		if _, known := t.unknown[name]; !known && len(t.unknown) >= maxNames {
			name = kvevents.OtherField
		}
		t.unknown[name] += uint64(field.Count)
	}
}

func (s *Session) view() View {
	switch {
	case s.mirror.suspects > 0:
		return ViewSuspect
	case s.complete && s.replay.kind == replayNone:
		return ViewComplete
	default:
		return ViewIncomplete
	}
}

// Status reports counters and state.
func (s *Session) Status() Status {
	const persistent = 3
	last := s.recent.last()
	return Status{
		Connected:     s.connected,
		ReplayPending: s.replay.kind != replayNone,
		LastSequence:  last.sequence, HasSequence: last.set,
		LastEventAt: s.tally.lastEvent, LastReceivedAt: s.tally.lastReceived,
		View:    s.view(),
		Batches: s.tally.batches, Gaps: s.tally.gaps,
		MissedBatches: s.tally.missedBatches, Duplicates: s.tally.duplicates,
		Events:   maps.Clone(s.tally.events),
		Received: s.tally.received, Applied: s.tally.applied, NoOps: s.tally.noOps,
		Skipped:       maps.Clone(s.tally.skipped),
		UnknownFields: maps.Clone(s.tally.unknown),
		Resets:        maps.Clone(s.tally.resets),
		Replays:       maps.Clone(s.tally.replays), LastReplay: s.replay.last,
		HiddenIdentities: s.tally.hidden,
		ParkedEvents:     s.parked.runs, ParkedBlocks: s.parked.blocks,
		BlockSize: s.engine.blockSize, OtherBlockSize: s.engine.otherBlockSize,
		BlockSizeConflict: s.engine.sizeRefusals >= persistent,
		HashForm:          s.engine.hashForm,
		TierBlocks:        s.mirror.tierBlocks,
		SuspectBlocks:     s.mirror.suspects, WithdrawnBlocks: s.mirror.withdrawn,
		StreamConflict: s.streamConflict(s.tally.lastReceived),
		BatchRank:      s.tally.rank, HasBatchRank: s.tally.hasRank,
		RankDisagreements: s.tally.rankDisagreements,
	}
}
