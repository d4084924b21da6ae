// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"math"
	"time"

	"github.com/inferencecache/inference-cache/internal/kvevents"
	"github.com/inferencecache/inference-cache/pkg/fingerprint"
)

// maxClockSkew is how far an engine's clock may be off to be believed.
const maxClockSkew = 5 * time.Minute

// apply takes the batch at next. An undecodable one counts as one event.
func (s *Session) apply(b wireBatch, now time.Time) {
	s.recent.add(b.sequence, b.hash)
	s.next = b.sequence + 1
	s.tally.batches++
	batch, err := s.decoder.Decode(b.payload)
	if err != nil {
		s.complete = false
		s.tally.received++
		s.record(skip(kvevents.ReasonMalformedBatch))
		return
	}
	s.note(batch)
	for i := range batch.Events {
		event := &batch.Events[i]
		s.tally.received++
		s.tally.events[event.Kind]++
		s.record(s.event(event))
	}
	s.flush(s.batchTime(batch, now))
}

func (s *Session) note(batch *kvevents.Batch) {
	s.tally.countUnknown(batch.UnknownFields)
	s.tally.rank, s.tally.hasRank = int(batch.Rank), batch.HasRank
	if s.config.HasRank && batch.HasRank && batch.Rank != int64(s.config.Rank) {
		s.tally.rankDisagreements++
	}
	if len(batch.Events) > 0 && batch.TimestampMicros > 0 {
		s.tally.lastEvent = time.UnixMicro(batch.TimestampMicros)
	}
}

// batchTime is the engine's time, or ours when that cannot be right.
func (s *Session) batchTime(batch *kvevents.Batch, now time.Time) int64 {
	if at := time.UnixMicro(batch.TimestampMicros); now.Sub(at).Abs() > maxClockSkew {
		return now.UnixMicro()
	}
	return batch.TimestampMicros
}

func (s *Session) event(e *kvevents.Event) outcome {
	if e.Reason == kvevents.ReasonMalformed || e.Reason == kvevents.ReasonUnknownType {
		return skip(e.Reason)
	}
	if e.Kind == kvevents.KindCleared {
		return s.clear()
	}
	if e.Reason != kvevents.ReasonUnknownMedium && e.Reason != kvevents.ReasonNonLocal && s.otherGroup(e) {
		return skip(kvevents.ReasonNonMainGroup)
	}
	if e.Reason != kvevents.ReasonNone {
		return skip(e.Reason)
	}
	if len(e.Hashes) == 0 {
		return outcome{verb: outcomeNoOp, why: "empty"}
	}
	s.noteTier(e.Tier)
	if e.Kind == kvevents.KindRemoved {
		return s.remove(e)
	}
	return s.store(e)
}

func (s *Session) clear() outcome {
	s.tally.resets[ResetClear]++
	s.dropParked()
	s.clearMirror()
	s.complete = true
	return outcome{verb: outcomeClear}
}

// otherGroup reports whether the event belongs to a cache group that does not
// cover every token, and remembers what the event says about that.
func (s *Session) otherGroup(e *kvevents.Event) bool {
	const maxGroups = 1024
	dense, stated := e.Dense()
	if !stated {
		known, listed := s.engine.dense[e.Group]
		return e.HasGroup && (listed && !known || !listed && e.Group != 0)
	}
	if e.HasGroup && len(s.engine.dense) < maxGroups {
		s.engine.dense[e.Group] = dense
	}
	return !dense
}

// noteTier ends the assumption that removals move blocks to a silent tier as
// soon as another tier speaks.
func (s *Session) noteTier(tier kvevents.Tier) {
	if tier == kvevents.TierT1 || s.engine.tierEvents {
		return
	}
	s.engine.tierEvents = true
	if s.config.IgnoreBlockRemoved {
		s.mirror.dropAssumed()
	}
}

func (s *Session) remove(e *kvevents.Event) outcome {
	known := false
	assume := s.config.IgnoreBlockRemoved && !s.engine.tierEvents
	for _, hash := range e.Hashes {
		known = s.mirror.remove(hash, groupOf(e), !e.HasGroup, e.Tier, assume) ||
			s.cancelParked(hash, e) || known
	}
	if !known {
		return outcome{verb: outcomeNoOp, why: "unknown_hash"}
	}
	return outcome{verb: outcomeRemove}
}

// groupOf folds the group into the range the mirror keeps; no engine has more.
func groupOf(e *kvevents.Event) int32 {
	return int32(max(math.MinInt32, min(e.Group, math.MaxInt32)))
}

func (s *Session) store(e *kvevents.Event) outcome {
	if s.config.LoRAUnattributable {
		return skip(kvevents.ReasonUnattributable)
	}
	s.engine.hashForm = "int"
	if e.HashBytes {
		s.engine.hashForm = "bytes"
	}
	if e.Placeholder() {
		return s.storePlaceholder(e)
	}
	if reason := s.checkBlockSize(e); reason != kvevents.ReasonNone {
		return skip(reason)
	}
	adapter, ok := s.mirror.adapterID(e.Adapter)
	if !ok {
		return skip(kvevents.ReasonUnmappedLoRA)
	}
	r := storedRun{
		hashes: e.Hashes, parent: e.Parent, hasParent: e.HasParent,
		multimodal: e.Multimodal, adapter: adapter, group: groupOf(e), tier: e.Tier,
		root: fingerprint.SaltParent(e.Salt), blockSize: int32(e.BlockSize),
	}
	if e.SaltStated {
		r.salt = r.root.Key
	}
	s.contents = appendContents(s.contents[:0], e.Tokens, e.BlockSize)
	r.contents = s.contents
	result := s.chain(&r)
	if result.verb == outcomePark {
		result = s.park(&r)
	}
	if result.verb == outcomePark || result.added() {
		s.engine.blockSize, s.engine.sizeRefusals, s.engine.accepted = e.BlockSize, 0, true
	}
	if result.added() {
		s.unpark(r.hashes)
	}
	return result
}

func appendContents(dst []uint64, tokens []uint32, blockSize int) []uint64 {
	for ; len(tokens) >= blockSize; tokens = tokens[blockSize:] {
		dst = append(dst, fingerprint.Content(tokens[:blockSize]))
	}
	return dst
}

// storePlaceholder adds a tier to the hashes that are known.
func (s *Session) storePlaceholder(e *kvevents.Event) outcome {
	known := false
	for _, hash := range e.Hashes {
		known = s.mirror.copyTier(hash, groupOf(e), e.Tier) || known
	}
	if !known {
		return skip(kvevents.ReasonPlaceholder)
	}
	return outcome{verb: outcomeTierAdd}
}

// checkBlockSize refuses stores whose blocks cannot be compared with the
// others of this engine.
func (s *Session) checkBlockSize(e *kvevents.Event) kvevents.Reason {
	known := s.engine.blockSize
	switch {
	case e.BlockSize < s.config.MinBlockSize:
		return kvevents.ReasonBlockSizeTooSmall
	case known == 0 || e.BlockSize == known:
		return kvevents.ReasonNone
	}
	s.engine.otherBlockSize = e.BlockSize
	partial := e.BlockSize < known && len(e.Hashes) == 1
	// Partial blocks are normal beside full ones, but not on their own.
	if !partial || !s.engine.accepted {
		s.engine.sizeRefusals++
	}
	if partial {
		return kvevents.ReasonPartial
	}
	return kvevents.ReasonBlockSizeMismatch
}
