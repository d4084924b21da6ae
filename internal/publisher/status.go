// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"time"

	"github.com/inferencecache/inference-cache/internal/kvevents"
)

// View says how far the mirror can be trusted.
type View string

// Views. A suspect view has holdings that are withdrawn until seen again.
const (
	ViewComplete   View = "complete"
	ViewIncomplete View = "incomplete"
	ViewSuspect    View = "suspect"
)

// Status is what metrics and doctor show of a session. Counts start with the
// session. Received = Applied + NoOps + ParkedEvents + the sum of Skipped.
type Status struct {
	Connected     bool
	ReplayPending bool
	// LastSequence is the last applied one; HasSequence is false before it.
	LastSequence uint64
	HasSequence  bool
	// LastEventAt is the engine's time of the last batch with events,
	// LastReceivedAt ours of the last batch.
	LastEventAt, LastReceivedAt time.Time
	View                        View

	Batches, Gaps, MissedBatches, Duplicates uint64
	// Events counts received events by kind.
	Events                     map[kvevents.Kind]uint64
	Received, Applied, NoOps   uint64
	Skipped                    map[kvevents.Reason]uint64
	UnknownFields              map[string]uint64
	Resets                     map[ResetCause]uint64
	Replays                    map[ReplayResult]uint64
	LastReplay                 ReplayResult
	HiddenIdentities           uint64
	ParkedEvents, ParkedBlocks int

	// BlockSize is the learned or configured one; 0 is unknown. OtherBlockSize
	// is the last one refused, and BlockSizeConflict is true while refusals
	// persist.
	BlockSize, OtherBlockSize int
	BlockSizeConflict         bool
	// HashForm is "int" or "bytes", empty before the first hash.
	HashForm string
	// TierBlocks counts held blocks of tiers T1, T2 and T3; a block held in
	// two tiers counts in both. SuspectBlocks and WithdrawnBlocks are not
	// reported to servers.
	TierBlocks                     [3]int
	SuspectBlocks, WithdrawnBlocks int
	// StreamConflict is true after three restarts within a minute: two
	// publishers seem to share the stream.
	StreamConflict bool
	// BatchRank is the rank named by the last batch; HasBatchRank is false
	// when it named none. RankDisagreements counts batches whose rank is not
	// the configured one.
	BatchRank         int
	HasBatchRank      bool
	RankDisagreements uint64
}
