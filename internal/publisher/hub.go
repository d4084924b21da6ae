// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"

	"github.com/inferencecache/inference-cache/internal/defaults"
)

// Identity names one replica and one life of its publisher.
type Identity struct {
	Tenant, Model, Scheme, Replica string
	// Rank is the data-parallel rank, RankCount the number of ranks (1
	// without ranks).
	Rank, RankCount int
	// PodUID is empty outside Kubernetes.
	PodUID string
	// Epoch is random per start; StartedAt orders epochs.
	Epoch         uint64
	StartedAt     time.Time
	ClientVersion string
}

// Mirror is what the publisher knows its engine to hold. The hub calls it
// only with its own lock held, the one Publish runs its step under.
type Mirror interface {
	// Snapshot yields everything held, parents before children, until yield
	// returns false. The hub copies what it keeps of a run.
	Snapshot(yield func(*pb.StoredRun) bool)
	// BlockSize is in tokens; 0 while unknown.
	BlockSize() int
	// ViewComplete is false while blocks may be missing from the mirror.
	ViewComplete() bool
	ResidentBlocks() int
}

// Stream is one CacheSync call as its publisher sees it. Send and Recv may run
// at the same time; both return once the context given to Open has ended.
type Stream interface {
	Send(*pb.PublisherFrame) error
	Recv() (*pb.ServerFrame, error)
	CloseSend() error
}

// Target is one server. Open starts a call that lives until ctx ends.
type Target interface {
	// Name is unique among the targets of a hub.
	Name() string
	Open(ctx context.Context) (Stream, error)
}

// LinkState says how far a server is in step with the mirror.
type LinkState string

// States of a link.
const (
	LinkDown     LinkState = "down"
	LinkSnapshot LinkState = "snapshot"
	LinkLive     LinkState = "live"
)

// SnapshotResult says how a snapshot that was begun came out.
type SnapshotResult string

// Results of a snapshot.
const (
	SnapshotApplied    SnapshotResult = "applied"
	SnapshotAborted    SnapshotResult = "aborted"
	SnapshotSuperseded SnapshotResult = "superseded"
)

// HubObserver is told what links do. Its methods are called with a link's lock
// held: they must not block or call the hub.
type HubObserver interface {
	// DeltaAcked is called once per delta frame, with the time from its
	// sending to its acknowledgement.
	DeltaAcked(time.Duration)
	// QueueOverflowed is called when a link gives up its queue.
	QueueOverflowed()
	SnapshotEnded(SnapshotResult)
}

// HubOptions tunes a Hub. Its zero value works.
type HubOptions struct {
	// QueueFrames bounds the delta frames one link holds, sent and not yet
	// acknowledged ones included. Default 4096.
	QueueFrames int
	// QueueBlocks bounds the block keys in them. Default 524288.
	QueueBlocks int
	// ChunkBlocks is the most block keys put into one snapshot frame; a
	// server may ask for fewer. Default 8192.
	ChunkBlocks int
	// BackoffMin and BackoffMax bound the wait between two attempts to
	// connect, and between two snapshots on one connection.
	// Defaults 100ms and 5s.
	BackoffMin, BackoffMax time.Duration
	// WelcomeTimeout bounds the wait for the server's answer to hello.
	// Default 5s.
	WelcomeTimeout time.Duration
	// SilenceTimeout is how long a server may send nothing at all before the
	// connection counts as dead. Default 10s.
	SilenceTimeout time.Duration
	// CloseTimeout bounds the farewell when Run's context ends. Default 500ms.
	CloseTimeout time.Duration
	// GoneAtEnd says that the replica ends with Run, so that servers drop at
	// once what they hold of it. Default false: that ages.
	GoneAtEnd bool
	// Now is the clock for timestamps. Default time.Now.
	Now func() time.Time
	// Jitter returns a number in [0, 1). Default math/rand.
	Jitter func() float64
	// Observer may be nil.
	Observer HubObserver
	// Logger is silent when nil.
	Logger *slog.Logger
}

func (o HubOptions) withDefaults() HubOptions {
	defaults.Positive(&o.QueueFrames, 4096)
	defaults.Positive(&o.QueueBlocks, 524_288)
	defaults.Positive(&o.ChunkBlocks, 8192)
	defaults.Positive(&o.BackoffMin, 100*time.Millisecond)
	defaults.Positive(&o.BackoffMax, 5*time.Second)
	defaults.Positive(&o.WelcomeTimeout, 5*time.Second)
	defaults.Positive(&o.SilenceTimeout, 10*time.Second)
	defaults.Positive(&o.CloseTimeout, 500*time.Millisecond)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Jitter == nil {
		o.Jitter = rand.Float64
	}
	if o.Observer == nil {
		o.Observer = silentObserver{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

type silentObserver struct{}

func (silentObserver) DeltaAcked(time.Duration)     {}
func (silentObserver) QueueOverflowed()             {}
func (silentObserver) SnapshotEnded(SnapshotResult) {}

// Hub keeps every target equal to one replica's mirror. Links are independent:
// a server that is slow or away holds up neither Publish nor other servers.
type Hub struct {
	identity Identity
	options  HubOptions

	// mu guards the mirror and fixes the order in which links are given
	// deltas. It is taken before any link.mu and never held across I/O.
	mu      sync.Mutex
	mirror  Mirror
	stats   *pb.SyncStats
	targets []Target
	links   map[string]*link
	// changed holds a token after SetTargets.
	changed chan struct{}
}

// NewHub returns a hub whose links start with Run.
func NewHub(identity Identity, mirror Mirror, targets []Target, options HubOptions) *Hub {
	return &Hub{
		identity: identity,
		options:  options.withDefaults(),
		mirror:   mirror,
		targets:  targets,
		links:    make(map[string]*link),
		changed:  make(chan struct{}, 1),
	}
}

// Publish runs step, which may change the mirror, and queues the deltas it
// returns on every link. It never blocks on I/O. The deltas belong to the hub
// from then on and must not change.
func (h *Hub) Publish(step func() []*pb.SyncDelta) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, delta := range step() {
		if len(delta.GetOps()) == 0 {
			continue
		}
		blocks, bytes := deltaSize(delta)
		for _, l := range h.links {
			l.enqueue(delta, blocks, bytes)
		}
	}
}

// PublishStats sends the replica's load to every server, now and after each
// reconnect. Only the newest value is kept.
func (h *Hub) PublishStats(stats *pb.ReplicaStats, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stats = &pb.SyncStats{TimestampUs: at.UnixMicro(), Stats: stats}
	for _, l := range h.links {
		l.setStats(h.stats)
	}
}

// SetTargets replaces the servers. Links to targets of the same name go on
// undisturbed.
func (h *Hub) SetTargets(targets []Target) {
	h.mu.Lock()
	h.targets = targets
	h.mu.Unlock()
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// errTargetLeft ends the link to a server that SetTargets leaves out.
var errTargetLeft = errors.New("the server is no longer a target")

// Run keeps the links up until ctx ends, then takes leave of every server
// within HubOptions.CloseTimeout and returns nil. It is called once.
func (h *Hub) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	cancels := make(map[string]context.CancelCauseFunc)
	defer func() {
		for _, cancel := range cancels {
			cancel(nil)
		}
	}()
	for {
		started, gone := h.adoptTargets()
		for _, name := range gone {
			cancels[name](errTargetLeft)
			delete(cancels, name)
		}
		for _, l := range started {
			linkCtx, cancel := context.WithCancelCause(ctx)
			cancels[l.target.Name()] = cancel
			running.Go(func() { l.run(linkCtx) })
		}
		select {
		case <-ctx.Done():
			return nil
		case <-h.changed:
		}
	}
}

// adoptTargets brings the set of links in line with the targets.
func (h *Hub) adoptTargets() (started []*link, gone []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	wanted := make(map[string]bool, len(h.targets))
	for _, target := range h.targets {
		name := target.Name()
		wanted[name] = true
		if h.links[name] == nil {
			l := newLink(h, target)
			l.setStats(h.stats)
			h.links[name] = l
			started = append(started, l)
		}
	}
	for name := range h.links {
		if !wanted[name] {
			delete(h.links, name)
			gone = append(gone, name)
		}
	}
	return started, gone
}

// LinkStatus is one link as an operator sees it.
type LinkStatus struct {
	Target      string
	State       LinkState
	Since       time.Time
	ServerEpoch string
	// QueueFrames and QueueBlocks count deltas not yet acknowledged.
	QueueFrames, QueueBlocks int
	// Sequence is the newest data frame's, Acked the newest acknowledged one.
	Sequence, Acked uint64
	// DroppedParts counts what the server refused in this session.
	DroppedParts uint64
	Overflows    uint64
	// LastError is why the last connection ended; empty if none did.
	LastError string
}

// Status reports every link, in no order.
func (h *Hub) Status() []LinkStatus {
	h.mu.Lock()
	defer h.mu.Unlock()
	statuses := make([]LinkStatus, 0, len(h.links))
	for _, l := range h.links {
		statuses = append(statuses, l.status())
	}
	return statuses
}
