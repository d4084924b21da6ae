// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inferencecache/inference-cache/internal/defaults"
	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/ingest"
	"github.com/inferencecache/inference-cache/internal/lookup"
	"github.com/inferencecache/inference-cache/internal/ranking"
)

// Options of a Server. The zero value serves on the default ports.
type Options struct {
	// GRPCAddress serves the index; default ":9090".
	GRPCAddress string
	// HTTPAddress serves health, readiness and metrics; default ":8080".
	HTTPAddress string
	// WithoutHTTP leaves HTTP to the process the server runs in; default
	// false. Readiness and the registry hold what HTTP would show.
	WithoutHTTP bool
	// TLSCertFile and TLSKeyFile switch TLS on for gRPC; default off. Both
	// or neither.
	TLSCertFile, TLSKeyFile string
	// MaxRecvBytes bounds one gRPC message; default 4 MiB.
	MaxRecvBytes int
	// KeepaliveTime is after how long an idle connection is pinged; default
	// 30s.
	KeepaliveTime time.Duration
	// MaxConnections bounds the gRPC connections; more wait to be accepted.
	// Default 10,000.
	MaxConnections int
	// MaxStreams bounds the calls at once on one connection; clients hold
	// back more. Default 100.
	MaxStreams int
	// IdleTimeout ends a connection without calls; default 10m.
	IdleTimeout time.Duration
	// Calls bounds what one caller may ask.
	Calls CallLimits
	// ShutdownDelay is how long everything is still served after Run's context
	// ended, while health and readiness say that the server leaves: load
	// balancers go on sending new connections for a moment. Default none.
	ShutdownDelay time.Duration
	// ShutdownGrace is how long running calls may go on after that;
	// default 8s.
	ShutdownGrace time.Duration
	// ReadyMaxWait bounds how long readiness waits for publishers after
	// start; default 10s, negative = not at all.
	ReadyMaxWait time.Duration
	// Waiting returns what else readiness waits for, "" when nothing;
	// default nothing.
	Waiting func() string

	// Internal is the listener a controller talks to; default none.
	Internal InternalOptions

	Index   IndexOptions
	Ranking *ranking.Knobs
	// BlockSize is the tokens of a block in scopes without CacheSync
	// sessions; default 16.
	BlockSize int
	// Tokenizer of text prompts; default none.
	Tokenizer lookup.Tokenizer
	// DiagnoseAdapter and DiagnosticsGrace are those of lookup.Options.
	DiagnoseAdapter  bool
	DiagnosticsGrace time.Duration
	// TemplatesDir holds prompt templates, <namespace>/<name>.yaml, beside
	// those of the policy extensions; default none.
	TemplatesDir string
	// HotPrefixThreshold is how many answers make a prefix hot; default 8.
	HotPrefixThreshold int
	// StreamMetricsInterval is the time between two rounds of StreamMetrics;
	// default 10s.
	StreamMetricsInterval time.Duration
	// IngestMaxKeys bounds the block keys of one update; default 65,536.
	IngestMaxKeys int
	// ReplicaLimits bound what one replica may write. Replicas in this
	// process, or on this machine without credentials, are not bounded.
	ReplicaLimits ingest.LimitOptions
	// Auth decides who may call gRPC; default everyone.
	Auth AuthOptions

	Metrics MetricsOptions
	// Registry takes the metrics; default a new one.
	Registry *prometheus.Registry
	// Logger takes the logs; default none.
	Logger *slog.Logger
	// Now is the clock of index and lookup; default time.Now.
	Now func() time.Time
}

// IndexOptions bound the index.
type IndexOptions struct {
	// TTL of tenants whose policy sets none; default 30m.
	TTL time.Duration
	// SweepInterval is the time between sweeps; default and maximum 1s.
	SweepInterval time.Duration
	// MaxMemoryBytes bounds its memory; default half of what the process may
	// use, at most 8 GiB.
	MaxMemoryBytes int64
	// MaxMemberships bounds memberships; default no bound.
	MaxMemberships int64
	// LFUHalfLife is after how long the access counts of LFU tenants have
	// halved, at least a minute; default 0 = they never do.
	LFUHalfLife time.Duration
	// MaxTenants and MaxPartitions bound scopes; defaults 10,000 and 100,000.
	MaxTenants, MaxPartitions int
	// ReplicaSilence is after how long a replica that used to talk is left
	// out; default 60s, negative = never.
	ReplicaSilence time.Duration
	// AffinitySilence is the same for affinity; default 5s, negative = never.
	AffinitySilence time.Duration
}

// MetricsOptions bound the series of the server.
type MetricsOptions struct {
	// MaxModels bounds model names; default 512.
	MaxModels int
	// MaxUnknownModels bounds model names the index does not know; default
	// 64.
	MaxUnknownModels int
	// MaxTenants bounds tenant names; default 1,000.
	MaxTenants int
	// WithoutTenants leaves tenant names out of all series; default false.
	WithoutTenants bool
	// MaxReplicas bounds replicas with series of their own; default 2,000,
	// negative = none.
	MaxReplicas int
}

func (o Options) withDefaults() Options {
	defaults.Set(&o.GRPCAddress, ":9090")
	defaults.Set(&o.HTTPAddress, ":8080")
	defaults.Set(&o.MaxRecvBytes, 4<<20)
	defaults.Set(&o.KeepaliveTime, 30*time.Second)
	defaults.Set(&o.MaxConnections, 10_000)
	defaults.Set(&o.MaxStreams, 100)
	defaults.Set(&o.IdleTimeout, 10*time.Minute)
	defaults.Set(&o.Calls.PerSecond, 5000)
	defaults.Set(&o.Calls.Concurrent, 1000)
	defaults.Set(&o.ShutdownGrace, 8*time.Second)
	defaults.Set(&o.ReadyMaxWait, 10*time.Second)
	defaults.Set(&o.BlockSize, lookup.DefaultBlockSize)
	defaults.Set(&o.Index.TTL, 30*time.Minute)
	defaults.Set(&o.Index.SweepInterval, maxSweepInterval)
	defaults.Set(&o.Index.MaxMemoryBytes, defaultMaxMemoryBytes())
	defaults.Set(&o.Index.ReplicaSilence, 60*time.Second)
	defaults.Set(&o.Index.AffinitySilence, 5*time.Second)
	defaults.Set(&o.Metrics.MaxModels, 512)
	defaults.Set(&o.Metrics.MaxUnknownModels, 64)
	defaults.Set(&o.Metrics.MaxTenants, 1000)
	defaults.Set(&o.Metrics.MaxReplicas, 2000)
	defaults.Set(&o.HotPrefixThreshold, 8)
	defaults.Set(&o.StreamMetricsInterval, 10*time.Second)
	if o.Ranking == nil {
		knobs := ranking.DefaultKnobs()
		o.Ranking = &knobs
	}
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Metrics.WithoutTenants {
		o.Metrics.MaxTenants = 0
	}
	o.Auth = o.Auth.withDefaults()
	return o
}

func (o Options) validate() error {
	var errs []error
	if (o.TLSCertFile == "") != (o.TLSKeyFile == "") {
		errs = append(errs, errors.New("TLS needs both a certificate file and a key file"))
	}
	if err := o.Internal.validate(); err != nil {
		errs = append(errs, err)
	}
	if err := o.Auth.validate(o.TLSCertFile != ""); err != nil {
		errs = append(errs, err)
	}
	if err := o.Ranking.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("ranking: %w", err))
	}
	if l := o.Index.LFUHalfLife; l != 0 && l < index.MinLFUHalfLifeMillis*time.Millisecond {
		errs = append(errs, fmt.Errorf("LFU half-life is %v, expected 0 or at least a minute", l))
	}
	for _, bound := range []struct {
		name  string
		value int64
	}{
		{"gRPC receive limit", int64(o.MaxRecvBytes)},
		{"keepalive time", int64(o.KeepaliveTime)},
		{"connection limit", int64(o.MaxConnections)},
		{"stream limit", int64(o.MaxStreams)},
		{"idle timeout", int64(o.IdleTimeout)},
		{"shutdown delay", int64(o.ShutdownDelay)},
		{"shutdown grace", int64(o.ShutdownGrace)},
		{"block size", int64(o.BlockSize)},
		{"hot prefix threshold", int64(o.HotPrefixThreshold)},
		{"metrics stream interval", int64(o.StreamMetricsInterval)},
		{"index memory", o.Index.MaxMemoryBytes},
	} {
		if bound.value < 0 {
			errs = append(errs, fmt.Errorf("%s is %d, expected at least 0", bound.name, bound.value))
		}
	}
	return errors.Join(errs...)
}
