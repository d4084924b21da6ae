// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/inferencecache/inference-cache/internal/configfile"
	"github.com/inferencecache/inference-cache/internal/control"
	"github.com/inferencecache/inference-cache/internal/ranking"
	"github.com/inferencecache/inference-cache/internal/server"
	"github.com/inferencecache/inference-cache/internal/tokenize"
)

type serverOptions struct {
	server    server.Options
	gates     gateOptions
	auth      serverAuth
	knobs     ranking.Knobs
	maxMemory string
	// tokenizersDir holds the models' tokenizers, "" for none.
	tokenizersDir string
	// tenantLabels is on or off.
	tenantLabels string
}

func (c *cli) newServerCommand() *cobra.Command {
	options := &serverOptions{knobs: ranking.DefaultKnobs()}
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Keep the index and answer lookups",
		Long: `server takes in what publishers report, keeps the index of which replica holds
which block, and answers LookupRoute. gRPC serves the index with health and
reflection; HTTP serves /healthz, /readyz and /metrics. A third listener takes
policy from a controller and shows it what the index holds; who may call it is
said by exactly one of --allowed-controller-sa, --internal-token-file and
--insecure-disable-auth.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.runServer(cmd.Context(), options) },
	}
	options.addFlags(cmd.Flags())
	return cmd
}

func (o *serverOptions) addFlags(flags *pflag.FlagSet) {
	s := &o.server
	flags.StringVar(&s.GRPCAddress, "grpc-bind-address", ":9090", "address of gRPC; port 0 picks a free one")
	flags.StringVar(&s.HTTPAddress, "http-bind-address", ":8080", "address of health, readiness and metrics")
	flags.StringVar(&s.Internal.Address, "snapshot-bind-address", ":8081", "address of the internal listener: /policy, /snapshot, /status and /probe")
	flags.StringVar(&s.Internal.TLSCertFile, "snapshot-tls-cert-file", "", "certificate for the internal listener; read again when it changes")
	flags.StringVar(&s.Internal.TLSKeyFile, "snapshot-tls-key-file", "", "key of that certificate")
	flags.IntVar(&s.Internal.PolicyMaxBytes, "policy-max-bytes", control.DefaultPolicyMaxBytes, "largest policy once it is decompressed")
	o.gates.addFlags(flags)
	flags.StringVar(&s.TLSCertFile, "tls-cert-file", "", "certificate for gRPC; read again when it changes")
	flags.StringVar(&s.TLSKeyFile, "tls-key-file", "", "key of the certificate")
	flags.IntVar(&s.MaxRecvBytes, "grpc-max-recv-bytes", 4<<20, "largest gRPC message taken")
	flags.DurationVar(&s.KeepaliveTime, "grpc-keepalive-time", 30*time.Second, "idle time after which a connection is pinged")
	flags.IntVar(&s.MaxConnections, "grpc-max-connections", 10_000, "most gRPC connections; more wait")
	flags.IntVar(&s.MaxStreams, "grpc-max-streams", 100, "most calls at once on one gRPC connection; clients hold back more")
	flags.DurationVar(&s.IdleTimeout, "grpc-idle-timeout", 10*time.Minute, "time without a call after which a gRPC connection ends")
	flags.IntVar(&s.Calls.PerSecond, "lookup-max-calls-per-second", 5000, "most reading calls a second of one caller; 0 is no bound")
	flags.IntVar(&s.Calls.Concurrent, "lookup-max-concurrent-calls", 1000, "most reading calls of one caller at once; 0 is no bound")
	flags.DurationVar(&s.ShutdownDelay, "shutdown-delay", 0, "how long to serve on after a signal, while /readyz says no")
	flags.DurationVar(&s.ShutdownGrace, "shutdown-grace", 8*time.Second, "how long running calls may go on after that")
	flags.DurationVar(&s.ReadyMaxWait, "ready-max-wait", 10*time.Second, "longest wait for publishers before /readyz says yes; 0 is not at all")
	flags.IntVar(&s.BlockSize, "engine-block-size", 16, "tokens in a block where no publisher says")
	o.auth.addFlags(flags)
	o.addIndexFlags(flags)
	o.addRankerFlags(flags)
}

func (o *serverOptions) addIndexFlags(flags *pflag.FlagSet) {
	x := &o.server.Index
	flags.StringVar(&o.maxMemory, "index-max-memory", "", "bound of the index's memory, such as 2GiB (default half of what the process may use, at most 8GiB)")
	flags.Int64Var(&x.MaxMemberships, "index-max-entries", 0, "bound of memberships; 0 is none")
	flags.DurationVar(&x.TTL, "index-ttl", 30*time.Minute, "life of an entry that is not reported again")
	flags.DurationVar(&x.SweepInterval, "index-sweep-interval", time.Minute, "time between sweeps; they run at least once a second")
	flags.DurationVar(&x.LFUHalfLife, "lfu-half-life", 0, "time after which access counts of LFU tenants have halved, at least 1m; 0 is never")
	flags.IntVar(&x.MaxTenants, "index-max-tenants", 10_000, "bound of tenants")
	flags.IntVar(&x.MaxPartitions, "index-max-partitions", 100_000, "bound of (tenant, model, scheme, adapter)")
	flags.DurationVar(&x.ReplicaSilence, "replica-silence-timeout", time.Minute, "silence after which a replica that used to talk is left out; 0 is never")
	flags.DurationVar(&x.AffinitySilence, "affinity-silence-timeout", 5*time.Second, "the same for affinity; 0 is never")
	flags.IntVar(&o.server.IngestMaxKeys, "ingest-max-keys", 65_536, "most block keys in one update")
	l := &o.server.ReplicaLimits
	flags.Int64Var(&l.MaxEntries, "ingest-max-entries-per-replica", 0, "most entries of one replica and model; 0 is twice the median of the model's replicas, at least 100000, and -1 no bound")
	flags.IntVar(&l.BlocksPerSecond, "ingest-max-blocks-per-second", 50_000, "most blocks a second of one replica; 0 is no bound")
	flags.IntVar(&l.BurstBlocks, "ingest-burst-blocks", 500_000, "blocks a replica may send at once beyond that")
	flags.BoolVar(&o.server.DiagnoseAdapter, "diagnose-adapter", false, "answer UNKNOWN_ADAPTER for an adapter nobody reported")
	flags.DurationVar(&o.server.DiagnosticsGrace, "diagnostics-grace", 0, "how long after start the UNKNOWN_* codes are withheld")
	flags.IntVar(&o.server.HotPrefixThreshold, "hot-prefix-threshold", 8, "answers in ten to twenty minutes that make a prefix hot")
	flags.StringVar(&o.tokenizersDir, "tokenizer-models-dir", "", "tokenizers for lookups by text, <model>/tokenizer.json with a chat template; none: such lookups get no hint")
	flags.StringVar(&o.server.TemplatesDir, "templates-dir", "", "prompt templates, <namespace>/<name>.yaml; read again when they change")
	flags.DurationVar(&o.server.StreamMetricsInterval, "stream-metrics-interval", 10*time.Second, "time between two rounds of StreamMetrics")
	m := &o.server.Metrics
	flags.IntVar(&m.MaxModels, "metrics-max-models", 512, "most model names in metrics")
	flags.IntVar(&m.MaxUnknownModels, "metrics-max-unknown-models", 64, "most model names in metrics that the index does not know")
	flags.IntVar(&m.MaxTenants, "metrics-max-tenants", 1000, "most tenant names in metrics")
	flags.StringVar(&o.tenantLabels, "metrics-tenant-labels", "on", "tenant names in metrics: on, or off, which leaves out replicas' series too")
	flags.IntVar(&m.MaxReplicas, "metrics-max-replicas", 2000, "most replicas with series of their own; 0 is none")
}

func (o *serverOptions) addRankerFlags(flags *pflag.FlagSet) {
	k := &o.knobs
	flags.Float32Var(&k.PressureWeight, "ranker-pressure-weight", k.PressureWeight, "how strongly pressure lowers a score")
	flags.Int32Var(&k.SLOTightTTFTMillis, "ranker-slo-tight-ttft-ms", k.SLOTightTTFTMillis, "time to first token below which fresh entries are preferred; 0 is never")
	flags.Float32Var(&k.SLOTightBias, "ranker-slo-tight-bias", k.SLOTightBias, "size of that preference; 0 is none")
	flags.Float32Var(&k.TenantHotMinHitRate, "ranker-tenant-hot-min-hit-rate", k.TenantHotMinHitRate, "lowest hit rate of a tenant-hot replica")
	flags.DurationVar(&k.TenantHotMaxAge, "ranker-tenant-hot-max-age", k.TenantHotMaxAge, "age at which a hit rate stops to count; 0 switches TENANT_HOT off")
	flags.Float32Var(&k.TierWeightT2, "ranker-tier-weight-t2", k.TierWeightT2, "factor of matches in host memory")
	flags.Float32Var(&k.TierWeightT3, "ranker-tier-weight-t3", k.TierWeightT3, "factor of matches on disk or remote")
}

func (c *cli) runServer(ctx context.Context, o *serverOptions) error {
	logger, err := c.logger()
	if err != nil {
		return err
	}
	options := o.server
	if options.Internal.Address == "" || options.Internal.PolicyMaxBytes < 1 {
		return usagef("--snapshot-bind-address and --policy-max-bytes: expected an address and at least 1")
	}
	if o.tenantLabels != "on" && o.tenantLabels != "off" {
		return usagef("--metrics-tenant-labels %q: expected on or off", o.tenantLabels)
	}
	options.Metrics.WithoutTenants = o.tenantLabels == "off"
	options.Logger = logger
	options.Registry = prometheus.NewRegistry()
	options.Registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	release, err := o.admission(&options, os.Getenv)
	if err != nil {
		return err
	}
	defer release()
	options.Ranking = &o.knobs
	if o.tokenizersDir != "" {
		if options.Tokenizer, err = tokenize.LoadUserText(o.tokenizersDir); err != nil {
			return fmt.Errorf("--tokenizer-models-dir: %w", err)
		}
	}
	zeroIsNever(&options.Metrics.MaxReplicas, &options.Calls.PerSecond, &options.Calls.Concurrent, &options.ReplicaLimits.BlocksPerSecond)
	zeroIsNever(&options.ReadyMaxWait, &options.Index.ReplicaSilence, &options.Index.AffinitySilence)
	if o.maxMemory != "" {
		size, err := configfile.ParseByteSize(o.maxMemory)
		if err != nil {
			return usagef("--index-max-memory: %w", err)
		}
		options.Index.MaxMemoryBytes = int64(size)
	}
	s, err := server.New(options)
	switch {
	case errors.Is(err, server.ErrOptions):
		return &usageError{err}
	case err != nil:
		return err
	}
	return s.Run(ctx)
}

// zeroIsNever turns the flags' "0 switches it off" into the options' form.
func zeroIsNever[T int | time.Duration](values ...*T) {
	for _, v := range values {
		if *v == 0 {
			*v = -1
		}
	}
}
