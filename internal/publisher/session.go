// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"time"

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
	// MaxBlocks bounds the mirror, default 16777216.
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
type Session struct {
	config SessionConfig
}

// NewSession returns a session that has not been connected yet.
func NewSession(config SessionConfig) *Session { return &Session{config: config} }

// Connected tells that the event socket is up, for the first time or again.
func (s *Session) Connected(now time.Time) Step { return Step{} }

// Disconnected tells that the event socket is down.
func (s *Session) Disconnected(now time.Time) {}

// Live takes a batch from the event socket. The session may keep payload.
func (s *Session) Live(sequence uint64, payload []byte, now time.Time) Step { return Step{} }

// Replayed takes a batch of the replay that the last Step asked for.
func (s *Session) Replayed(sequence uint64, payload []byte, now time.Time) Step { return Step{} }

// ReplayDone ends that replay. Batches held back meanwhile are applied.
func (s *Session) ReplayDone(result ReplayResult, now time.Time) Step { return Step{} }

// BadFrame counts a message that kvevents could not split into frames.
func (s *Session) BadFrame() {}

// LearnBlockSize takes the size the engine states elsewhere. It has no effect
// once a size is known.
func (s *Session) LearnBlockSize(tokens int) {}

// Snapshot yields everything reported to servers, parents before children,
// until yield returns false. Runs may be kept.
func (s *Session) Snapshot(yield func(*pb.StoredRun) bool) {}

// BlockSize returns the tokens per block; 0 is unknown.
func (s *Session) BlockSize() int { return 0 }

// ViewComplete returns whether the mirror is known to equal the engine.
func (s *Session) ViewComplete() bool { return false }

// ResidentBlocks returns how many blocks Snapshot yields.
func (s *Session) ResidentBlocks() int { return 0 }

// Status reports counters and state.
func (s *Session) Status() Status { return Status{} }
