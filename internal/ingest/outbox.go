// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"sync"
	"time"

	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// outbox sends a stream's server frames on a goroutine of its own, so that a
// publisher that does not read delays nobody. Its size is bounded:
// acknowledgements merge into one, and one resync request waits at most.
type outbox struct {
	window int32
	// wake holds a token when something was put in.
	wake chan struct{}
	// finished is closed when the goroutine has ended.
	finished chan struct{}

	mu      sync.Mutex
	control []*pb.ServerFrame
	resync  *pb.ServerFrame
	ackDue  bool
	acked   uint64
	dropped uint64
	closed  bool
}

func newOutbox(stream pb.CacheSync_SyncServer, window int) *outbox {
	o := &outbox{window: int32(window), wake: make(chan struct{}, 1), finished: make(chan struct{})}
	go o.run(stream)
	return o
}

func (o *outbox) run(stream pb.CacheSync_SyncServer) {
	defer close(o.finished)
	for {
		frame, closed := o.next()
		if frame == nil {
			if closed {
				return
			}
			<-o.wake
			continue
		}
		if stream.Send(frame) != nil {
			return
		}
	}
}

func (o *outbox) next() (frame *pb.ServerFrame, closed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case len(o.control) > 0:
		frame, o.control = o.control[0], o.control[1:]
	case o.resync != nil:
		frame, o.resync = o.resync, nil
	case o.ackDue:
		frame = &pb.ServerFrame{Frame: &pb.ServerFrame_Ack{Ack: &pb.SyncAck{
			Sequence: o.acked, WindowFrames: o.window, DroppedParts: o.dropped,
		}}}
		o.ackDue, o.dropped = false, 0
	}
	return frame, o.closed
}

func (o *outbox) put(change func()) {
	o.mu.Lock()
	change()
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// send queues a frame that goes before any acknowledgement. A stream needs
// two at most: welcome and reject.
func (o *outbox) send(frame *pb.ServerFrame) {
	o.put(func() { o.control = append(o.control, frame) })
}

func (o *outbox) requestResync(reason ResyncReason) {
	o.put(func() {
		o.resync = &pb.ServerFrame{Frame: &pb.ServerFrame_Resync{Resync: &pb.SyncResync{Reason: string(reason)}}}
	})
}

// ack acknowledges all data frames up to sequence.
func (o *outbox) ack(sequence uint64, dropped int) {
	o.put(func() {
		o.ackDue, o.acked = true, sequence
		o.dropped += uint64(dropped)
	})
}

// close sends what is left, waiting no longer than patience. The end of the
// handler unblocks a send that still hangs.
func (o *outbox) close(patience time.Duration) {
	o.put(func() { o.closed = true })
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case <-o.finished:
	case <-timeout.C:
	}
}
