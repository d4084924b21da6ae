// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/inferencecache/inference-cache/internal/index"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// farewellPatience bounds the sending of last frames to a publisher.
const farewellPatience = time.Second

// pauseSlice is how often a stream that has to wait is looked at.
const pauseSlice = time.Second

// phase says which data frames a stream may send next.
type phase int

const (
	// awaiting: only a SnapshotBegin counts, other data frames are passed over.
	awaiting phase = iota
	// staging: the chunks or the end of a snapshot.
	staging
	// following: deltas, or a new snapshot.
	following
)

// conn is one stream of a session. Its handler's goroutine owns all fields
// below the channels.
type conn struct {
	server *SyncServer
	out    *outbox
	frames <-chan received
	// ended is closed with the stream's context.
	ended <-chan struct{}
	// superseded is closed when another stream wants the session, left when
	// this one has given it up.
	superseded    chan struct{}
	supersedeOnce sync.Once
	left          chan struct{}
	resyncs       chan ResyncReason

	session  *session
	scope    index.Scope
	replica  string
	log      *slog.Logger
	phase    phase
	received uint64
	gone     bool
	// bounded is set when the replica is held to Options.Limits.
	bounded bool
	// floorMillis is the earliest effective time of what comes next: effective
	// times never fall within a session.
	floorMillis int64
	heardMillis int64

	snapshot      *index.Snapshot
	snapshotAt    int64
	snapshotBegan time.Time
	stagedBlocks  uint64
}

func newConn(ctx context.Context, s *SyncServer, frames <-chan received) *conn {
	return &conn{
		server:     s,
		frames:     frames,
		ended:      ctx.Done(),
		bounded:    s.options.Limits.bounds(ctx),
		superseded: make(chan struct{}),
		left:       make(chan struct{}),
		resyncs:    make(chan ResyncReason, 1),
	}
}

func (c *conn) supersede() { c.supersedeOnce.Do(func() { close(c.superseded) }) }

// enter begins the session that a admitted and welcomes the publisher.
func (c *conn) enter(hello *pb.SyncHello, a admission) {
	c.session = a.session
	c.scope, c.replica = a.session.key.scope, a.session.key.replica
	c.received = a.received
	options := &c.server.options
	c.log = options.Logger.With("tenant", c.scope.Tenant, "model", c.scope.Model,
		"scheme", c.scope.Scheme, "replica", c.replica)
	now := options.Now().UnixMilli()
	if a.void {
		c.clear(now)
	}
	c.server.index.SessionUp(c.scope, c.replica, now)
	c.session.beatMillis.Store(now)
	if a.resume {
		c.phase = following
	} else {
		c.server.options.Metrics.resyncs.WithLabelValues(string(a.reason)).Inc()
	}
	c.log.Info("sync session begins", "resume", a.resume, "reason", a.reason,
		"client_version", hello.GetClientVersion())
	c.out.send(&pb.ServerFrame{Frame: &pb.ServerFrame_Welcome{Welcome: &pb.SyncWelcome{
		ProtocolVersion:     ProtocolVersion,
		ServerEpoch:         options.Epoch,
		NeedSnapshot:        !a.resume,
		ResumeSequence:      c.received,
		HeartbeatIntervalMs: int32(options.HeartbeatInterval.Milliseconds()),
		WindowFrames:        int32(options.WindowFrames),
		MaxBlocksPerFrame:   int32(options.MaxKeys),
	}}})
}

// leave ends the session's stream; its memberships age from here on.
func (c *conn) leave() {
	c.dropSnapshot(snapshotAborted)
	c.server.index.SessionDown(c.scope, c.replica, c.server.options.Now().UnixMilli())
	c.server.registry.release(c.session, c.received, c.phase == following, c.gone)
	close(c.left)
	c.log.Info("sync session ends", "sequence", c.received, "replica_gone", c.gone)
}

func (c *conn) serve() error {
	silence := time.NewTimer(c.server.options.SilenceTimeout)
	defer silence.Stop()
	pause := time.NewTimer(0)
	defer pause.Stop()
	var frames <-chan received // nil while the publisher has to wait
	ended := c.ended           // nil while it has not
	for {
		select {
		case r := <-frames:
			if r.err != nil {
				if errors.Is(r.err, io.EOF) {
					return nil
				}
				return r.err
			}
			silence.Reset(c.server.options.SilenceTimeout)
			reject, end := c.handle(r.frame)
			if reject != nil {
				c.out.send(rejectFrame(reject))
			}
			if reject != nil || end {
				return nil
			}
			if wait := c.debt(); wait > 0 {
				frames, ended = nil, c.ended
				pause.Reset(min(wait, pauseSlice))
				c.server.options.Metrics.throttled.Inc()
			}
		case <-pause.C:
			if wait := c.debt(); wait > 0 {
				c.waited()
				silence.Reset(c.server.options.SilenceTimeout)
				pause.Reset(min(wait, pauseSlice))
				continue
			}
			frames, ended = c.frames, nil
		case <-ended:
			return status.Error(codes.Canceled, "publisher is gone")
		case reason := <-c.resyncs:
			if c.phase == following {
				c.requestResync(reason)
			}
		case <-c.superseded:
			c.out.send(rejectFrame(&pb.SyncReject{Reason: rejectSuperseded}))
			return nil
		case <-silence.C:
			return status.Error(codes.Unavailable, "publisher is silent")
		case <-c.server.draining:
			return errDraining
		}
	}
}

// debt is how long the publisher has to wait.
func (c *conn) debt() time.Duration {
	if !c.bounded {
		return 0
	}
	return c.server.options.Limits.debt(c.scope.Tenant, c.replica)
}

// waited counts as a sign of life: only the server keeps the publisher quiet.
func (c *conn) waited() {
	c.heard()
	c.session.beatMillis.Store(c.server.options.Now().UnixMilli())
}

// handle processes one frame. end is set when the publisher took leave.
func (c *conn) handle(frame *pb.PublisherFrame) (reject *pb.SyncReject, end bool) {
	c.heard()
	switch f := frame.GetFrame().(type) {
	case *pb.PublisherFrame_Hello:
		return &pb.SyncReject{Reason: rejectBadHello, Message: "hello was sent twice"}, false
	case *pb.PublisherFrame_Heartbeat:
		c.heartbeat(frame.GetSequence(), f.Heartbeat)
	case *pb.PublisherFrame_Stats:
		c.stats(f.Stats)
	case *pb.PublisherFrame_Goodbye:
		c.goodbye(f.Goodbye)
		return nil, true
	case *pb.PublisherFrame_SnapshotBegin, *pb.PublisherFrame_SnapshotChunk,
		*pb.PublisherFrame_SnapshotEnd, *pb.PublisherFrame_Delta:
		return c.data(frame), false
	}
	return nil, false
}

// heard feeds the silent-replica rule, at most once a second.
func (c *conn) heard() {
	now := c.server.options.Now().UnixMilli()
	if now-c.heardMillis >= 1000 {
		c.heardMillis = now
		c.server.index.Heard(c.scope.Tenant, c.scope.Model, c.replica, now)
	}
}

func (c *conn) heartbeat(sequence uint64, beat *pb.SyncHeartbeat) {
	now := c.server.options.Now().UnixMilli()
	if sequence > c.received && c.phase != awaiting {
		c.gap(sequence)
	}
	if c.phase == following {
		c.server.index.Heartbeat(c.scope, c.replica, now)
		c.floorMillis = max(c.floorMillis, now)
	}
	c.session.beatMillis.Store(now)
	c.session.resident.Store(int64(min(beat.GetResidentBlocks(), 1<<62)))
	c.session.viewComplete.Store(beat.GetViewComplete())
	c.server.registry.setBlockSize(c.session, beat.GetBlockSize())
	c.out.ack(c.received, 0)
}

func (c *conn) stats(frame *pb.SyncStats) {
	if frame.GetStats() == nil {
		return
	}
	m := c.server.metrics
	m.update("stats")
	now := c.server.options.Now()
	at, oddity := clampTime(frame.GetTimestampUs(), now.UnixMilli())
	if oddity != "" {
		m.drop(oddity)
	}
	c.server.index.SetStats(c.scope.Tenant, c.scope.Model, c.replica, statsOf(frame.GetStats(), at))
}

func (c *conn) goodbye(frame *pb.SyncGoodbye) {
	if !frame.GetReplicaGone() {
		return
	}
	c.gone = true
	add(c.server.metrics.clear, c.server.index.ClearReplica(c.scope.Tenant, c.scope.Model, c.replica))
}

// clear removes all that the replica holds in the scope.
func (c *conn) clear(nowMillis int64) {
	c.apply(nowMillis, nowMillis, []index.Op{{Kind: index.OpClear}})
}

// requestResync asks for a snapshot and passes over all frames before it.
func (c *conn) requestResync(reason ResyncReason) {
	c.dropSnapshot(snapshotAborted)
	c.phase = awaiting
	c.server.registry.setState(c.session, SessionSnapshot)
	c.server.options.Metrics.resyncs.WithLabelValues(string(reason)).Inc()
	c.out.requestResync(reason)
	c.log.Info("resync requested", "reason", reason)
}

func (c *conn) gap(sequence uint64) {
	metrics := c.server.options.Metrics
	metrics.gaps.Inc()
	missed := sequence - c.received
	metrics.missedFrames.Add(float64(missed))
	c.log.Warn("gap in sync sequence", "received", c.received, "missed_frames", missed)
	c.requestResync(ResyncGap)
}
