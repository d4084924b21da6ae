// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/inferencecache/inference-cache/internal/admission"
	"github.com/inferencecache/inference-cache/internal/breaker"
	"github.com/inferencecache/inference-cache/internal/caller"
	"github.com/inferencecache/inference-cache/internal/finding"
	"github.com/inferencecache/inference-cache/internal/livefile"
	"github.com/inferencecache/inference-cache/internal/routing"
	"github.com/inferencecache/inference-cache/internal/tokenize"
	"github.com/inferencecache/inference-cache/internal/trace"
)

// Gateway is the proxy. It is safe for concurrent use.
type Gateway struct {
	options Options
	logger  *slog.Logger
	metrics *metrics
	fleet   *routing.Fleet
	catalog *catalog
	roster  roster
	pools   atomic.Pointer[poolTable]
	// rebuilding serialises changes of pools, so that none is lost.
	rebuilding sync.Mutex
	// index and tokenizer are nil when there is none; guardedTokenizer is the
	// tokenizer if it has a breaker.
	index            *indexClient
	tokenizer        tokenize.Tokenizer
	guardedTokenizer breakered
	// renderTransport is nil unless a render service tokenizes.
	renderTransport *http.Transport
	tokenizerDown   atomic.Bool
	parity          *parity
	// found are the open findings; sizeFindings is set once one was about a
	// block size.
	found        finding.List
	sizeFindings atomic.Bool
	budget       retryBudget
	resolver     *caller.Resolver
	// saltKey is nil unless salts are derived.
	saltKey []byte
	// tls is that of the clients' listeners, adminTLS that of administration
	// beyond loopback; nil without.
	tls, adminTLS *tls.Config
	// adminToken is nil where none is asked for.
	adminToken *livefile.File[[]byte]
	gate       *admission.Gate
	// live is replaced by Apply, which applying serialises.
	live     atomic.Pointer[live]
	applying sync.Mutex
	// streamedTimes and otherTimes are those to the first byte.
	streamedTimes, otherTimes latencies
	stickySeed                maphash.Seed
	// findings limits warnings about a wrong configuration.
	findings     *limiter
	readyChanged notifier
	trace        *trace.Recorder
	// accessLog is nil when off.
	accessLog *trace.Lines
	inflight  atomic.Int64
	// streams counts streamed requests that may be asked for usage.
	streams atomic.Uint64

	// draining refuses new requests; firstChecks is done when each replica
	// was checked once.
	draining    atomic.Bool
	firstChecks sync.WaitGroup
	checked     chan struct{}
	// stopping ends what is still under way after the shutdown grace.
	stopping context.Context
	stop     context.CancelFunc

	data, trusted, admin *http.Server
	tasks                sync.WaitGroup
	endTasks             context.CancelFunc
	// watching is nil before Start; guarded by roster.changing.
	watching context.Context
	failed   chan error

	mu sync.Mutex
	// addresses are empty before Start; guarded by mu.
	addresses Addresses
	started   bool
}

// Addresses are where a gateway listens. Admin and Trusted are nil without
// AdminListen and Access.TrustedListen.
type Addresses struct{ Data, Trusted, Admin net.Addr }

// New builds a gateway. It binds nothing yet. Errors are ErrOptions.
func New(options Options) (*Gateway, error) {
	options = options.withDefaults()
	if err := options.validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOptions, err)
	}
	policy, err := routing.NewPolicy(options.Policy, routing.PolicyOptions{Fallback: options.Fallback})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOptions, err)
	}
	g := &Gateway{
		options:    options,
		logger:     options.Logger,
		metrics:    newMetrics(options.Registry),
		fleet:      routing.NewFleet(routing.Options{Policy: policy, Warmup: options.Warmup}),
		catalog:    newCatalog(),
		gate:       admission.New(options.admission()),
		stickySeed: maphash.MakeSeed(),
		findings:   newLimiter(warnInterval, maxWarnKeys),
		checked:    make(chan struct{}),
		failed:     make(chan error, 3),
	}
	if err := g.openAccess(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOptions, err)
	}
	g.live.Store(options.live())
	g.parity = newParity(g)
	g.stopping, g.stop = context.WithCancel(context.Background())
	if err := g.SetReplicas(options.Replicas); err != nil {
		return nil, err
	}
	if options.Lookuper != nil {
		g.index = newIndexClient(options.Lookuper, options.Timeouts.Lookup, g.metrics, g.logger)
	}
	if err := g.newTokenizer(); err != nil {
		return nil, err
	}
	options.Registry.MustRegister(newCollector(g))
	g.openAccessLog()
	if err := g.openTrace(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOptions, err)
	}
	g.data = g.newServer(g.dataHandler(false))
	g.trusted = g.newServer(g.dataHandler(true))
	g.admin = g.newServer(g.AdminHandler())
	return g, nil
}

// maxStreams bounds the requests under way on one HTTP/2 connection.
const maxStreams = 1000

func (g *Gateway) newServer(handler http.Handler) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           handler,
		Protocols:         &protocols,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams, SendPingTimeout: 30 * time.Second},
		ReadHeaderTimeout: g.options.Timeouts.HeaderRead,
		IdleTimeout:       120 * time.Second,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(g.logger.Handler(), slog.LevelDebug),
	}
}

// Addresses returns where the gateway listens; empty before Start.
func (g *Gateway) Addresses() Addresses {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.addresses
}

// Start binds the listeners and begins to serve and to watch the replicas. It
// does not wait for any of them. It may be called once; on error nothing is
// left open. Run must follow.
func (g *Gateway) Start() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.started {
		return errors.New("gateway was started before")
	}
	if err := g.openListeners(); err != nil {
		return err
	}
	g.started = true
	g.startWatching()
	g.logger.Info("gateway is serving", "address", g.addresses.Data.String(), "replicas", len(g.options.Replicas),
		"policy", g.fleet.Policy())
	return nil
}

// startWatching begins the health checks and closes checked when each replica
// was checked once.
func (g *Gateway) startWatching() {
	ctx, end := context.WithCancel(context.Background())
	g.endTasks = end
	g.roster.changing.Lock()
	defer g.roster.changing.Unlock()
	g.watching = ctx
	g.tasks.Go(func() { g.trace.Run(ctx) })
	if g.accessLog != nil {
		g.tasks.Go(func() { g.accessLog.Run(ctx) })
	}
	for _, u := range g.roster.all() {
		g.firstChecks.Add(1)
		once := sync.OnceFunc(g.firstChecks.Done)
		ctx, stop := context.WithCancel(ctx)
		u.unwatch = stop
		g.tasks.Go(func() {
			defer once()
			g.watch(ctx, u, once)
		})
	}
	g.tasks.Go(func() { g.parity.run(ctx) })
	g.tasks.Go(func() {
		g.firstChecks.Wait()
		close(g.checked)
	})
}

// serve takes note of how a listener ended.
func (g *Gateway) serve(what string, err error) {
	if err == nil || errors.Is(err, http.ErrServerClosed) {
		return
	}
	select {
	case g.failed <- fmt.Errorf("serve %s: %w", what, err):
	default:
	}
}

// Run serves until ctx ends, then shuts down within the shutdown delay and
// grace plus 1 s, and returns nil. It starts the gateway unless Start was
// called. A listener that fails shuts it down too; then its error is returned.
func (g *Gateway) Run(ctx context.Context) error {
	g.mu.Lock()
	started := g.started
	g.mu.Unlock()
	if !started {
		if err := g.Start(); err != nil {
			return err
		}
	}
	var failure error
	select {
	case <-ctx.Done():
	case failure = <-g.failed:
		g.logger.Error("a listener failed", "error", failure)
	}
	g.shutdown()
	return failure
}

// shutdown lets running requests finish, then ends them.
func (g *Gateway) shutdown() {
	g.draining.Store(true)
	if delay := g.options.Timeouts.ShutdownDelay; delay > 0 {
		time.Sleep(delay)
	}
	const lastWords = time.Second
	grace := time.AfterFunc(g.options.Timeouts.ShutdownGrace, g.stop)
	ctx, cancel := context.WithTimeout(context.Background(), g.options.Timeouts.ShutdownGrace+lastWords)
	defer cancel()
	var drains sync.WaitGroup
	for _, server := range []*http.Server{g.data, g.trusted} {
		drains.Go(func() {
			if err := server.Shutdown(ctx); err != nil {
				g.logger.Warn("connections were cut", "error", err)
				_ = server.Close()
			}
		})
	}
	drains.Wait()
	grace.Stop()
	g.stop()
	_ = g.admin.Close()
	g.endTasks()
	g.tasks.Wait()
	g.closeIdle()
	g.logger.Info("gateway has stopped")
}

// anyReady says whether some replica passes its health checks.
func (g *Gateway) anyReady() bool {
	for _, state := range g.fleet.States(time.Now()) {
		if state.Ready {
			return true
		}
	}
	return false
}

// AwaitReplicas returns once n replicas are ready, or with ctx's error.
func (g *Gateway) AwaitReplicas(ctx context.Context, n int) error {
	for {
		changed := g.readyChanged.Wait()
		ready := 0
		for _, state := range g.fleet.States(time.Now()) {
			if state.Ready {
				ready++
			}
		}
		if ready >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %d replicas, %d are ready: %w", n, ready, ctx.Err())
		}
	}
}

// breakerStates reports the breakers of what requests depend on.
func (g *Gateway) breakerStates() map[string]breaker.State {
	states := map[string]breaker.State{}
	if g.index != nil {
		states["index"] = g.index.state()
	}
	if g.guardedTokenizer != nil {
		states["tokenizer"] = g.guardedTokenizer.BreakerState()
	}
	return states
}

// notifier wakes all who wait. The zero value is ready to use.
type notifier struct {
	mu sync.Mutex
	ch chan struct{}
}

// Wait returns a channel that the next Broadcast closes.
func (n *notifier) Wait() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ch == nil {
		n.ch = make(chan struct{})
	}
	return n.ch
}

// Broadcast wakes all who wait.
func (n *notifier) Broadcast() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ch != nil {
		close(n.ch)
		n.ch = nil
	}
}
