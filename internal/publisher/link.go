// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// What a server is assumed to allow until its welcome says so.
const (
	assumedMaxBlocks = 4096
	assumedWindow    = 1
)

// link keeps one server equal to the mirror. Its run goroutine connects and
// sends; one more per connection receives.
type link struct {
	hub    *Hub
	target Target
	log    *slog.Logger
	// wake holds a token when there may be something to send.
	wake chan struct{}

	// mu guards what follows. It is never held across I/O; hub.mu may be held
	// when it is taken, never the other way round.
	mu    sync.Mutex
	queue sendQueue
	// wantSnapshot is set while the queue cannot bring the server up to date:
	// deltas are not queued, the next snapshot will hold them.
	wantSnapshot bool
	// snapshotEnd is the sequence of the end of the snapshot under way, or 0.
	snapshotEnd uint64
	stats       *pb.SyncStats
	statsUnsent bool

	state        LinkState
	since        time.Time
	serverEpoch  string
	window       int
	maxBlocks    int
	droppedParts uint64
	overflows    uint64
	lastError    string
}

func newLink(h *Hub, target Target) *link {
	return &link{
		hub:          h,
		target:       target,
		log:          h.options.Logger.With("server", target.Name(), "replica", h.identity.Replica),
		wake:         make(chan struct{}, 1),
		wantSnapshot: true,
		state:        LinkDown,
		since:        h.options.Now(),
		window:       assumedWindow,
		maxBlocks:    assumedMaxBlocks,
	}
}

func (l *link) wakeUp() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// enqueue queues a delta. A queue that would grow beyond its bound is given
// up: the mirror already holds the delta, and a snapshot will carry it.
func (l *link) enqueue(delta *pb.SyncDelta, blocks, bytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wantSnapshot {
		return
	}
	options := &l.hub.options
	if l.queue.deltaFrames+1 > options.QueueFrames || l.queue.deltaBlocks+blocks > options.QueueBlocks {
		l.overflows++
		options.Observer.QueueOverflowed()
		l.discardLocked()
		l.wakeUp()
		return
	}
	if blocks <= l.maxBlocks && bytes <= maxFrameBytes {
		l.pushDeltaLocked(delta, blocks)
	} else {
		for _, part := range splitDelta(delta, l.maxBlocks) {
			partBlocks, _ := deltaSize(part)
			l.pushDeltaLocked(part, partBlocks)
		}
	}
	l.wakeUp()
}

func (l *link) pushDeltaLocked(delta *pb.SyncDelta, blocks int) {
	l.queue.push(&pb.PublisherFrame{Frame: &pb.PublisherFrame_Delta{Delta: delta}}, blocks, true)
}

// discardLocked gives up the queue in favour of a snapshot to come.
func (l *link) discardLocked() {
	l.queue.clear()
	l.wantSnapshot = true
	if l.state != LinkDown {
		l.setStateLocked(LinkSnapshot)
	}
	if l.snapshotEnd != 0 {
		l.snapshotEnd = 0
		l.hub.options.Observer.SnapshotEnded(SnapshotSuperseded)
	}
}

func (l *link) setStats(stats *pb.SyncStats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stats, l.statsUnsent = stats, stats != nil
	l.wakeUp()
}

func (l *link) setStateLocked(state LinkState) {
	if l.state != state {
		l.state, l.since = state, l.hub.options.Now()
	}
}

// run connects until ctx ends.
func (l *link) run(ctx context.Context) {
	options := &l.hub.options
	wait := backoff{min: options.BackoffMin, max: options.BackoffMax, jitter: options.Jitter}
	for ctx.Err() == nil {
		started := time.Now()
		err := l.connectOnce(ctx)
		l.disconnected(err)
		if ctx.Err() != nil {
			return
		}
		if time.Since(started) > options.BackoffMax {
			wait.reset()
		}
		delay := wait.next()
		var rejected *rejectedError
		if errors.As(err, &rejected) {
			delay = max(delay, rejected.retryAfter, options.BackoffMax)
		}
		l.log.Warn("sync connection ended", "error", err, "retry_in", delay)
		sleep(ctx, delay)
	}
}

func (l *link) disconnected(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.setStateLocked(LinkDown)
	if err != nil {
		l.lastError = err.Error()
	}
	if l.snapshotEnd != 0 {
		l.snapshotEnd = 0
		l.queue.clear()
		l.wantSnapshot = true
		l.hub.options.Observer.SnapshotEnded(SnapshotAborted)
	}
}

// hello opens a session, offering to resume where the queue allows it.
func (l *link) hello() *pb.SyncHello {
	l.hub.mu.Lock()
	blockSize := l.hub.mirror.BlockSize()
	l.hub.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	identity := &l.hub.identity
	hello := &pb.SyncHello{
		ProtocolVersion: protocolVersion,
		TenantId:        identity.Tenant,
		ModelId:         identity.Model,
		HashScheme:      identity.Scheme,
		ReplicaId:       identity.Replica,
		Incarnation: &pb.SyncIncarnation{
			PodUid:    identity.PodUID,
			Epoch:     identity.Epoch,
			StartedUs: identity.StartedAt.UnixMicro(),
		},
		BlockSize:         int32(blockSize),
		Rank:              int32(identity.Rank),
		RankCount:         int32(max(identity.RankCount, 1)),
		ClientVersion:     identity.ClientVersion,
		ResumeServerEpoch: l.serverEpoch,
	}
	if !l.wantSnapshot {
		hello.ResumeSequence = l.queue.acked
	}
	return hello
}

// welcomed adopts the server's terms and decides where to begin.
func (l *link) welcomed(w *pb.SyncWelcome) error {
	if w.GetProtocolVersion() != protocolVersion {
		return fmt.Errorf("server answers with protocol version %d, want %d", w.GetProtocolVersion(), protocolVersion)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	sameServer := l.serverEpoch == w.GetServerEpoch()
	l.serverEpoch = w.GetServerEpoch()
	l.window = max(int(w.GetWindowFrames()), 1)
	l.maxBlocks = max(int(w.GetMaxBlocksPerFrame()), 1)
	l.droppedParts = 0
	l.statsUnsent = l.stats != nil
	resume := sameServer && !w.GetNeedSnapshot() && !l.wantSnapshot && l.queue.resume(w.GetResumeSequence())
	if resume {
		l.setStateLocked(LinkLive)
		return nil
	}
	l.queue.restart(w.GetResumeSequence())
	l.wantSnapshot = true
	l.setStateLocked(LinkSnapshot)
	return nil
}

// takeSnapshot replaces the queue by a copy of the mirror.
func (l *link) takeSnapshot() {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	mirror := l.hub.mirror
	writer := chunkWriter{maxBlocks: min(l.hub.options.ChunkBlocks, l.maxBlocks)}
	mirror.Snapshot(writer.add)
	l.queue.clear()
	l.queue.push(&pb.PublisherFrame{Frame: &pb.PublisherFrame_SnapshotBegin{SnapshotBegin: &pb.SnapshotBegin{
		TimestampUs:    l.hub.options.Now().UnixMicro(),
		ExpectedBlocks: uint64(writer.blocks),
		ViewComplete:   mirror.ViewComplete(),
	}}}, 0, false)
	for _, chunk := range writer.chunks {
		l.queue.push(&pb.PublisherFrame{Frame: &pb.PublisherFrame_SnapshotChunk{SnapshotChunk: chunk}}, 0, false)
	}
	l.queue.push(&pb.PublisherFrame{Frame: &pb.PublisherFrame_SnapshotEnd{SnapshotEnd: &pb.SnapshotEnd{
		Blocks: uint64(writer.blocks),
	}}}, 0, false)
	l.snapshotEnd = l.queue.last
	l.wantSnapshot = false
}

// nextFrame returns what may be sent now, or nil.
func (l *link) nextFrame() *pb.PublisherFrame {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.statsUnsent {
		l.statsUnsent = false
		return &pb.PublisherFrame{
			Sequence: l.queue.sentSequence,
			Frame:    &pb.PublisherFrame_Stats{Stats: l.stats},
		}
	}
	return l.queue.next(l.window, time.Now())
}

func (l *link) snapshotWanted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wantSnapshot
}

func (l *link) heartbeat() *pb.PublisherFrame {
	l.hub.mu.Lock()
	mirror := l.hub.mirror
	beat := &pb.SyncHeartbeat{
		TimestampUs:    l.hub.options.Now().UnixMicro(),
		ResidentBlocks: uint64(mirror.ResidentBlocks()),
		BlockSize:      int32(mirror.BlockSize()),
		ViewComplete:   mirror.ViewComplete(),
	}
	l.hub.mu.Unlock()
	return l.control(&pb.PublisherFrame{Frame: &pb.PublisherFrame_Heartbeat{Heartbeat: beat}})
}

// control gives a frame that is no data frame its sequence.
func (l *link) control(frame *pb.PublisherFrame) *pb.PublisherFrame {
	l.mu.Lock()
	defer l.mu.Unlock()
	frame.Sequence = l.queue.sentSequence
	return frame
}

func (l *link) acked(ack *pb.SyncAck) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if window := int(ack.GetWindowFrames()); window > 0 {
		l.window = window
	}
	l.droppedParts += ack.GetDroppedParts()
	now := time.Now()
	l.queue.ack(ack.GetSequence(), func(entry queuedFrame) {
		if entry.delta {
			l.hub.options.Observer.DeltaAcked(now.Sub(entry.sentAt))
		}
	})
	if l.snapshotEnd != 0 && l.queue.acked >= l.snapshotEnd {
		l.snapshotEnd = 0
		l.setStateLocked(LinkLive)
		l.hub.options.Observer.SnapshotEnded(SnapshotApplied)
	}
	l.wakeUp()
}

func (l *link) resync(reason string) {
	l.log.Info("server asks for a snapshot", "reason", reason)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.discardLocked()
	l.wakeUp()
}

func (l *link) status() LinkStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return LinkStatus{
		Target:       l.target.Name(),
		State:        l.state,
		Since:        l.since,
		ServerEpoch:  l.serverEpoch,
		QueueFrames:  l.queue.deltaFrames,
		QueueBlocks:  l.queue.deltaBlocks,
		Sequence:     l.queue.last,
		Acked:        l.queue.acked,
		DroppedParts: l.droppedParts,
		Overflows:    l.overflows,
		LastError:    l.lastError,
	}
}
