// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

const (
	// maxEventStreams bounds the streams that are served at a time.
	maxEventStreams = 16
	// eventBuffer is how many events wait for a slow stream.
	eventBuffer = 4096
	// barredMicros is how long a listener is known not to see a tenant.
	barredMicros = 10_000_000
)

// eventHub hands changes of the index to the event streams. It never waits for
// one of them.
type eventHub struct {
	now func() time.Time

	// listeners changes under mu and is replaced as a whole.
	mu        sync.Mutex
	listeners atomic.Pointer[[]*listener]
}

var _ index.Feed = (*eventHub)(nil)

func newEventHub(now func() time.Time) *eventHub {
	h := &eventHub{now: now}
	h.listeners.Store(new([]*listener))
	return h
}

// Listening implements index.Feed.
func (h *eventHub) Listening() bool { return len(*h.listeners.Load()) > 0 }

// Changed implements index.Feed.
func (h *eventHub) Changed(scope index.Scope, changes []index.Change) {
	at := h.now().UnixMicro()
	for _, l := range *h.listeners.Load() {
		if l.names(scope) {
			l.offer(scope, changes, at)
		}
	}
}

// join adds a listener; false when there are too many.
func (h *eventHub) join(l *listener) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := *h.listeners.Load()
	if len(before) >= maxEventStreams {
		return false
	}
	after := append(slices.Clone(before), l)
	h.listeners.Store(&after)
	return true
}

func (h *eventHub) leave(l *listener) {
	h.mu.Lock()
	defer h.mu.Unlock()
	after := slices.DeleteFunc(slices.Clone(*h.listeners.Load()), func(o *listener) bool { return o == l })
	h.listeners.Store(&after)
}

// eventTypes says what a change is called on the wire.
var eventTypes = [...]pb.CacheEvent_Type{
	index.ChangeAdded:    pb.CacheEvent_PREFIX_ADDED,
	index.ChangeRemoved:  pb.CacheEvent_PREFIX_EVICTED,
	index.ChangeCleared:  pb.CacheEvent_ALL_CLEARED,
	index.ChangeReported: pb.CacheEvent_REPLICA_UPDATED,
}

// listener is one stream's filter and buffer.
type listener struct {
	tenant, model string // "" = all
	types         []pb.CacheEvent_Type

	// ready has an element when events wait, overflowed is closed when there
	// were too many.
	ready      chan struct{}
	overflowed chan struct{}

	mu     sync.Mutex
	events []*pb.CacheEvent // waiting, guarded by mu
	missed int64            // dropped since the overflow, guarded by mu; 0 = none
	// barred are tenants that the caller was not allowed to see and when that
	// was found out, in microseconds; guarded by mu.
	barred map[string]int64
}

func newListener(in *pb.StreamEventsRequest) *listener {
	return &listener{
		tenant: in.GetTenantId(), model: in.GetModelId(), types: in.GetTypes(),
		ready: make(chan struct{}, 1), overflowed: make(chan struct{}), barred: make(map[string]int64),
	}
}

// names reports whether the request asks for a scope.
func (l *listener) names(scope index.Scope) bool {
	return (l.tenant == "" || l.tenant == scope.Tenant) && (l.model == "" || l.model == scope.Model)
}

// bar keeps events of a tenant out of the buffer for a while.
func (l *listener) bar(tenant string, atMicros int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.barred[tenant] = atMicros
}

func (l *listener) barredLocked(tenant string, atMicros int64) bool {
	since, ok := l.barred[tenant]
	if ok && atMicros-since >= barredMicros {
		delete(l.barred, tenant)
		return false
	}
	return ok
}

func (l *listener) wantsType(t pb.CacheEvent_Type) bool {
	return len(l.types) == 0 || slices.Contains(l.types, t)
}

// offer buffers the events of changes. After an overflow it only counts.
func (l *listener) offer(scope index.Scope, changes []index.Change, atMicros int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.barredLocked(scope.Tenant, atMicros) {
		return
	}
	for i := range changes {
		c := &changes[i]
		switch {
		case !l.wantsType(eventTypes[c.Kind]):
		case l.missed > 0:
			l.missed++
		case len(l.events) >= eventBuffer:
			l.missed = int64(len(l.events)) + 1
			l.events = nil
			close(l.overflowed)
		default:
			l.events = append(l.events, cacheEvent(scope, c, atMicros))
		}
	}
	if len(l.events) > 0 {
		select {
		case l.ready <- struct{}{}:
		default:
		}
	}
}

func cacheEvent(scope index.Scope, c *index.Change, atMicros int64) *pb.CacheEvent {
	event := &pb.CacheEvent{
		Type: eventTypes[c.Kind], ReplicaId: c.Replica, ModelId: scope.Model, TenantId: scope.Tenant,
		TimestampUs: atMicros, AdapterId: c.Adapter,
	}
	switch {
	case c.Kind != index.ChangeAdded && c.Kind != index.ChangeRemoved:
	case c.Long != nil:
		event.PrefixHash = slices.Clone(c.Long)
	default:
		event.PrefixHash = binary.BigEndian.AppendUint64(nil, c.Short)
	}
	return event
}

// next takes the oldest event; nil when none waits.
func (l *listener) next() *pb.CacheEvent {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.events) == 0 {
		return nil
	}
	event := l.events[0]
	l.events[0] = nil
	if l.events = l.events[1:]; len(l.events) == 0 {
		l.events = nil
	}
	return event
}

// lost returns how many events an overflow cost.
func (l *listener) lost() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.missed
}
