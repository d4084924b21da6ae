// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/inferencecache/inference-cache/internal/publisher"
	"github.com/inferencecache/inference-cache/internal/sidecar"
	"github.com/inferencecache/inference-cache/internal/version"
)

type publisherOptions struct {
	sidecar    sidecar.Options
	socket     string
	onGap      string
	hidden     string
	adapters   []string
	statsEvery time.Duration
	ceiling    float64
	// unread is why the flags could not all be read.
	unread error
}

func (c *cli) newPublisherCommand() *cobra.Command {
	options := &publisherOptions{}
	cmd := &cobra.Command{
		Use:     "publisher",
		Aliases: []string{"kvevent-subscriber"},
		Short:   "Report one engine's cached blocks and load to the servers",
		Long: `publisher follows the KV events of one engine, data-parallel ranks included,
and keeps every server equal to what the engine holds. It waits for an engine
or a server that is not there. HTTP serves /livez, /readyz, /status and /metrics.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.runPublisher(cmd.Context(), options) },
	}
	options.addFlags(cmd.Flags())
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		options.readOn(cmd.Flags(), c.args)
		if !options.sidecar.KeepRunning {
			return &usageError{err}
		}
		options.unread = err
		return c.runPublisher(cmd.Context(), options)
	})
	return cmd
}

// readOn sets the flags behind those that cannot be read.
func (o *publisherOptions) readOn(flags *pflag.FlagSet, args []string) {
	for i := range args {
		_ = flags.Parse(args[i:]) // up to the next one
	}
}

func (o *publisherOptions) addFlags(flags *pflag.FlagSet) {
	p := &o.sidecar.Publisher
	flags.StringVar(&p.BaseURL, "engine-url", "", "HTTP API of the engine; tells what other flags leave open")
	flags.StringVar(&p.Events, "engine-endpoint", "", "event socket of rank 0 (default: what the engine tells, else port 5557 of --engine-url)")
	flags.StringVar(&o.socket, "engine-socket", "connect", "connect to the event socket, or bind it for the engine to connect")
	flags.StringVar(&p.Replay, "replay-endpoint", "", "replay socket of rank 0")
	flags.StringVar(&p.Topic, "topic", "", "prefix of the topics wanted (default all)")
	flags.IntVar(&p.Ranks, "data-parallel-ranks", 0, "ranks to follow, each at the ports of rank 0 plus its number; 0 is what the engine tells")
	flags.IntVar(&p.FirstRank, "data-parallel-first-rank", 0, "number of the first of them")

	flags.StringVar(&p.Tenant, "tenant-id", envOr("POD_NAMESPACE", "local"), "owner of the engine")
	flags.StringVar(&p.Replica, "replica-id", os.Getenv("POD_NAME"), "name of the engine in the index")
	flags.StringVar(&p.Model, "model-id", "", "model of the engine (default: what it lists)")
	flags.StringVar(&p.Scheme, "hash-scheme", "vllm", "runtime of the engine: vllm, sglang or tensorrt-llm")
	flags.StringVar(&p.PodUID, "pod-uid", os.Getenv("POD_UID"), "pod that engine and publisher share: part of the incarnation, and whoever ends there is gone")

	flags.StringSliceVar(&o.sidecar.Servers, "server", nil, "host:port of a server, or dns:///host:port for all behind a name; may be repeated")
	addCredentialFlags(flags, &o.sidecar.Credentials)

	flags.StringVar(&o.sidecar.HTTPAddress, "metrics-bind-address", ":9095", "address of health, status and metrics; empty is none")
	flags.BoolVar(&o.sidecar.KeepRunning, "no-exit", false, "stay alive, unready, where options are wrong or unknown")
	o.addLoadFlags(flags)
	o.addEventFlags(flags)
}

func (o *publisherOptions) addLoadFlags(flags *pflag.FlagSet) {
	p := &o.sidecar.Publisher
	flags.StringVar(&p.MetricsURL, "engine-metrics-url", "", "where load is read (default: the usual path of --engine-url)")
	flags.DurationVar(&o.statsEvery, "stats-interval", 10*time.Second, "time between two readings of the load; 0 is never")
	flags.Float64Var(&o.ceiling, "pressure-ceiling", 256, "running and waiting requests that are full pressure; 0 reports none")
	flags.Int64Var(&p.Load.CacheBytes, "engine-cache-size-bytes", 0, "size of the engine's KV cache; 0 is unknown")
	flags.StringVar(&p.Load.Model, "engine-metrics-model", "", "model_name of the series that count (default all)")
	flags.BoolVar(&p.Load.HitRateFromTokens, "hit-rate-from-tokens", false, "compute SGLang's hit rate from its token counters")
}

func (o *publisherOptions) addEventFlags(flags *pflag.FlagSet) {
	s := &o.sidecar.Publisher.Session
	flags.IntVar(&s.BlockSize, "block-size", 0, "tokens in a block; 0 learns it")
	flags.IntVar(&s.MinBlockSize, "min-block-size", 2, "smallest block size that is reported")
	flags.IntVar(&s.ParkedBlocks, "parked-blocks", 65_536, "most blocks that wait for their parent")
	flags.BoolVar(&s.IgnoreBlockRemoved, "ignore-block-removed", false, "an offload tier keeps what leaves the engine's memory, and announces nothing")
	flags.StringSliceVar(&o.adapters, "lora-adapter-names", nil, "ID=NAME of adapters that events only number; may be repeated")
	flags.StringVar(&o.onGap, "on-gap", string(publisher.GapSuspect), "what to do with older blocks after a gap nothing fills: suspect, reset or keep")
	flags.StringVar(&o.hidden, "hidden-identity", string(publisher.HiddenIdentityCount), "what to do with blocks whose events hide a salt or an image: count or withdraw")
}

// complete turns the flags' forms into the options'.
func (o *publisherOptions) complete() error {
	p := &o.sidecar.Publisher
	switch o.socket {
	case "connect", "bind":
		p.Bind = o.socket == "bind"
	default:
		return usagef("--engine-socket %q: expected connect or bind", o.socket)
	}
	switch p.Session.OnGap = publisher.GapPolicy(o.onGap); p.Session.OnGap {
	case publisher.GapSuspect, publisher.GapReset, publisher.GapKeep:
	default:
		return usagef("--on-gap %q: expected suspect, reset or keep", o.onGap)
	}
	switch p.Session.HiddenIdentity = publisher.HiddenIdentityPolicy(o.hidden); p.Session.HiddenIdentity {
	case publisher.HiddenIdentityCount, publisher.HiddenIdentityWithdraw:
	default:
		return usagef("--hidden-identity %q: expected count or withdraw", o.hidden)
	}
	p.Hub.GoneAtEnd = p.PodUID != ""
	p.StatsInterval, p.Load.Ceiling = o.statsEvery, o.ceiling
	if o.statsEvery <= 0 {
		p.StatsInterval = -1
	}
	if o.ceiling <= 0 {
		p.Load.Ceiling = -1
	}
	p.Session.LoRAIDs = map[int64]string{}
	for _, pair := range o.adapters {
		id, name, ok := strings.Cut(pair, "=")
		n, err := strconv.ParseInt(id, 10, 64)
		if !ok || err != nil || name == "" {
			return usagef("--lora-adapter-names %q: expected ID=NAME", pair)
		}
		p.Session.LoRAIDs[n] = name
	}
	return nil
}

func (c *cli) runPublisher(ctx context.Context, o *publisherOptions) error {
	logger, err := c.logger()
	if err != nil {
		return err
	}
	fault := o.complete()
	options := o.sidecar
	options.Fault = cmp.Or(o.unread, fault)
	options.Logger = logger
	options.Version = version.Get().Version
	options.Registry = prometheus.NewRegistry()
	options.Registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	s, err := sidecar.New(options)
	switch {
	case errors.Is(err, sidecar.ErrOptions):
		return &usageError{err}
	case err != nil:
		return err
	}
	logger.Info("publisher is running", "replica", options.Publisher.Replica, "http", s.HTTPAddress())
	return s.Run(ctx)
}

func envOr(name, fallback string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return fallback
}
