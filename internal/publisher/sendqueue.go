// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"time"

	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// sendQueue holds the data frames one server has not dealt with yet.
//
// Invariants: the sequences of frames are consecutive and end with last; the
// first sent of them were handed to the current stream;
// acked <= sentSequence <= last. The owner synchronises.
type sendQueue struct {
	frames []queuedFrame
	sent   int
	// last is the newest sequence queued, sentSequence the newest one sent on
	// any stream, acked the newest one acknowledged.
	last, sentSequence, acked uint64
	// deltaFrames and deltaBlocks count the deltas in frames.
	deltaFrames, deltaBlocks int
}

type queuedFrame struct {
	frame  *pb.PublisherFrame
	blocks int
	delta  bool
	sentAt time.Time
}

// push numbers frame and puts it at the end.
func (q *sendQueue) push(frame *pb.PublisherFrame, blocks int, delta bool) {
	q.last++
	frame.Sequence = q.last
	q.frames = append(q.frames, queuedFrame{frame: frame, blocks: blocks, delta: delta})
	if delta {
		q.deltaFrames++
		q.deltaBlocks += blocks
	}
}

// next returns the first unsent frame while fewer than window frames are
// unacknowledged, else nil.
func (q *sendQueue) next(window int, now time.Time) *pb.PublisherFrame {
	if q.sent == len(q.frames) || q.sentSequence-q.acked >= uint64(window) {
		return nil
	}
	entry := &q.frames[q.sent]
	entry.sentAt = now
	q.sent++
	q.sentSequence = entry.frame.GetSequence()
	return entry.frame
}

// ack forgets all sent frames up to sequence and calls each with them.
func (q *sendQueue) ack(sequence uint64, each func(queuedFrame)) {
	if sequence <= q.acked || sequence > q.sentSequence {
		return
	}
	q.acked = sequence
	for q.sent > 0 && q.frames[0].frame.GetSequence() <= sequence {
		each(q.frames[0])
		q.pop()
	}
}

func (q *sendQueue) pop() {
	entry := q.frames[0]
	q.frames[0] = queuedFrame{}
	q.frames = q.frames[1:]
	if q.sent > 0 {
		q.sent--
	}
	if entry.delta {
		q.deltaFrames--
		q.deltaBlocks -= entry.blocks
	}
}

// clear drops every frame. Sequences of frames nobody has seen are used again.
func (q *sendQueue) clear() {
	q.frames, q.sent, q.deltaFrames, q.deltaBlocks = nil, 0, 0, 0
	q.last = q.sentSequence
}

// restart forgets the streams before a new one whose server has dealt with
// all frames up to sequence: nothing is outstanding, the queue is empty.
func (q *sendQueue) restart(sequence uint64) {
	q.clear()
	q.last = max(q.last, sequence)
	q.sentSequence, q.acked = q.last, q.last
}

// resume arranges that the frame after sequence is the next one sent. It
// returns false, and changes nothing, when that frame is not there.
func (q *sendQueue) resume(sequence uint64) bool {
	first := q.last + 1
	if len(q.frames) > 0 {
		first = q.frames[0].frame.GetSequence()
	}
	if sequence+1 < first || sequence > q.sentSequence {
		return false
	}
	for len(q.frames) > 0 && q.frames[0].frame.GetSequence() <= sequence {
		q.pop()
	}
	q.sent, q.sentSequence, q.acked = 0, sequence, sequence
	return true
}
