// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/inferencecache/inference-cache/internal/credential"
	"github.com/inferencecache/inference-cache/internal/gateway"
	"github.com/inferencecache/inference-cache/internal/routing"
)

type gatewayOptions struct {
	gateway  gateway.Options
	replicas []string
	index    string
	hedge    string
	trace    traceOptions
	file     string

	credentials credential.Options
}

func (c *cli) newGatewayCommand() *cobra.Command {
	options := &gatewayOptions{}
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "Proxy the OpenAI API to the replica that holds the prefix",
		Long: `gateway serves the OpenAI API and sends each request to one of its replicas. It
asks the index who holds the prompt's prefix and follows the answer while load
allows; without an answer it goes by load. The index, the tokenizer and any
replica may fail: requests still flow, and the reason is in the metrics.

--config names a file of replicas, policies, limits and trace switches, see
docs/gateway-operations.md. It is read again when it changes and on SIGHUP; one
with a fault is refused, and what was in force stays. Flags win over it.

--replica ` + gateway.ReplicaFlagSyntax + `
ID is the name under which the replica's publisher reports blocks: the pod name
in Kubernetes, else the engine's host:port. rank pins requests to one
data-parallel rank, whose ID ends in #N. model is needed only for engines
without /v1/models. A replica with another uid than before starts without any
state. caller reserves a replica for callers of a tenant; a cordoned one finishes
what it has and gets nothing new. prefill and decode replicas of one model share
a request: one computes the prompt, the other one takes its KV and answers, by
NIXL (vllm) or bootstrap (sglang, with bootstrap-port, 8998 by default).

` + traceHelp + `

Example:
  inferencecache gateway --index 127.0.0.1:9090 \
    --replica 10.0.0.1:8000=http://10.0.0.1:8000 \
    --replica 10.0.0.2:8000=http://10.0.0.2:8000`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.runGateway(cmd.Context(), options, cmd.Flags()) },
	}
	options.addFlags(cmd.Flags())
	cmd.AddCommand(c.newGatewayKeyCommand())
	return cmd
}

func (o *gatewayOptions) addFlags(flags *pflag.FlagSet) {
	g := &o.gateway
	flags.StringVar(&g.Listen, "listen", ":8000", "address for clients; port 0 picks a free one")
	flags.StringVar(&g.AdminListen, "admin-listen", "127.0.0.1:8080", "address of /healthz, /readyz, /metrics, /debug/state, /debug/trace and /debug/explain")
	flags.StringVarP(&o.file, "config", "c", "", "YAML file of replicas, policies, limits and trace switches; read again when it changes and on SIGHUP")
	flags.StringArrayVar(&o.replicas, "replica", nil, "a replica, see above; may be repeated")
	flags.StringVar(&o.index, "index", "", "gRPC address of the server; without it every request goes by load")
	addCredentialFlags(flags, &o.credentials)
	flags.StringVar(&g.Tenant, "tenant", "local", "tenant of the replicas' blocks in the index: their namespace in Kubernetes")
	flags.StringVar(&g.Policy, "policy", routing.PolicyHint, "how to choose: "+strings.Join(routing.PolicyNames(), ", "))
	flags.StringVar(&g.Fallback, "fallback", routing.PolicyApprox, "policy for requests without a usable hint")
	addTokenizerFlags(flags, g)
	flags.IntVar(&g.BlockSize, "block-size", 0, "tokens in a block; 0 asks the engines")
	flags.BoolVar(&g.ExposeReplica, "expose-replica", false, "add x-inference-cache-replica and x-inference-cache-reason to answers")
	flags.BoolVar(&g.ForwardAuthorization, "forward-authorization", false, "send the client's Authorization header to engines, unless it holds an API key of the gateway")
	flags.BoolVar(&g.Retry500, "retry-500", false, "retry answers 500 and 408 too, not only 429, 502, 503 and 504")
	flags.IntVar(&g.UsageSample, "usage-sample", 10, "check predictions against the usage of one streamed request in this many; 0 is none")
	flags.Int64Var(&g.MaxBodyBytes, "max-body-bytes", 10<<20, "largest request body")
	flags.IntVar(&g.MaxInflight, "max-inflight", 0, "most requests under way, others wait; 0 is no bound")
	flags.IntVar(&g.QueueLimit, "queue-limit", 100, "most requests that wait for a place; 0 is none")
	flags.DurationVar(&g.ShedTTFT, "shed-ttft", 0, "refuse requests that every replica would make wait longer; 0 is never")
	flags.StringVar(&o.hedge, "hedge-after", "off", "try a second replica when the first byte takes longer than this percentile: p50 to p99, or off")
	flags.StringVar(&g.StickyHeader, "sticky-header", "", "header with a key whose requests stay on one replica while it has room")
	flags.StringVar(&g.StickyField, "sticky-field", "", "member of the body with such a key")
	flags.BoolVar(&g.Warmup, "warmup", false, "send new replicas a share of the requests whose prefix they do not hold")
	flags.IntVar(&g.PDMinUncached, "pd-min-uncached", 256, "least uncached prompt tokens that a prefill replica computes for a decode replica")
	flags.IntVar(&g.MaxConnections, "max-connections", 10_000, "most client connections")
	addAccessFlags(flags, &g.Access)
	o.trace.addFlags(flags)
	o.addTimeouts(flags)
}

func (o *gatewayOptions) addTimeouts(flags *pflag.FlagSet) {
	t := &o.gateway.Timeouts
	flags.DurationVar(&t.Lookup, "lookup-timeout", 5*time.Millisecond, "longest wait for the index")
	flags.DurationVar(&t.Tokenize, "tokenize-timeout", 100*time.Millisecond, "longest wait for a tokenizer")
	flags.DurationVar(&t.HeaderRead, "header-read-timeout", 10*time.Second, "longest time to read the headers of a request")
	flags.DurationVar(&t.BodyRead, "body-read-timeout", 60*time.Second, "longest time to read a request body")
	flags.DurationVar(&t.FirstByte, "first-byte-timeout", 300*time.Second, "longest wait for an answer to begin")
	flags.DurationVar(&t.PDPrefill, "pd-prefill-timeout", 60*time.Second, "longest time for a prefill replica to compute a prompt")
	flags.DurationVar(&t.Idle, "idle-timeout", 120*time.Second, "longest pause within an answer")
	flags.DurationVar(&t.Queue, "queue-timeout", 5*time.Second, "longest wait for a place among the requests under way")
	flags.DurationVar(&t.Drain, "drain-timeout", 300*time.Second, "how long requests at a replica that was removed may go on")
	flags.DurationVar(&t.HealthInterval, "health-interval", 5*time.Second, "time between health checks of a replica")
	flags.DurationVar(&t.Health, "health-timeout", 2*time.Second, "longest time for a health check")
	flags.DurationVar(&t.ShutdownDelay, "shutdown-delay", 0, "how long to go on accepting requests after a signal")
	flags.DurationVar(&t.ShutdownGrace, "shutdown-grace", 3*time.Second, "how long running requests may go on after that")
}

// dialIndex connects to the index with the credentials of the flags.
func (o *gatewayOptions) dialIndex(logger *slog.Logger) (*grpc.ClientConn, error) {
	o.credentials.Logger = logger
	client, err := credential.Open(o.credentials)
	if err != nil {
		return nil, err
	}
	hostPort := o.index[strings.LastIndexByte(o.index, '/')+1:] // without a resolver's name
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		host = hostPort
	}
	if err := client.Check(host); err != nil {
		return nil, err
	}
	return grpc.NewClient(o.index, client.DialOptions(host)...)
}

func (c *cli) runGateway(ctx context.Context, o *gatewayOptions, flags *pflag.FlagSet) error {
	logger, err := c.logger()
	if err != nil {
		return err
	}
	options := o.gateway
	options.Logger = logger
	if options.UsageSample == 0 {
		options.UsageSample = -1
	}
	if options.PDMinUncached == 0 {
		options.PDMinUncached = -1
	}
	if options.QueueLimit == 0 {
		options.QueueLimit = -1
	}
	if options.HedgePercentile, err = gateway.ParseHedgeAfter(o.hedge); err != nil {
		return usagef("--hedge-after: %w", err)
	}
	options.Registry = prometheus.NewRegistry()
	options.Registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	for _, text := range o.replicas {
		replica, err := gateway.ParseReplica(text)
		if err != nil {
			return usagef("--replica: %w", err)
		}
		options.Replicas = append(options.Replicas, replica)
	}
	if o.index != "" {
		connection, err := o.dialIndex(logger)
		if err != nil {
			return usagef("--index %q: %w", o.index, err)
		}
		defer connection.Close()
		options.Lookuper = gateway.NewRemoteLookuper(connection)
	}
	watched, err := c.openObservation(ctx, &o.trace, flags, logger)
	if err != nil {
		return err
	}
	defer watched.close()
	options.Trace, options.AccessLog = watched.trace, watched.accessLog
	options.Profiling, options.RequestIDHeaders = o.trace.profiling, o.trace.requestIDHeaders
	completed, err := o.complete(options, flags)
	if err != nil {
		return &usageError{err}
	}
	if len(completed.Replicas) == 0 {
		logger.Warn("no replica is configured: every request will be answered 503; use --replica or --config")
	}
	g, err := gateway.New(completed)
	switch {
	case errors.Is(err, gateway.ErrOptions):
		return &usageError{err}
	case err != nil:
		return err
	}
	if o.file == "" {
		return g.Run(ctx)
	}
	return o.runReloading(ctx, g, options, flags)
}
