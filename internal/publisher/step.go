// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"github.com/inferencecache/inference-cache/internal/kvevents"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// Step is what a session wants done after an input.
type Step struct {
	// Deltas go to the servers in this order. Each is one engine batch, or
	// the clear of a reset.
	Deltas []*pb.SyncDelta
	// Replay asks for the batches from ReplayFrom on. It supersedes a replay
	// that is still running: no frame of the older one may be delivered after
	// this step.
	Replay     bool
	ReplayFrom uint64
	// Reset is the cause when the session dropped all it knew, else ResetNone.
	// The deltas already hold the clear.
	Reset ResetCause
	// NewlySkipped are reasons for which events were skipped that had cost
	// none before.
	NewlySkipped []kvevents.Reason
}

// ResetCause says why a session dropped its state; the list is closed.
type ResetCause string

// Causes of a reset. ResetClear counts the engine's own clears and never
// appears in a Step. ResetIncarnation is for the owner of the session.
const (
	ResetNone           ResetCause = ""
	ResetRestart        ResetCause = "restart"
	ResetGap            ResetCause = "gap"
	ResetReconnect      ResetCause = "reconnect"
	ResetClear          ResetCause = "clear"
	ResetIncarnation    ResetCause = "incarnation"
	ResetStreamConflict ResetCause = "stream_conflict"
)

// ResetCauses returns every cause but ResetNone, in a fixed order.
func ResetCauses() []ResetCause {
	return []ResetCause{
		ResetRestart, ResetGap, ResetReconnect, ResetClear, ResetIncarnation, ResetStreamConflict,
	}
}

// ReplayResult is how a replay ended; the list is closed.
type ReplayResult string

// Results of a replay. Callers report all but ReplayWrapped, which the session
// also finds itself from the first sequence it gets.
const (
	ReplayOK          ReplayResult = "ok"
	ReplayWrapped     ReplayResult = "wrapped"
	ReplayTimeout     ReplayResult = "timeout"
	ReplayMalformed   ReplayResult = "malformed"
	ReplayUnsupported ReplayResult = "unsupported"
)

// ReplayResults returns every result, in a fixed order.
func ReplayResults() []ReplayResult {
	return []ReplayResult{ReplayOK, ReplayWrapped, ReplayTimeout, ReplayMalformed, ReplayUnsupported}
}

// GapPolicy says what happens to holdings older than a gap that no replay
// could fill.
type GapPolicy string

// Gap policies.
const (
	// GapSuspect withdraws them until they are seen again and forgets them
	// after ten minutes.
	GapSuspect GapPolicy = "suspect"
	// GapReset forgets them at once.
	GapReset GapPolicy = "reset"
	// GapKeep goes on reporting them.
	GapKeep GapPolicy = "keep"
)

// HiddenIdentityPolicy says what to do with a key that one engine announces
// under two hashes.
type HiddenIdentityPolicy string

// Hidden identity policies.
const (
	// HiddenIdentityCount only counts them.
	HiddenIdentityCount HiddenIdentityPolicy = "count"
	// HiddenIdentityWithdraw also withdraws the key and its descendants until
	// the engine clears its cache.
	HiddenIdentityWithdraw HiddenIdentityPolicy = "withdraw"
)

// CopyCounting says how often a block must be removed before it is gone.
type CopyCounting string

// Copy counting modes.
const (
	// CopiesByScheme counts copies unless the scheme is known to announce a
	// block once.
	CopiesByScheme CopyCounting = ""
	// CopiesEach counts every store; vLLM announces each physical copy.
	CopiesEach CopyCounting = "each"
	// CopiesOnce ends a holding with its first removal.
	CopiesOnce CopyCounting = "once"
)
