// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"cmp"
	"time"

	"github.com/zeebo/xxh3"
)

// rebuildPause is the least time between replays asked for because a parent
// was unknown.
const rebuildPause = time.Minute

// replayKind is what a pending replay is for.
type replayKind uint8

const (
	replayNone    replayKind = iota
	replayAll                // build the mirror from the start
	replayVerify             // prove that the last batch applied is still the engine's
	replayFill               // fill a gap
	replayRebuild            // start over if it reaches further back than the mirror
)

// replayState is the pending replay and how earlier ones went.
type replayState struct {
	kind        replayKind
	from        uint64
	got         int
	wrapped     bool
	unsupported bool
	failed      bool
	last        ReplayResult
	askedAt     time.Time
}

func (s *Session) canReplay() bool { return s.config.HasReplay && !s.replay.unsupported }

// mayFill reports whether a replay could bring what is missing before a live
// batch. One that waited for the last replay gets another only if that one
// made progress.
func (s *Session) mayFill(held bool) bool {
	return s.canReplay() && (!held || s.next > s.replay.from)
}

// mayRebuild reports whether to try again a replay that failed, now that a
// parent is missing.
func (s *Session) mayRebuild(now time.Time) bool {
	return s.canReplay() && s.replay.failed && s.parked.runs > 0 && now.Sub(s.replay.askedAt) >= rebuildPause
}

func (s *Session) askReplay(kind replayKind, from uint64, reset ResetCause, now time.Time) Step {
	s.replay.kind, s.replay.from, s.replay.got, s.replay.wrapped = kind, from, 0, false
	s.replay.askedAt = now
	step := s.step(reset)
	step.Replay, step.ReplayFrom = true, from
	return step
}

// Replayed takes a batch of the replay that the last Step asked for.
func (s *Session) Replayed(sequence uint64, payload []byte, now time.Time) Step {
	if s.replay.kind == replayNone {
		return Step{}
	}
	batch := wireBatch{payload: payload, sequence: sequence, hash: xxh3.Hash(payload)}
	s.replay.got++
	reset := ResetNone
	if s.replay.got == 1 {
		if s.replay.kind == replayVerify {
			return s.verify(batch, now)
		}
		s.replay.wrapped = sequence > s.replay.from
		if s.replay.kind == replayRebuild {
			reset = s.rebuildFrom(sequence, now)
		}
	}
	switch {
	case !s.hasNext:
		s.begin(sequence)
	case sequence < s.next:
		return s.step(reset)
	}
	if sequence > s.next {
		reset = cmp.Or(s.missed(sequence, now), reset)
	}
	s.apply(batch, now)
	return s.step(reset)
}

// verify compares the first batch of a replay with the last one applied.
func (s *Session) verify(batch wireBatch, now time.Time) Step {
	if last := s.recent.last(); batch.sequence != last.sequence || batch.hash != last.hash {
		return s.lostContinuity(now)
	}
	s.replay.kind = replayFill
	return s.step(ResetNone)
}

// lostContinuity starts over after a reconnect: the engine is another one, or
// can no longer prove that it is the same.
func (s *Session) lostContinuity(now time.Time) Step {
	s.dropButHeld(ResetRestart, now)
	return s.askReplay(replayAll, 0, ResetRestart, now)
}

// rebuildFrom starts the mirror anew when the replay reaches further back.
func (s *Session) rebuildFrom(sequence uint64, now time.Time) ResetCause {
	if sequence >= s.first {
		s.replay.kind = replayFill
		return ResetNone
	}
	s.dropButHeld(ResetGap, now)
	s.replay.kind = replayAll
	return ResetGap
}

func (s *Session) dropButHeld(cause ResetCause, now time.Time) {
	held, bytes := s.held, s.heldBytes
	s.drop(cause, now)
	s.held, s.heldBytes = held, bytes
}

// ReplayDone ends that replay. Batches held back meanwhile are applied.
func (s *Session) ReplayDone(result ReplayResult, now time.Time) Step {
	kind := s.replay.kind
	if kind == replayNone {
		return Step{}
	}
	if result == ReplayOK && s.replay.wrapped {
		result = ReplayWrapped
	}
	s.tally.replays[result]++
	s.replay.last, s.replay.kind = result, replayNone
	s.replay.unsupported = result == ReplayUnsupported
	answered := result == ReplayOK || result == ReplayWrapped
	s.replay.failed = !answered
	reset := ResetNone
	switch {
	case kind == replayVerify && answered:
		return s.lostContinuity(now)
	case kind == replayVerify:
		reset = ResetReconnect
		s.dropButHeld(reset, now)
	case kind == replayAll && result == ReplayOK && !s.hasNext:
		s.begin(0)
	}
	return s.drain(reset, now)
}

// drain applies held batches until they are done or show another gap.
func (s *Session) drain(reset ResetCause, now time.Time) Step {
	held := s.held
	s.releaseHeld()
	step := s.step(reset)
	for i, batch := range held {
		next := s.advance(batch, true, now)
		step.Deltas = append(step.Deltas, next.Deltas...)
		step.Reset = cmp.Or(next.Reset, step.Reset)
		if next.Replay {
			step.Replay, step.ReplayFrom = true, next.ReplayFrom
			for _, later := range held[i+1:] {
				s.hold(later)
			}
			break
		}
	}
	return step
}
