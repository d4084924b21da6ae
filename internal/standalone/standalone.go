// SPDX-License-Identifier: Apache-2.0

// Package standalone runs all roles for one machine in one process: a
// publisher per engine, the index server and the gateway. It is what `up` is.
package standalone

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sync/errgroup"

	"github.com/inferencecache/inference-cache/internal/configfile"
	"github.com/inferencecache/inference-cache/internal/defaults"
	"github.com/inferencecache/inference-cache/internal/gateway"
	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/server"
	"github.com/inferencecache/inference-cache/internal/trace"
	"github.com/inferencecache/inference-cache/internal/version"
)

const (
	serverGrace  = 500 * time.Millisecond
	gatewayGrace = 3 * time.Second
	adminGrace   = 500 * time.Millisecond
)

// Deps are what a Standalone uses of its surroundings. The zero value works.
type Deps struct {
	// Logger is silent when nil.
	Logger *slog.Logger
	// Version is reported by publishers, default empty.
	Version string
	// Parity times the checks of token ids; default hourly.
	Parity gateway.ParityOptions
	// Trace, AccessLog, Profiling and RequestIDHeaders are the gateway's.
	Trace            gateway.Trace
	AccessLog        trace.LineSink
	Profiling        bool
	RequestIDHeaders []string
}

// parityInterval is the time between canaries of a model that passes.
const parityInterval = time.Hour

// Addresses are where a started Standalone listens.
type Addresses struct {
	Gateway string `json:"gateway"`
	Admin   string `json:"admin"`
	GRPC    string `json:"grpc"`
}

// Standalone is one running configuration.
type Standalone struct {
	config    Config
	logger    *slog.Logger
	server    *server.Server
	gateway   *gateway.Gateway
	followers followers
	// current is config with what Reload changed.
	current  Config
	deps     Deps
	metrics  *metricsPage
	admin    *http.Server
	listener net.Listener // of admin, set by Start
}

// New builds all roles of a valid configuration. It binds nothing yet.
func New(config Config, deps Deps) (*Standalone, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	s := &Standalone{config: config.withDefaults(), logger: deps.Logger, deps: deps}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	s.metrics = newMetricsPage()
	if err := s.buildServer(); err != nil {
		return nil, err
	}
	if err := s.buildGateway(); err != nil {
		return nil, err
	}
	s.current = s.config
	if err := s.follow(s.config.Engines); err != nil {
		return nil, err
	}
	s.admin = s.newAdminServer()
	return s, nil
}

// metricsPage joins the registries of all roles.
type metricsPage struct {
	process, server, gateway, publishers *prometheus.Registry

	reloads *configfile.Reloads
}

func newMetricsPage() *metricsPage {
	m := &metricsPage{
		process:    prometheus.NewRegistry(),
		server:     prometheus.NewRegistry(),
		gateway:    prometheus.NewRegistry(),
		publishers: prometheus.NewRegistry(),
	}
	m.process.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	m.reloads = configfile.NewReloads(m.process)
	m.publishers.MustRegister(version.Collector("publisher"))
	return m
}

// gatherer reads all of them, and those of the publishers there are.
func (m *metricsPage) gatherer(f *followers) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		return append(prometheus.Gatherers{m.process, m.server, m.gateway, m.publishers}, f.gatherers()...).Gather()
	})
}

func (s *Standalone) buildServer() error {
	built, err := server.New(server.Options{
		GRPCAddress:   s.config.GRPC,
		WithoutHTTP:   true,
		ShutdownGrace: serverGrace,
		Waiting:       s.waiting,
		Index: server.IndexOptions{
			TTL:            time.Duration(s.config.Index.TTL),
			MaxMemoryBytes: int64(s.config.Index.MaxMemory),
			MaxMemberships: int64(s.config.Index.MaxEntries),
		},
		Registry: s.metrics.server,
		Logger:   s.logger.With("role", "server"),
	})
	if err != nil {
		return fmt.Errorf("building the server: %w", err)
	}
	s.server = built
	return nil
}

// gatewayOptions are those of a complete configuration.
func (s *Standalone) gatewayOptions(config Config) gateway.Options {
	options := gateway.Options{
		Listen:     config.Listen,
		Lookuper:   s.server,
		BlockSizer: blockSizer{s.server},
		Tenant:     config.Tenant,
		Access:     config.Access.options(),
		Policy:     config.Routing.Policy,
		Tokenizer:  gateway.TokenizerMode(config.Tokenizer.Mode),
		Tokenizing: gateway.TokenizerOptions{
			Folders: config.Tokenizer.Folders, RenderURL: config.Tokenizer.RenderURL,
		},
		ExposeReplica: config.Routing.ExposeReplica,
		PDMinUncached: int(config.Routing.PDMinUncached),
		Timeouts: gateway.Timeouts{
			Lookup:        time.Duration(config.Routing.LookupTimeout),
			Tokenize:      time.Duration(config.Tokenizer.Timeout),
			PDPrefill:     time.Duration(config.Routing.PDPrefillTimeout),
			ShutdownGrace: gatewayGrace,
		},
		Trace:            s.deps.Trace,
		AccessLog:        s.deps.AccessLog,
		Profiling:        s.deps.Profiling,
		RequestIDHeaders: s.deps.RequestIDHeaders,
		Registry:         s.metrics.gateway,
		Logger:           s.logger.With("role", "gateway"),
	}
	if config.Tokenizer.Parity == "on" {
		options.Parity = s.deps.Parity
		defaults.Set(&options.Parity.Interval, parityInterval)
	}
	for _, engine := range config.Engines {
		options.Replicas = append(options.Replicas, engine.replicas()...)
	}
	return options
}

func (s *Standalone) buildGateway() error {
	built, err := gateway.New(s.gatewayOptions(s.config))
	if err != nil {
		return fmt.Errorf("building the gateway: %w", err)
	}
	s.gateway = built
	return nil
}

// replicas lists the engine's ranks under the names its publisher uses.
func (e Engine) replicas() []gateway.Replica {
	replica := gateway.Replica{ID: e.Replica, URL: e.URL, Runtime: e.Runtime, Role: e.Role, BootstrapPort: int(e.BootstrapPort)}
	if e.Model != "" {
		replica.Models = []string{e.Model}
	}
	if e.Ranks == 1 {
		return []gateway.Replica{replica}
	}
	replicas := make([]gateway.Replica, e.Ranks)
	for rank := range replicas {
		replicas[rank] = replica
		replicas[rank].ID = e.Replica + "#" + strconv.Itoa(rank)
		replicas[rank].Rank = &rank
	}
	return replicas
}

// blockSizer tells the gateway what the index learned.
type blockSizer struct{ server *server.Server }

func (b blockSizer) BlockSize(tenant, model, scheme string) (tokens int, known bool) {
	return b.server.LearnedBlockSize(index.Scope{Tenant: tenant, Model: model, Scheme: scheme})
}

// Start binds all listeners. On error nothing is left open. Run must follow.
func (s *Standalone) Start() error {
	listener, err := net.Listen("tcp", s.config.Admin)
	if err != nil {
		return fmt.Errorf("listen for admin: %w", err)
	}
	if err := s.server.Start(); err != nil {
		return errors.Join(err, listener.Close())
	}
	if err := s.gateway.Start(); err != nil {
		stopped, cancel := context.WithCancel(context.Background())
		cancel()
		return errors.Join(err, listener.Close(), s.server.Run(stopped))
	}
	s.listener = listener
	return nil
}

// Addresses returns where the roles listen. It is valid after Start.
func (s *Standalone) Addresses() Addresses {
	return Addresses{
		Gateway: s.gateway.Addresses().Data.String(),
		Admin:   s.listener.Addr().String(),
		GRPC:    s.server.Addresses().GRPC.String(),
	}
}

// Run serves until ctx ends, then shuts down within five seconds and returns
// nil. Clients are served to the end before the index goes. A listener that
// fails ends it too; then its error is returned.
func (s *Standalone) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	serverCtx, endServer := context.WithCancel(context.WithoutCancel(ctx))
	defer endServer()

	group.Go(func() error { return s.server.Run(serverCtx) })
	group.Go(func() error {
		defer endServer()
		return s.gateway.Run(ctx)
	})
	s.followers.begin(func(one *follower) {
		own, stop := context.WithCancel(ctx)
		one.stop, one.done = stop, make(chan struct{})
		group.Go(func() error {
			defer close(one.done)
			return one.publisher.Run(own)
		})
	})
	group.Go(func() error {
		<-ctx.Done()
		s.followers.end()
		return nil
	})
	group.Go(func() error { return s.serveAdmin(ctx, serverCtx) })

	addresses := s.Addresses()
	s.logger.Info("ready to take requests; only the gateway can ask for credentials",
		"gateway", addresses.Gateway, "gateway_credentials", s.gateway.AsksForCredentials(), "admin", addresses.Admin, "grpc", addresses.GRPC, "engines", len(s.config.Engines))
	return group.Wait()
}
