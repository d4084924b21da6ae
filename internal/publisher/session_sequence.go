// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"time"

	"github.com/zeebo/xxh3"
)

// Bounds on what is held back while a replay is pending.
const (
	maxHeldBatches = 16384
	maxHeldBytes   = 64 << 20
)

const (
	suspectFor     = 10 * time.Minute
	conflictWindow = time.Minute
	conflictCount  = 3
)

// wireBatch is a batch that is not decoded yet.
type wireBatch struct {
	payload        []byte
	sequence, hash uint64
	// first marks the first live batch of a connection.
	first bool
}

// Connected tells that the event socket is up, for the first time or again.
// What happened in between is unknown: it is proven by a replay, or all that
// was known is dropped.
func (s *Session) Connected(now time.Time) Step {
	s.Disconnected(now)
	s.connected = true
	s.replay.unsupported = false
	switch {
	case s.canReplay() && s.recent.last().set:
		return s.askReplay(replayVerify, s.next-1, ResetNone, now)
	case s.canReplay():
		return s.askReplay(replayAll, 0, ResetNone, now)
	case s.hasNext:
		s.drop(ResetReconnect, now)
		return s.step(ResetReconnect)
	default:
		return Step{}
	}
}

// Disconnected tells that the event socket is down.
func (s *Session) Disconnected(time.Time) {
	s.connected = false
	s.replay.kind = replayNone
	s.live = mark{}
	s.releaseHeld()
}

// Live takes a batch from the event socket. The session may keep payload.
func (s *Session) Live(sequence uint64, payload []byte, now time.Time) Step {
	s.tally.lastReceived = now
	s.forgetSuspects(now)
	batch := wireBatch{payload: payload, sequence: sequence, hash: xxh3.Hash(payload)}
	before := s.live
	batch.first = !before.set
	s.live = mark{sequence: sequence, hash: batch.hash, set: true}
	switch {
	case before == s.live:
		s.tally.duplicates++
		return s.step(ResetNone)
	case before.set && sequence <= before.sequence:
		return s.restart(batch, now)
	case s.replay.kind != replayNone:
		s.hold(batch)
		return s.step(ResetNone)
	default:
		return s.advance(batch, false, now)
	}
}

// advance applies a live batch, asks for the ones before it, or finds that it
// comes from another publisher. held says that it waited for a replay.
func (s *Session) advance(batch wireBatch, held bool, now time.Time) Step {
	switch {
	case !s.hasNext:
		s.begin(batch.sequence)
	case batch.sequence < s.next:
		known, same := s.recent.compare(batch.sequence, batch.hash)
		if known && !same || !known && batch.first && !held {
			return s.restart(batch, now)
		}
		return s.step(ResetNone)
	case batch.sequence > s.next:
		s.countGap(batch.sequence)
		if s.mayFill(held) {
			s.hold(batch)
			return s.askReplay(replayFill, s.next, ResetNone, now)
		}
		reset := s.missed(batch.sequence, now)
		s.apply(batch, now)
		return s.step(reset)
	}
	s.apply(batch, now)
	if s.mayRebuild(now) {
		return s.askReplay(replayRebuild, 0, ResetNone, now)
	}
	return s.step(ResetNone)
}

// countGap counts a gap once, although a batch that waited for a replay may
// show it again.
func (s *Session) countGap(before uint64) {
	if s.gapBefore != before {
		s.tally.gaps++
	}
	s.gapBefore = before
}

// begin starts counting at a sequence. Only one that starts at 0 is known to
// have missed nothing.
func (s *Session) begin(sequence uint64) {
	s.hasNext, s.next, s.first = true, sequence, sequence
	s.complete = sequence == 0
}

// missed accounts for batches from next up to before a sequence that nothing
// can bring back.
func (s *Session) missed(before uint64, now time.Time) ResetCause {
	s.tally.missedBatches += before - s.next
	s.next = before
	s.complete = false
	if s.config.OnGap == GapKeep {
		return ResetNone
	}
	s.dropParked()
	if s.config.OnGap == GapReset {
		s.tally.resets[ResetGap]++
		s.clearMirror()
		s.flush(now.UnixMicro())
		return ResetGap
	}
	s.mirror.suspectAll()
	s.suspectUntil, s.suspectHand = now.Add(suspectFor), 0
	s.flush(now.UnixMicro())
	return ResetNone
}

// restart drops everything because the batch comes from another life of the
// engine's publisher, or from another publisher.
func (s *Session) restart(batch wireBatch, now time.Time) Step {
	cause := s.restartCause(now)
	s.drop(cause, now)
	// Where two publishers share a stream, replays would go on for ever.
	if s.canReplay() && cause != ResetStreamConflict {
		s.hold(batch)
		return s.askReplay(replayAll, 0, cause, now)
	}
	s.begin(batch.sequence)
	s.apply(batch, now)
	return s.step(cause)
}

func (s *Session) restartCause(now time.Time) ResetCause {
	s.restarts = append(s.restarts, now)
	if len(s.restarts) > conflictCount {
		s.restarts = s.restarts[1:]
	}
	if s.streamConflict(now) {
		return ResetStreamConflict
	}
	return ResetRestart
}

func (s *Session) streamConflict(now time.Time) bool {
	return len(s.restarts) == conflictCount &&
		s.restarts[conflictCount-1].Sub(s.restarts[0]) < conflictWindow &&
		now.Sub(s.restarts[conflictCount-1]) < conflictWindow
}

// drop forgets everything about this life of the engine.
func (s *Session) drop(cause ResetCause, now time.Time) {
	s.tally.resets[cause]++
	s.dropParked()
	s.clearMirror()
	s.hasNext, s.next, s.first, s.complete = false, 0, 0, false
	s.gapBefore = 0
	s.recent = recentBatches{}
	s.replay.kind = replayNone
	s.releaseHeld()
	s.engine = s.freshFacts()
	s.flush(now.UnixMicro())
}

func (s *Session) clearMirror() {
	s.mirror.reset()
	s.out.cleared()
}

// forgetSuspects drops suspect blocks whose time is over, a bounded number a
// call.
func (s *Session) forgetSuspects(now time.Time) {
	if s.mirror.suspects == 0 || now.Before(s.suspectUntil) {
		return
	}
	s.suspectHand = s.mirror.dropSuspects(s.suspectHand)
}

// hold keeps a live batch for after the replay. Past the bounds the oldest
// ones go; a replay brings them back.
func (s *Session) hold(batch wireBatch) {
	s.held = append(s.held, batch)
	s.heldBytes += len(batch.payload)
	drop := 0
	for len(s.held)-drop > maxHeldBatches || s.heldBytes > maxHeldBytes {
		s.heldBytes -= len(s.held[drop].payload)
		drop++
	}
	clear(s.held[:drop])
	s.held = s.held[drop:]
}

func (s *Session) releaseHeld() { s.held, s.heldBytes = nil, 0 }

// recentBatches remembers the payload hashes of the last batches applied.
type recentBatches struct {
	ring [128]mark
	end  int
}

func (r *recentBatches) add(sequence, hash uint64) {
	r.ring[r.end%len(r.ring)] = mark{sequence: sequence, hash: hash, set: true}
	r.end++
}

func (r *recentBatches) last() mark {
	if r.end == 0 {
		return mark{}
	}
	return r.ring[(r.end-1)%len(r.ring)]
}

// compare looks a batch up by its sequence.
func (r *recentBatches) compare(sequence, hash uint64) (known, same bool) {
	for i := range r.ring {
		if m := &r.ring[i]; m.set && m.sequence == sequence {
			return true, m.hash == hash
		}
	}
	return false, false
}
