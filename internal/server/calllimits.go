// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// CallLimits bound the reading calls of one caller. Callers are told apart by
// their credentials, those without by their address; calls from this machine
// without credentials are not bounded.
type CallLimits struct {
	// PerSecond is how many calls may begin in a second, with a burst as
	// large; default 5,000, negative = no bound.
	PerSecond int
	// Concurrent is how many may be under way; default 1,000, negative = no
	// bound.
	Concurrent int
}

const (
	maxCallers = 4096
	// callerSweepInterval is the least time between two sweeps of a full
	// table.
	callerSweepInterval = time.Second
)

var (
	errCallRate  = status.Error(codes.ResourceExhausted, "the caller makes too many calls a second")
	errCallCount = status.Error(codes.ResourceExhausted, "the caller has too many calls under way")
)

// callLimiter holds callers to their limits. It is safe for concurrent use.
type callLimiter struct {
	limits      CallLimits
	now         func() time.Time
	rate, count prometheus.Counter

	mu      sync.Mutex
	callers map[callerID]*callerLoad // guarded by mu
	// others share what callers without room in the table get.
	others *callerLoad // guarded by mu
	swept  time.Time   // guarded by mu
}

// callerID tells callers apart: by name and pod, or by address.
type callerID struct{ name, podUID, address string }

// callerLoad is guarded by callLimiter.mu.
type callerLoad struct {
	rate    *rate.Limiter
	running int
}

func newCallLimiter(f family, limits CallLimits, now func() time.Time) *callLimiter {
	limited := f.counters("grpc_limited_total", "Reading calls refused because their caller has too many.", "limit")
	l := &callLimiter{
		limits: limits, now: now,
		rate: limited.WithLabelValues("rate"), count: limited.WithLabelValues("concurrency"),
		callers: make(map[callerID]*callerLoad),
	}
	l.others = l.newLoad()
	return l
}

func (l *callLimiter) newLoad() *callerLoad {
	limit := rate.Limit(l.limits.PerSecond)
	if l.limits.PerSecond < 0 {
		limit = rate.Inf
	}
	return &callerLoad{rate: rate.NewLimiter(limit, max(l.limits.PerSecond, 0))}
}

// enter counts a call until leave is called.
func (l *callLimiter) enter(id callerID) (load *callerLoad, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	load = l.callers[id]
	if load == nil {
		load = l.admitLocked(id, now)
	}
	switch {
	case !load.rate.AllowN(now, 1):
		l.rate.Inc()
		return nil, errCallRate
	case l.limits.Concurrent >= 0 && load.running >= l.limits.Concurrent:
		l.count.Inc()
		return nil, errCallCount
	}
	load.running++
	return load, nil
}

func (l *callLimiter) leave(load *callerLoad) {
	l.mu.Lock()
	defer l.mu.Unlock()
	load.running--
}

func (l *callLimiter) admitLocked(id callerID, now time.Time) *callerLoad {
	if len(l.callers) >= maxCallers && now.Sub(l.swept) >= callerSweepInterval {
		l.swept = now
		for other, load := range l.callers {
			if load.running == 0 && load.rate.TokensAt(now) >= float64(load.rate.Burst()) {
				delete(l.callers, other)
			}
		}
	}
	if len(l.callers) >= maxCallers {
		return l.others
	}
	load := l.newLoad()
	l.callers[id] = load
	return load
}

// bounds returns whom a call counts for; false when it is not bounded.
func (l *callLimiter) bounds(ctx context.Context, fullMethod string) (callerID, bool) {
	if audienceOf(fullMethod) != AudienceLookup {
		return callerID{}, false
	}
	return boundedCaller(ctx)
}

// boundedCaller returns who makes a call; false for calls of this process, and
// of this machine without credentials, which nothing bounds.
func boundedCaller(ctx context.Context) (callerID, bool) {
	if who, _ := ctx.Value(callerKey{}).(caller); who.known {
		return callerID{name: who.identity.Name, podUID: who.identity.PodUID}, true
	}
	p, ok := peer.FromContext(ctx)
	if !ok {
		return callerID{}, false
	}
	address, loopback := sourceOf(p.Addr)
	return callerID{address: address}, !loopback
}

func boundedProducer(ctx context.Context) bool {
	_, bounded := boundedCaller(ctx)
	return bounded
}

// unary is a server interceptor that runs after the guard.
func (l *callLimiter) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	id, bounded := l.bounds(ctx, info.FullMethod)
	if !bounded {
		return next(ctx, request)
	}
	load, err := l.enter(id)
	if err != nil {
		return nil, err
	}
	defer l.leave(load)
	return next(ctx, request)
}

// stream is a server interceptor that runs after the guard.
func (l *callLimiter) stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	id, bounded := l.bounds(stream.Context(), info.FullMethod)
	if !bounded {
		return next(server, stream)
	}
	load, err := l.enter(id)
	if err != nil {
		return err
	}
	defer l.leave(load)
	return next(server, stream)
}
