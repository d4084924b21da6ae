// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// ResyncReason says why a server needs a snapshot.
type ResyncReason string

// Reasons of a resync.
const (
	ResyncServerStart ResyncReason = "server_start"
	ResyncGap         ResyncReason = "gap"
	ResyncIncarnation ResyncReason = "incarnation"
	ResyncOverflow    ResyncReason = "overflow"
	ResyncRequested   ResyncReason = "requested"
	ResyncOperator    ResyncReason = "operator"
)

var resyncReasons = []ResyncReason{
	ResyncServerStart, ResyncGap, ResyncIncarnation, ResyncOverflow, ResyncRequested, ResyncOperator,
}

// SessionState says how far a session is.
type SessionState string

// States of a session. A lost one has no stream while its memberships age.
const (
	SessionSnapshot SessionState = "snapshot"
	SessionLive     SessionState = "live"
	SessionLost     SessionState = "lost"
	// SessionGone has no stream and no memberships; it remembers the
	// incarnation only.
	SessionGone SessionState = "gone"
)

type sessionKey struct {
	scope   index.Scope
	replica string
}

// incarnation is one life of a replica.
type incarnation struct {
	podUID    string
	epoch     uint64
	startedUs int64
}

func incarnationOf(i *pb.SyncIncarnation) incarnation {
	return incarnation{podUID: i.GetPodUid(), epoch: i.GetEpoch(), startedUs: i.GetStartedUs()}
}

func (i incarnation) same(other incarnation) bool {
	return i.podUID == other.podUID && i.epoch == other.epoch
}

// olderThan orders two different incarnations.
func (i incarnation) olderThan(other incarnation) bool {
	if i.startedUs != other.startedUs {
		return i.startedUs < other.startedUs
	}
	return i.epoch < other.epoch
}

// session is what outlives a stream of one (scope, replica).
type session struct {
	key sessionKey

	// The registry's mutex guards what follows. received and complete are
	// written by the owner as it leaves and read by the next one.
	incarnation incarnation
	owner       *conn
	state       SessionState
	since       time.Time
	blockSize   int32
	version     string
	// received is the newest data frame dealt with; complete says that the
	// index equals the mirror at that frame.
	received uint64
	complete bool

	// What reports show; written by the owner.
	beatMillis, staged, expected, resident atomic.Int64
	viewComplete                           atomic.Bool
}

// admission says how a stream begins.
type admission struct {
	session *session
	// resume: go on after received. Else a snapshot is needed, for reason.
	resume   bool
	received uint64
	reason   ResyncReason
	// void: what an older incarnation reported has to go.
	void bool
}

// registry knows the session of each (scope, replica), with at most one stream
// each.
type registry struct {
	options SyncOptions

	mu       sync.Mutex
	sessions map[sessionKey]*session
	sweptAt  time.Time
	// snapshotting counts sessions in SessionSnapshot; quietSince is when it
	// last fell to zero.
	snapshotting int
	startedAt    time.Time
	quietSince   time.Time
	recovered    bool
	blockSizes   blockSizes

	// blocksReceived counts the block keys of snapshots since the start.
	blocksReceived atomic.Int64
}

func newRegistry(options SyncOptions) *registry {
	now := options.Now()
	return &registry{
		options:    options,
		sessions:   make(map[sessionKey]*session),
		startedAt:  now,
		quietSince: now,
	}
}

// attach makes c the stream of hello's session. A newer incarnation, or
// another stream of the same one, takes the place of the current stream and
// waits until it has left.
func (r *registry) attach(ctx context.Context, c *conn, hello *pb.SyncHello) (admission, *pb.SyncReject, error) {
	key := sessionKey{
		scope:   index.Scope{Tenant: hello.GetTenantId(), Model: hello.GetModelId(), Scheme: hello.GetHashScheme()},
		replica: hello.GetReplicaId(),
	}
	incoming := incarnationOf(hello.GetIncarnation())
	for {
		admitted, reject, busy := r.tryAttach(c, key, incoming, hello)
		if busy == nil {
			return admitted, reject, nil
		}
		busy.supersede()
		select {
		case <-busy.left:
		case <-ctx.Done():
			return admission{}, nil, ctx.Err()
		}
	}
}

// tryAttach returns the current stream of the session when that has to leave
// first.
func (r *registry) tryAttach(
	c *conn, key sessionKey, incoming incarnation, hello *pb.SyncHello,
) (admission, *pb.SyncReject, *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.options.Now()
	r.sweepLocked(now)
	s := r.sessions[key]
	if s == nil {
		if len(r.sessions) >= r.options.MaxSessions {
			return admission{}, &pb.SyncReject{Reason: rejectLimit, Message: "too many sessions", RetryAfterMs: 30_000}, nil
		}
		s = &session{key: key, incarnation: incoming}
		r.sessions[key] = s
		return r.takeLocked(s, c, hello, admission{reason: ResyncServerStart}), nil, nil
	}
	same := incoming.same(s.incarnation)
	if !same && incoming.olderThan(s.incarnation) && r.barsOlderLocked(s, incoming, now) {
		return admission{}, &pb.SyncReject{
			Reason:       rejectOlderIncarnation,
			Message:      "a newer incarnation of this replica is known",
			RetryAfterMs: int32(r.options.TakeoverDelay.Milliseconds()),
		}, nil
	}
	if s.owner != nil {
		return admission{}, nil, s.owner
	}
	a := admission{received: s.received}
	switch {
	case !same:
		a = admission{void: true, reason: ResyncIncarnation}
	case r.resumableLocked(s, hello, now):
		a.resume = true
	case hello.GetResumeServerEpoch() != r.options.Epoch:
		a.reason = ResyncServerStart
	case hello.GetResumeSequence() == 0:
		a.reason = ResyncOverflow
	default:
		a.reason = ResyncGap
	}
	s.incarnation = incoming
	return r.takeLocked(s, c, hello, a), nil, nil
}

// barsOlderLocked says whether s keeps an older incarnation out. Start times
// of one pod come from one clock; those of different pods may be skewed, so
// there the newer one only counts while it is there or has just left.
func (r *registry) barsOlderLocked(s *session, incoming incarnation, now time.Time) bool {
	return s.owner != nil || incoming.podUID == s.incarnation.podUID ||
		now.Sub(s.since) < r.options.TakeoverDelay
}

func (r *registry) resumableLocked(s *session, hello *pb.SyncHello, now time.Time) bool {
	limit := min(r.options.ResumeTimeout, r.options.TTL(s.key.scope.Tenant)/2)
	return s.complete &&
		hello.GetResumeServerEpoch() == r.options.Epoch &&
		hello.GetResumeSequence() > 0 && hello.GetResumeSequence() <= s.received &&
		now.Sub(s.since) <= limit
}

func (r *registry) takeLocked(s *session, c *conn, hello *pb.SyncHello, a admission) admission {
	s.owner = c
	s.complete = a.resume
	s.received = a.received
	s.version = hello.GetClientVersion()
	r.setBlockSizeLocked(s, hello.GetBlockSize())
	if a.resume {
		r.setStateLocked(s, SessionLive)
	} else {
		r.setStateLocked(s, SessionSnapshot)
	}
	a.session = s
	return a
}

// release gives the session up for the next stream.
func (r *registry) release(s *session, received uint64, complete, gone bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.owner = nil
	s.received, s.complete = received, complete
	if gone {
		r.setStateLocked(s, SessionGone)
		r.setBlockSizeLocked(s, 0)
		return
	}
	r.setStateLocked(s, SessionLost)
}

func (r *registry) setState(s *session, state SessionState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.setStateLocked(s, state)
}

func (r *registry) setStateLocked(s *session, state SessionState) {
	now := r.options.Now()
	if state == SessionSnapshot && s.state != SessionSnapshot {
		r.snapshotting++
	}
	if s.state == SessionSnapshot && state != SessionSnapshot {
		if r.snapshotting--; r.snapshotting == 0 {
			r.quietSince = now
		}
	}
	s.state, s.since = state, now
}

func (r *registry) setBlockSize(s *session, size int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if size > 0 {
		r.setBlockSizeLocked(s, size)
	}
}

func (r *registry) setBlockSizeLocked(s *session, size int32) {
	if size != s.blockSize {
		r.blockSizes.replace(s.key.scope, s.blockSize, size)
		s.blockSize = size
	}
}

// sweepLocked forgets sessions lost for longer than their memberships live. It
// works at most once a second.
func (r *registry) sweepLocked(now time.Time) {
	if now.Sub(r.sweptAt) < time.Second {
		return
	}
	r.sweptAt = now
	for key, s := range r.sessions {
		if s.owner == nil && now.Sub(s.since) >= r.options.TTL(key.scope.Tenant) {
			r.setBlockSizeLocked(s, 0)
			delete(r.sessions, key)
		}
	}
}

func (r *registry) requestResync(key sessionKey, reason ResyncReason) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sessions[key]
	if s == nil || s.owner == nil {
		return false
	}
	select {
	case s.owner.resyncs <- reason:
	default:
	}
	return true
}

func (r *registry) attachedKeys() []sessionKey {
	r.mu.Lock()
	defer r.mu.Unlock()
	var keys []sessionKey
	for key, s := range r.sessions {
		if s.owner != nil {
			keys = append(keys, key)
		}
	}
	return keys
}
