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
	"golang.org/x/sync/errgroup"

	"github.com/inferencecache/inference-cache/internal/defaults"
	"github.com/inferencecache/inference-cache/internal/gateway"
	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/publisher"
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
	config     Config
	logger     *slog.Logger
	server     *server.Server
	gateway    *gateway.Gateway
	publishers []*publisher.Publisher
	metrics    *metricsPage
	parity     gateway.ParityOptions
	admin      *http.Server
	listener   net.Listener // of admin, set by Start
}

// New builds all roles of a valid configuration. It binds nothing yet.
func New(config Config, deps Deps) (*Standalone, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	s := &Standalone{config: config.withDefaults(), logger: deps.Logger, parity: deps.Parity}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	s.metrics = newMetricsPage()
	if err := s.buildServer(); err != nil {
		return nil, err
	}
	if err := s.buildGateway(&deps); err != nil {
		return nil, err
	}
	if err := s.buildPublishers(deps.Version); err != nil {
		return nil, err
	}
	s.admin = s.newAdminServer()
	return s, nil
}

// metricsPage joins the registries of all roles.
type metricsPage struct {
	process, server, gateway, publishers *prometheus.Registry
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
	m.publishers.MustRegister(version.Collector("publisher"))
	return m
}

func (m *metricsPage) gatherer() prometheus.Gatherer {
	return prometheus.Gatherers{m.process, m.server, m.gateway, m.publishers}
}

// ofPublisher tells the publishers of one process apart.
func (m *metricsPage) ofPublisher(replica string) prometheus.Registerer {
	return prometheus.WrapRegistererWith(prometheus.Labels{"replica_id": replica}, m.publishers)
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

func (s *Standalone) buildGateway(deps *Deps) error {
	options := gateway.Options{
		Listen:     s.config.Listen,
		Lookuper:   s.server,
		BlockSizer: blockSizer{s.server},
		Tenant:     s.config.Tenant,
		Access:     s.config.Access.options(),
		Policy:     s.config.Routing.Policy,
		Tokenizer:  gateway.TokenizerMode(s.config.Tokenizer.Mode),
		Tokenizing: gateway.TokenizerOptions{
			Folders: s.config.Tokenizer.Folders, RenderURL: s.config.Tokenizer.RenderURL,
		},
		ExposeReplica: s.config.Routing.ExposeReplica,
		Timeouts: gateway.Timeouts{
			Lookup:        time.Duration(s.config.Routing.LookupTimeout),
			Tokenize:      time.Duration(s.config.Tokenizer.Timeout),
			ShutdownGrace: gatewayGrace,
		},
		Trace:            deps.Trace,
		AccessLog:        deps.AccessLog,
		Profiling:        deps.Profiling,
		RequestIDHeaders: deps.RequestIDHeaders,
		Registry:         s.metrics.gateway,
		Logger:           s.logger.With("role", "gateway"),
	}
	if s.config.Tokenizer.Parity == "on" {
		options.Parity = s.parity
		defaults.Set(&options.Parity.Interval, parityInterval)
	}
	for _, engine := range s.config.Engines {
		options.Replicas = append(options.Replicas, engine.replicas()...)
	}
	built, err := gateway.New(options)
	if err != nil {
		return fmt.Errorf("building the gateway: %w", err)
	}
	s.gateway = built
	return nil
}

// replicas lists the engine's ranks under the names its publisher uses.
func (e Engine) replicas() []gateway.Replica {
	replica := gateway.Replica{ID: e.Replica, URL: e.URL, Runtime: e.Runtime}
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

func (s *Standalone) buildPublishers(release string) error {
	targets := []publisher.Target{publisher.NewInProcTarget("server", s.server.CacheSync())}
	for _, engine := range s.config.Engines {
		if engine.Events == NoEvents {
			continue
		}
		built, err := publisher.New(publisher.Config{
			Tenant:  s.config.Tenant,
			Model:   engine.Model,
			Scheme:  engine.Runtime,
			Replica: engine.Replica,
			BaseURL: engine.URL,
			Events:  engine.Events,
			Replay:  engine.Replay,
			Topic:   engine.Topic,
			Ranks:   int(engine.Ranks),
		}, targets, publisher.Deps{
			Logger:     s.logger.With("role", "publisher", "engine", engine.Replica),
			Registerer: s.metrics.ofPublisher(engine.Replica),
			Version:    release,
		})
		if err != nil {
			return fmt.Errorf("building the publisher of %s: %w", engine.Replica, err)
		}
		s.publishers = append(s.publishers, built)
	}
	return nil
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
	for _, p := range s.publishers {
		group.Go(func() error { return p.Run(ctx) })
	}
	group.Go(func() error { return s.serveAdmin(ctx, serverCtx) })

	addresses := s.Addresses()
	s.logger.Info("ready to take requests; only the gateway can ask for credentials",
		"gateway", addresses.Gateway, "gateway_credentials", s.gateway.AsksForCredentials(), "admin", addresses.Admin, "grpc", addresses.GRPC, "engines", len(s.config.Engines))
	return group.Wait()
}
