// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"context"
	"crypto/rand"
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

// ProtocolVersion is the CacheSync version spoken here.
const ProtocolVersion = 1

// SyncOptions configures a SyncServer. Its zero value works.
type SyncOptions struct {
	Options
	// MaxSessions bounds the sessions known, lost ones included. Default
	// 16384.
	MaxSessions int
	// MaxSnapshotBlocks bounds the block keys of one snapshot. Default
	// 16777216.
	MaxSnapshotBlocks int
	// WindowFrames is how many data frames a publisher may have
	// unacknowledged. Default 256.
	WindowFrames int
	// HeartbeatInterval is asked of publishers. Default 1s.
	HeartbeatInterval time.Duration
	// SilenceTimeout ends a stream on which nothing arrives. Default 10s.
	SilenceTimeout time.Duration
	// HelloTimeout bounds the wait for hello. Default 5s.
	HelloTimeout time.Duration
	// ResumeTimeout is how long a lost session may be resumed without a
	// snapshot, at most half the tenant's TTL. Default 30s.
	ResumeTimeout time.Duration
	// TakeoverDelay is how long a lost session bars an older incarnation
	// from another pod, whose clock may be behind. Default 10s.
	TakeoverDelay time.Duration
	// SettleMin and SettleQuiet are the conditions of SyncReport.Recovered.
	// Defaults 3s and 1s.
	SettleMin, SettleQuiet time.Duration
	// TTL returns how long a tenant's memberships live without a sign of
	// life; lost sessions are forgotten after it. Default 30m for all.
	TTL func(tenant string) time.Duration
	// Epoch names this server process. Default random.
	Epoch string
	// Logger is silent when nil.
	Logger *slog.Logger
}

func (o SyncOptions) withDefaults() SyncOptions {
	o.Options = o.Options.withDefaults()
	positive(&o.MaxSessions, 16_384)
	positive(&o.MaxSnapshotBlocks, 16<<20)
	positive(&o.WindowFrames, 256)
	positive(&o.HeartbeatInterval, time.Second)
	positive(&o.SilenceTimeout, 10*time.Second)
	positive(&o.HelloTimeout, 5*time.Second)
	positive(&o.ResumeTimeout, 30*time.Second)
	positive(&o.TakeoverDelay, 10*time.Second)
	positive(&o.SettleMin, 3*time.Second)
	positive(&o.SettleQuiet, time.Second)
	if o.TTL == nil {
		o.TTL = func(string) time.Duration { return index.DefaultTTLMillis * time.Millisecond }
	}
	if o.Epoch == "" {
		o.Epoch = rand.Text()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

func positive[T int | time.Duration](value *T, fallback T) {
	if *value <= 0 {
		*value = fallback
	}
}

// SyncServer serves CacheSync: it keeps what the index holds of each replica
// equal to the mirror of its publisher. It is safe for concurrent use.
type SyncServer struct {
	pb.UnimplementedCacheSyncServer

	index    *index.Index
	options  SyncOptions
	metrics  *sourceMetrics
	registry *registry

	drainOnce sync.Once
	draining  chan struct{}
}

var _ pb.CacheSyncServer = (*SyncServer)(nil)

// NewSyncServer returns a SyncServer that writes to x. At most one may share a
// Metrics.
func NewSyncServer(x *index.Index, options SyncOptions) *SyncServer {
	options = options.withDefaults()
	s := &SyncServer{
		index:    x,
		options:  options,
		metrics:  options.Metrics.of(sourceSync),
		registry: newRegistry(options),
		draining: make(chan struct{}),
	}
	if options.Limits != nil {
		options.Limits.announced = s.registry.eachAnnounced
	}
	register(options.Metrics, &syncCollector{server: s})
	return s
}

// Drain ends all streams with UNAVAILABLE and refuses new ones.
func (s *SyncServer) Drain() { s.drainOnce.Do(func() { close(s.draining) }) }

// RequestResync asks the publisher of a live session for a fresh snapshot. It
// returns false when there is no such session.
func (s *SyncServer) RequestResync(scope index.Scope, replica string, reason ResyncReason) bool {
	return s.registry.requestResync(sessionKey{scope, replica}, reason)
}

// RequestAllResyncs does so for every live session and returns their number.
func (s *SyncServer) RequestAllResyncs(reason ResyncReason) int {
	n := 0
	for _, key := range s.registry.attachedKeys() {
		if s.registry.requestResync(key, reason) {
			n++
		}
	}
	return n
}

var errDraining = status.Error(codes.Unavailable, "server is shutting down")

// Sync serves one stream: hello, then frames until the stream ends, goes
// silent or is superseded.
func (s *SyncServer) Sync(stream pb.CacheSync_SyncServer) error {
	defer s.options.Metrics.StreamOpened(StreamSync)()
	returned := make(chan struct{})
	defer close(returned)
	frames := receive(stream, returned)

	hello, err := s.awaitHello(frames)
	if err != nil {
		return err
	}
	if reject := s.checkHello(stream.Context(), hello); reject != nil {
		return stream.Send(rejectFrame(reject))
	}
	c := newConn(stream.Context(), s, frames)
	admission, reject, err := s.registry.attach(stream.Context(), c, hello)
	if err != nil {
		return err
	}
	if reject != nil {
		s.metrics.drop(ReasonIncarnationMismatch)
		return stream.Send(rejectFrame(reject))
	}
	c.out = newOutbox(stream, s.options.WindowFrames)
	defer c.out.close(farewellPatience)
	defer c.leave()
	c.enter(hello, admission)
	return c.serve()
}

// received is a frame or the error that ended the stream.
type received struct {
	frame *pb.PublisherFrame
	err   error
}

// receive reads the stream until it fails or the handler has returned.
func receive(stream pb.CacheSync_SyncServer, returned <-chan struct{}) <-chan received {
	frames := make(chan received, 16)
	go func() {
		for {
			frame, err := stream.Recv()
			select {
			case frames <- received{frame, err}:
			case <-returned:
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return frames
}

func (s *SyncServer) awaitHello(frames <-chan received) (*pb.SyncHello, error) {
	timeout := time.NewTimer(s.options.HelloTimeout)
	defer timeout.Stop()
	select {
	case <-s.draining:
		return nil, errDraining
	case <-timeout.C:
		return nil, status.Error(codes.DeadlineExceeded, "no hello in time")
	case r := <-frames:
		if r.err != nil {
			if errors.Is(r.err, io.EOF) {
				return nil, status.Error(codes.InvalidArgument, "stream closed before hello")
			}
			return nil, r.err
		}
		hello := r.frame.GetHello()
		if hello == nil {
			return nil, status.Error(codes.InvalidArgument, "first frame is not hello")
		}
		return hello, nil
	}
}

// Reasons of rejection.
const (
	rejectVersion          = "protocol_version"
	rejectBadHello         = "bad_hello"
	rejectReservedTenant   = "reserved_tenant"
	rejectOlderIncarnation = "older_incarnation"
	rejectSuperseded       = "superseded"
	rejectLimit            = "limit"
	rejectUnauthorized     = "unauthorized"
)

// checkHello returns nil for a hello that may open a session.
func (s *SyncServer) checkHello(ctx context.Context, h *pb.SyncHello) *pb.SyncReject {
	if h.GetProtocolVersion() != ProtocolVersion {
		return &pb.SyncReject{Reason: rejectVersion, Message: "this server speaks version 1"}
	}
	for _, id := range []struct {
		what, value string
		ifEmpty     Reason
	}{
		{"tenant_id", h.GetTenantId(), ReasonNoTenant},
		{"model_id", h.GetModelId(), ReasonNoModel},
		{"hash_scheme", h.GetHashScheme(), ReasonNoHashScheme},
		{"replica_id", h.GetReplicaId(), ReasonNoReplica},
	} {
		reason := checkID(id.value)
		if id.value == "" {
			reason = id.ifEmpty
		}
		if reason != "" {
			s.metrics.drop(reason)
			return &pb.SyncReject{Reason: rejectBadHello, Message: id.what + ": " + string(reason)}
		}
	}
	if reason := checkID(h.GetIncarnation().GetPodUid()); reason != "" {
		s.metrics.drop(reason)
		return &pb.SyncReject{Reason: rejectBadHello, Message: "pod_uid: " + string(reason)}
	}
	if h.GetIncarnation() == nil || h.GetBlockSize() < 0 {
		return &pb.SyncReject{Reason: rejectBadHello, Message: "incarnation missing or block_size negative"}
	}
	if s.options.ReservedTenant != "" && h.GetTenantId() == s.options.ReservedTenant {
		s.metrics.drop(ReasonReservedTenant)
		return &pb.SyncReject{Reason: rejectReservedTenant}
	}
	w := Write{
		Tenant: h.GetTenantId(), Model: h.GetModelId(), Scheme: h.GetHashScheme(),
		Replica: h.GetReplicaId(), PodUID: h.GetIncarnation().GetPodUid(),
	}
	if err := authorize(ctx, s.options.Authorizer, s.options.Metrics, w); err != nil {
		s.metrics.drop(ReasonUnauthorized)
		return &pb.SyncReject{Reason: rejectUnauthorized, RetryAfterMs: 30_000}
	}
	return nil
}

func rejectFrame(r *pb.SyncReject) *pb.ServerFrame {
	return &pb.ServerFrame{Frame: &pb.ServerFrame_Reject{Reject: r}}
}
