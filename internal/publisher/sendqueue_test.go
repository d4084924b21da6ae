// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

func pushDeltas(q *sendQueue, n int) {
	for range n {
		q.push(&pb.PublisherFrame{}, 10, true)
	}
}

func sendAll(q *sendQueue, window int) (sequences []uint64) {
	for {
		frame := q.next(window, time.Time{})
		if frame == nil {
			return sequences
		}
		sequences = append(sequences, frame.GetSequence())
	}
}

func TestSendQueue(t *testing.T) {
	ignore := func(queuedFrame) {}
	tests := map[string]struct {
		do   func(q *sendQueue) []uint64
		want []uint64
	}{
		"frames go out in order within the window": {
			do:   func(q *sendQueue) []uint64 { pushDeltas(q, 5); return sendAll(q, 3) },
			want: []uint64{1, 2, 3},
		},
		"an acknowledgement opens the window": {
			do: func(q *sendQueue) []uint64 {
				pushDeltas(q, 5)
				sendAll(q, 3)
				q.ack(2, ignore)
				return sendAll(q, 3)
			},
			want: []uint64{4, 5},
		},
		"an acknowledgement of a frame never sent is ignored": {
			do: func(q *sendQueue) []uint64 {
				pushDeltas(q, 5)
				sendAll(q, 2)
				q.ack(4, ignore)
				return sendAll(q, 2)
			},
		},
		"resuming sends what the server lacks again": {
			do: func(q *sendQueue) []uint64 {
				pushDeltas(q, 5)
				sendAll(q, 4)
				q.ack(1, ignore)
				if !q.resume(2) {
					return nil
				}
				return sendAll(q, 10)
			},
			want: []uint64{3, 4, 5},
		},
		"resuming with nothing queued": {
			do: func(q *sendQueue) []uint64 {
				pushDeltas(q, 2)
				sendAll(q, 9)
				q.ack(2, ignore)
				if !q.resume(2) {
					return nil
				}
				pushDeltas(q, 1)
				return sendAll(q, 9)
			},
			want: []uint64{3},
		},
		"numbers of frames nobody saw are used again after a clear": {
			do: func(q *sendQueue) []uint64 {
				pushDeltas(q, 5)
				sendAll(q, 2)
				q.clear()
				pushDeltas(q, 2)
				return sendAll(q, 9)
			},
			want: []uint64{3, 4},
		},
		"a restart goes on above what the server has seen": {
			do: func(q *sendQueue) []uint64 {
				pushDeltas(q, 2)
				q.restart(7)
				pushDeltas(q, 2)
				return sendAll(q, 2)
			},
			want: []uint64{8, 9},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.do(&sendQueue{})); diff != "" {
				t.Errorf("sequences sent (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSendQueueResumeRefuses(t *testing.T) {
	q := &sendQueue{}
	pushDeltas(q, 5)
	sendAll(q, 9)
	q.ack(3, func(queuedFrame) {})
	if q.resume(2) {
		t.Error("resumed before a frame that is gone")
	}
	if q.resume(6) {
		t.Error("resumed after a frame that was never sent")
	}
	if q.deltaFrames != 2 || q.deltaBlocks != 20 {
		t.Errorf("%d frames and %d blocks queued, want 2 and 20", q.deltaFrames, q.deltaBlocks)
	}
}
