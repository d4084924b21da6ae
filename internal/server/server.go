// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/ingest"
	"github.com/inferencecache/inference-cache/internal/lookup"
	"github.com/inferencecache/inference-cache/internal/policy"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// Server is one instance of the role. It is safe for concurrent use.
type Server struct {
	options  Options
	logger   *slog.Logger
	index    *index.Index
	policies *policy.Store
	decider  *lookup.Decider
	ingest   *ingest.Contract
	sync     *ingest.SyncServer
	limits   *ingest.Limits
	guard    *callGuard // nil without authentication
	callers  *callLimiter
	process  *processMetrics
	lookups  *lookupMetrics
	epoch    string // names this process

	hot       *hotPrefixes
	observers *observers
	templates templates
	// routeCalls holds idle *routeCall.
	routeCalls sync.Pool

	grpc     *grpc.Server
	health   *health.Server
	http     *http.Server
	internal *http.Server // nil without Options.Internal.Address
	// internalTLS is nil where the internal listener has no certificate.
	internalTLS *tls.Config

	// leaving is set when shutdown starts.
	leaving atomic.Bool
	// stopping is closed when running calls are about to end.
	stopping chan struct{}
	stopOnce sync.Once
	// failed receives the first error of a listener.
	failed chan error
	tasks  sync.WaitGroup
	// endTasks stops the maintenance loop.
	endTasks context.CancelFunc

	mu        sync.Mutex
	startedAt time.Time // guarded by mu, zero until started
	addresses Addresses // guarded by mu
}

// Addresses are where a started server listens. HTTP and Internal are nil
// without such a listener.
type Addresses struct{ GRPC, HTTP, Internal net.Addr }

func addressText(a net.Addr) string {
	if a == nil {
		return "none"
	}
	return a.String()
}

// ErrOptions marks options that no server can have.
var ErrOptions = errors.New("invalid server options")

// New builds a server. It binds nothing yet. Errors are ErrOptions or files
// that cannot be used.
func New(options Options) (*Server, error) {
	options = options.withDefaults()
	if err := options.validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOptions, err)
	}
	s := &Server{
		options:  options,
		logger:   options.Logger,
		policies: policy.NewStore(options.Index.TTL),
		epoch:    newEpoch(),
		stopping: make(chan struct{}),
		failed:   make(chan error, 1),
	}
	s.routeCalls.New = func() any { return new(routeCall) }
	f := family{options.Registry}
	models := newLabels(options.Metrics.MaxModels, options.Metrics.MaxUnknownModels)
	tenants := newLabels(options.Metrics.MaxTenants, 0)
	s.process = newProcessMetrics(f)
	credentials, err := s.transportCredentials(f)
	if err != nil {
		return nil, err
	}
	if err := s.openTemplates(); err != nil {
		return nil, err
	}
	s.lookups = newLookupMetrics(f, models, tenants)
	s.hot = newHotPrefixes(options.HotPrefixThreshold, maxHotCandidates)
	s.observers = newObservers(f, options.Now)
	indexConfig := options.indexConfig(s.policies.View())
	indexConfig.Observe, indexConfig.ObserveRun = s.process.observeCritical, s.process.observeRun
	indexConfig.ObserveWait = s.process.observeWait
	indexConfig.Feed = s.observers.events
	s.index = index.New(indexConfig)
	s.followPolicies()
	newIndexCollector(f, s.index, options.Now, s.lookups)
	newReplicaCollector(f, s.index, options.Metrics.MaxReplicas, models, tenants)
	f.gaugeFunc("index_hot_prefixes", "Prefixes matched often in the last ten to twenty minutes.",
		func() float64 { return float64(s.HotPrefixes()) })
	if err := s.newIngest(f); err != nil {
		return nil, err
	}
	s.decider = lookup.New(lookup.Options{
		Index:            s.index,
		Policies:         s.policies,
		Knobs:            options.Ranking,
		BlockSize:        s.BlockSize,
		Tokenizer:        options.Tokenizer,
		Now:              options.Now,
		DiagnoseAdapter:  options.DiagnoseAdapter,
		DiagnosticsGrace: options.DiagnosticsGrace,
	})
	s.callers = newCallLimiter(f, options.Calls, options.Now)
	s.newGRPCServer(credentials)
	s.http = s.newHTTPServer()
	s.newInternalServer()
	return s, nil
}

func (o Options) indexConfig(view *policy.View) index.Config {
	defaults, _ := view.Rules()
	return index.Config{
		MaxMemoryBytes:               o.Index.MaxMemoryBytes,
		MaxMemberships:               o.Index.MaxMemberships,
		LFUHalfLifeMillis:            o.Index.LFUHalfLife.Milliseconds(),
		MaxTenants:                   o.Index.MaxTenants,
		MaxPartitions:                o.Index.MaxPartitions,
		DefaultRules:                 defaults,
		ReservedTenant:               policy.ReservedTenant,
		SilenceTimeoutMillis:         max(o.Index.ReplicaSilence.Milliseconds(), 0),
		AffinitySilenceTimeoutMillis: max(o.Index.AffinitySilence.Milliseconds(), 0),
	}
}

func (s *Server) newIngest(f family) (err error) {
	options := ingest.Options{
		MaxKeys:        s.options.IngestMaxKeys,
		ReservedTenant: policy.ReservedTenant,
		Metrics:        ingest.NewMetrics(s.options.Registry),
		Now:            s.options.Now,
	}
	if s.guard, err = s.newCallGuard(f, options.Metrics.Denied); err != nil {
		return err
	}
	if s.guard != nil {
		options.Authorizer = s.guard
	}
	limits := s.options.ReplicaLimits
	limits.Bounds, limits.Now = boundedProducer, s.options.Now
	s.limits = ingest.NewLimits(s.index, limits)
	options.Limits = s.limits
	s.observers.streams = options.Metrics
	s.ingest = ingest.NewContract(s.index, options)
	s.sync = ingest.NewSyncServer(s.index, ingest.SyncOptions{
		Options: options,
		Epoch:   s.epoch,
		TTL: func(tenant string) time.Duration {
			return time.Duration(s.policies.View().For(tenant).TTLMillis) * time.Millisecond
		},
		Logger: s.logger,
	})
	return nil
}

// CacheSync returns the handler of CacheSync, for publishers in this process.
func (s *Server) CacheSync() pb.CacheSyncServer { return s.sync }

// BlockSize returns the tokens of a block in a scope.
func (s *Server) BlockSize(scope index.Scope) int {
	if size, ok := s.LearnedBlockSize(scope); ok {
		return size
	}
	return s.options.BlockSize
}

// LearnedBlockSize returns the tokens of a block as all publishers of a scope
// state them; false when none did or they disagree.
func (s *Server) LearnedBlockSize(scope index.Scope) (tokens int, known bool) {
	return s.sync.BlockSize(scope)
}

// Totals returns what the index counts at the given time.
func (s *Server) Totals(now time.Time) index.Counters { return s.index.Counters(now.UnixMilli()) }

// Addresses returns where the server listens; empty before Start.
func (s *Server) Addresses() Addresses {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addresses
}

// Start binds the listeners and begins to serve. It may be called once. On
// error nothing is left open. Run must follow.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.startedAt.IsZero() {
		return errors.New("server was started before")
	}
	listeners, err := s.listen()
	if err != nil {
		return err
	}
	s.startedAt = s.options.Now()

	tasks, end := context.WithCancel(context.Background())
	s.endTasks = end
	s.tasks.Go(func() { s.maintain(tasks) })
	if s.templates.dir != nil {
		s.tasks.Go(func() { s.watchTemplates(tasks) })
	}
	for _, l := range listeners {
		s.tasks.Go(func() { s.serve(l.name, l.serve(l.listener)) })
	}
	s.process.up.Set(1)
	s.logger.Info("serving", "grpc", s.addresses.GRPC.String(), "http", addressText(s.addresses.HTTP),
		"internal", addressText(s.addresses.Internal), "tls", s.options.TLSCertFile != "")
	s.warnOfAuth()
	return nil
}

// serve takes note of how a listener ended.
func (s *Server) serve(what string, err error) {
	if err == nil || errors.Is(err, http.ErrServerClosed) || errors.Is(err, grpc.ErrServerStopped) {
		return
	}
	select {
	case s.failed <- fmt.Errorf("serve %s: %w", what, err):
	default:
	}
}

// Run serves until ctx ends, then shuts down within the delay, the grace period
// and 2 s, and returns nil. It starts the server unless Start was called. A listener
// that fails shuts it down too; then its error is returned.
func (s *Server) Run(ctx context.Context) error {
	if s.Addresses() == (Addresses{}) {
		if err := s.Start(); err != nil {
			return err
		}
	}
	failure := s.serveUntil(ctx)
	if failure != nil {
		s.logger.Error("a listener failed", "error", failure)
	}
	s.leave()
	s.shutdown()
	return failure
}
