// SPDX-License-Identifier: Apache-2.0

package ingest_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// The sizes documented in docs/protocols/cache-sync.md.
func TestFrameSizes(t *testing.T) {
	const timestampUs = 1_790_000_000_000_000
	run := func(n int) *pb.StoredRun {
		keys := make([]uint64, n)
		for i := range keys {
			keys[i] = 0xea06fc71a5ee6e88
		}
		return storedRun(keys...)
	}
	oneDelta := func(op *pb.SyncOp) *pb.PublisherFrame {
		frame := delta(1000, op)
		frame.GetDelta().TimestampUs = timestampUs
		return frame
	}
	beat := heartbeat(1000, 16)
	beat.GetHeartbeat().TimestampUs = timestampUs
	beat.GetHeartbeat().ResidentBlocks = 10_000
	beat.GetHeartbeat().ViewComplete = true
	tests := map[string]struct {
		frame proto.Message
		want  int
	}{
		"delta storing 1 block":   {oneDelta(store(run(1))), 34},
		"delta storing 64 blocks": {oneDelta(store(run(64))), 542},
		"delta removing 1 block":  {oneDelta(remove(0xea06fc71a5ee6e88)), 28},
		"snapshot chunk of 8192":  {chunk(1000, run(8192)), 65557},
		"heartbeat":               {beat, 21},
		"acknowledgement":         {&pb.ServerFrame{Frame: &pb.ServerFrame_Ack{Ack: &pb.SyncAck{Sequence: 1000, WindowFrames: 256}}}, 8},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := proto.Size(tc.frame); got != tc.want {
				t.Errorf("%d bytes, documented as %d", got, tc.want)
			}
		})
	}
}
