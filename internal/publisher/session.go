// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"cmp"
	"time"

	"github.com/inferencecache/inference-cache/internal/kvevents"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// SessionConfig describes one engine rank. The zero value follows a vLLM
// engine without replay.
type SessionConfig struct {
	// Scheme is the engine's hash scheme, default "vllm".
	Scheme string
	// BlockSize refuses stores of any other size; 0 learns it from the first
	// accepted store.
	BlockSize int
	// MinBlockSize is the smallest block size that is reported, default 2.
	MinBlockSize int
	// HasReplay says that replays can be asked for, default false.
	HasReplay bool
	// OnGap is the policy for gaps no replay fills, default GapSuspect.
	OnGap GapPolicy
	// ParkedBlocks bounds the blocks that wait for their parent, default 65536.
	ParkedBlocks int
	// MaxBlocks bounds the mirror, default 4194304. A block takes about
	// 100 bytes.
	MaxBlocks int
	// Rank is compared with the rank that batches name; it is unknown unless
	// HasRank is set.
	Rank    int
	HasRank bool
	// LoRAIDs names adapters of engines that only send a number, default none.
	LoRAIDs map[int64]string
	// LoRAUnattributable skips every store: the engine serves adapters but
	// does not name them, default false.
	LoRAUnattributable bool
	// IgnoreBlockRemoved turns a removal from T1 into a move to T2, for an
	// offload tier that announces nothing, default false. It has no effect
	// once an event of another tier was seen.
	IgnoreBlockRemoved bool
	// HiddenIdentity is the policy for keys with two hashes, default
	// HiddenIdentityCount.
	HiddenIdentity HiddenIdentityPolicy
	// Copies overrides how copies are counted, default by scheme.
	Copies CopyCounting
}

// Session turns the batches of one engine rank into deltas and keeps the
// mirror of what the engine holds. It does no I/O and reads no clock. It is
// not safe for concurrent use.
//
// Sequences: next is the sequence to be applied next. While a replay is
// pending, live batches are held and applied after it. live remembers the
// last batch of this connection, recent the last batches applied; together
// they tell duplicates, overlaps with a replay, gaps and restarts apart.
type Session struct {
	config  SessionConfig
	decoder *kvevents.Decoder
	mirror  *mirror
	parked  parkingLot
	out     opList
	deltas  []*pb.SyncDelta

	connected bool
	hasNext   bool
	next      uint64
	// first is the sequence the mirror was built from.
	first uint64
	// gapBefore is the batch that showed the last gap.
	gapBefore uint64
	live      mark
	recent    recentBatches
	replay    replayState
	held      []wireBatch
	// heldBytes is the sum of the payloads in held.
	heldBytes int
	// complete says that nothing is known to be missing from the mirror.
	complete bool
	// suspectUntil is when suspect blocks are forgotten, from slot suspectHand.
	suspectUntil time.Time
	suspectHand  uint32
	restarts     []time.Time // at most the last three

	engine   engineFacts
	tally    tally
	lastTime int64 // timestamp of the last delta, Unix microseconds

	contents []uint64 // scratch
	// observe sees the outcome of every event; nil outside tests.
	observe func(outcome)
}

// mark is a batch by sequence and payload hash.
type mark struct {
	sequence, hash uint64
	set            bool
}

// engineFacts is what was learned from this engine process.
type engineFacts struct {
	blockSize, otherBlockSize int
	// sizeRefusals counts stores of another block size in a row.
	sizeRefusals int
	// accepted says that a store of the known size was seen.
	accepted bool
	hashForm string
	// tierEvents says that an event outside engine memory was seen.
	tierEvents bool
	// dense says which cache groups cover every token.
	dense map[int64]bool
}

// NewSession returns a session that has not been connected yet.
func NewSession(config SessionConfig) *Session {
	config = config.withDefaults()
	s := &Session{
		config:  config,
		decoder: kvevents.NewDecoder(kvevents.Options{LoRAIDs: config.LoRAIDs}),
		parked:  newParkingLot(config.ParkedBlocks),
		tally:   newTally(),
	}
	s.mirror = newMirror(&s.out, config.Copies == CopiesOnce, config.MaxBlocks)
	s.engine = s.freshFacts()
	return s
}

func (c SessionConfig) withDefaults() SessionConfig {
	c.Scheme = cmp.Or(c.Scheme, "vllm")
	c.MinBlockSize = cmp.Or(c.MinBlockSize, 2)
	c.ParkedBlocks = cmp.Or(c.ParkedBlocks, 65536)
	c.MaxBlocks = cmp.Or(c.MaxBlocks, 1<<22)
	c.OnGap = cmp.Or(c.OnGap, GapSuspect)
	c.HiddenIdentity = cmp.Or(c.HiddenIdentity, HiddenIdentityCount)
	if c.Copies == CopiesByScheme {
		c.Copies = CopiesEach
		switch c.Scheme {
		case "sglang", "tensorrt-llm", "mooncake":
			c.Copies = CopiesOnce
		}
	}
	return c
}

func (s *Session) freshFacts() engineFacts {
	return engineFacts{blockSize: s.config.BlockSize, dense: map[int64]bool{}}
}

// LearnBlockSize takes the size the engine states elsewhere. It has no effect
// once a size is known.
func (s *Session) LearnBlockSize(tokens int) {
	if s.engine.blockSize == 0 && tokens >= s.config.MinBlockSize {
		s.engine.blockSize = tokens
	}
}

// BadFrame counts a message that kvevents could not split into frames.
func (s *Session) BadFrame() {
	s.tally.received++
	s.tally.skipped[kvevents.ReasonBadFrame]++
}

// Reset drops all that is known of the engine, for a cause that its events do
// not show, and rebuilds it from a replay if there is one.
func (s *Session) Reset(cause ResetCause, now time.Time) Step {
	s.drop(cause, now)
	if s.connected && s.canReplay() {
		return s.askReplay(replayAll, 0, cause, now)
	}
	return s.step(cause)
}

// Snapshot yields everything reported to servers, parents before children,
// until yield returns false. Runs may be kept.
func (s *Session) Snapshot(yield func(*pb.StoredRun) bool) { s.mirror.snapshot(yield) }

// BlockSize returns the tokens per block; 0 is unknown.
func (s *Session) BlockSize() int { return s.engine.blockSize }

// ViewComplete returns whether the mirror is known to equal the engine.
func (s *Session) ViewComplete() bool { return s.view() == ViewComplete }

// ResidentBlocks returns how many blocks Snapshot yields.
func (s *Session) ResidentBlocks() int { return s.mirror.reported }

// step hands out what was collected since the last one.
func (s *Session) step(reset ResetCause) Step {
	deltas, newlySkipped := s.deltas, s.tally.newlySkipped
	s.deltas, s.tally.newlySkipped = nil, nil
	return Step{Deltas: deltas, Reset: reset, NewlySkipped: newlySkipped}
}

// flush turns the collected ops into one delta.
func (s *Session) flush(micros int64) {
	s.lastTime = max(s.lastTime, micros)
	if ops := s.out.take(); len(ops) > 0 {
		s.deltas = append(s.deltas, &pb.SyncDelta{TimestampUs: s.lastTime, Ops: ops})
	}
}
