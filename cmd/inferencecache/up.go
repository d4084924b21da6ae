// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/inferencecache/inference-cache/internal/configfile"
	"github.com/inferencecache/inference-cache/internal/standalone"
	"github.com/inferencecache/inference-cache/internal/version"
)

type upOptions struct {
	file           string
	engines        []string
	config         standalone.Config // what flags say
	lookupTimeout  time.Duration
	pdMinUncached  int
	pdTimeout      time.Duration
	printAddresses bool
	exitWithStdin  bool
	trace          traceOptions
}

func (c *cli) newUpCommand() *cobra.Command {
	options := &upOptions{}
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Put cache-aware routing in front of engines, in one process",
		Long: `up follows the KV events of the listed engines, keeps the index of which engine
holds which prefix, and serves an OpenAI-compatible API that sends each request
to the engine that holds the longest part of it. It starts without the engines
and uses each as soon as it is there.

It listens on loopback without authentication.

` + traceHelp,
		Example: `  inferencecache up --engine http://127.0.0.1:8000,replay=tcp://127.0.0.1:5600
  inferencecache up --config up.yaml --log-format text`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.runUp(cmd.Context(), options, cmd.Flags())
		},
	}
	options.addFlags(cmd.Flags())
	return cmd
}

func (o *upOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVarP(&o.file, "config", "c", "", "YAML configuration file; flags win over it. Engines and policy are read\nagain when it changes and on SIGHUP")
	flags.StringArrayVarP(&o.engines, "engine", "e", nil, "an engine, repeatable, added to the file's:\n"+standalone.EngineFlagSyntax)
	flags.StringVar(&o.config.Listen, "listen", standalone.DefaultListen, "address of the OpenAI-compatible API; port 0 picks a free one")
	flags.StringVar(&o.config.Admin, "admin", standalone.DefaultAdmin, "address of health, readiness and metrics")
	flags.StringVar(&o.config.GRPC, "grpc", standalone.DefaultGRPC, "address of the index contract")
	flags.StringVar(&o.config.Tenant, "tenant", standalone.DefaultTenant, "owner of the engines in the index")
	flags.StringVar(&o.config.Routing.Policy, "policy", "hint", "hint, round_robin, random, least_load or power_of_two")
	flags.BoolVar(&o.config.Routing.ExposeReplica, "expose-replica", false, "add x-inference-cache-replica and -reason to responses")
	flags.DurationVar(&o.lookupTimeout, "lookup-timeout", 5*time.Millisecond, "bound of one index lookup")
	flags.IntVar(&o.pdMinUncached, "pd-min-uncached", 256, "least uncached prompt tokens that a prefill engine computes for a decode engine, from 1")
	flags.DurationVar(&o.pdTimeout, "pd-prefill-timeout", 60*time.Second, "longest time for a prefill engine to compute a prompt")
	flags.StringVar(&o.config.Tokenizer.Mode, "tokenizer", "engine", "engine: ask the engine; ids: only token-id prompts get hints")
	o.trace.addFlags(flags)
	flags.BoolVar(&o.printAddresses, "print-addresses", false, "print the addresses in use as one JSON line on standard output")
	flags.BoolVar(&o.exitWithStdin, "exit-with-stdin", false, "shut down when standard input closes, as with SIGTERM")
}

// load joins the file and the flags that were given.
func (o *upOptions) load(flags *pflag.FlagSet) (standalone.Config, error) {
	var config standalone.Config
	if o.file != "" {
		loaded, err := standalone.LoadFile(o.file)
		if err != nil {
			return config, &usageError{err}
		}
		config = loaded
	}
	for name, apply := range map[string]func(){
		"listen":             func() { config.Listen = o.config.Listen },
		"admin":              func() { config.Admin = o.config.Admin },
		"grpc":               func() { config.GRPC = o.config.GRPC },
		"tenant":             func() { config.Tenant = o.config.Tenant },
		"policy":             func() { config.Routing.Policy = o.config.Routing.Policy },
		"expose-replica":     func() { config.Routing.ExposeReplica = o.config.Routing.ExposeReplica },
		"lookup-timeout":     func() { config.Routing.LookupTimeout = standalone.Duration(o.lookupTimeout) },
		"pd-min-uncached":    func() { config.Routing.PDMinUncached = standalone.Count(o.pdMinUncached) },
		"pd-prefill-timeout": func() { config.Routing.PDPrefillTimeout = standalone.Duration(o.pdTimeout) },
		"tokenizer":          func() { config.Tokenizer.Mode = o.config.Tokenizer.Mode },
	} {
		if flags.Changed(name) {
			apply()
		}
	}
	for _, text := range o.engines {
		engine, err := standalone.ParseEngine(text)
		if err != nil {
			return config, usagef("--engine: %w", err)
		}
		config.Engines = append(config.Engines, engine)
	}
	if err := config.Validate(); err != nil {
		return config, &usageError{err}
	}
	return config, nil
}

func (c *cli) runUp(ctx context.Context, o *upOptions, flags *pflag.FlagSet) error {
	config, err := o.load(flags)
	if err != nil {
		return err
	}
	c.adoptLogSettings(config.Log, flags)
	logger, err := c.logger()
	if err != nil {
		return err
	}
	if len(config.Engines) == 0 {
		logger.Warn("no engine is configured: every request will be answered 503; use --engine or the file's engines")
	}
	watched, err := c.openObservation(ctx, &o.trace, flags, logger)
	if err != nil {
		return err
	}
	defer watched.close()
	up, err := standalone.New(config, standalone.Deps{
		Logger: logger, Version: version.Get().Version, Trace: watched.trace, AccessLog: watched.accessLog,
		Profiling: o.trace.profiling, RequestIDHeaders: o.trace.requestIDHeaders,
	})
	if err != nil {
		return err
	}
	if err := up.Start(); err != nil {
		return err
	}
	if o.printAddresses {
		if err := json.NewEncoder(c.stdout).Encode(up.Addresses()); err != nil {
			return err
		}
	}
	if o.exitWithStdin {
		ctx = c.untilStdinCloses(ctx)
	}
	if o.file == "" {
		return up.Run(ctx)
	}
	watcher := configfile.Watcher{
		Path: o.file, Reloads: up.Reloads(), Logger: logger,
		Apply: func() error {
			config, err := o.load(flags)
			if err != nil {
				return err
			}
			return up.Reload(config)
		},
	}
	return watching(ctx, watcher, up.Run)
}

// adoptLogSettings takes the file's log settings where no flag was given.
func (c *cli) adoptLogSettings(log standalone.Log, flags *pflag.FlagSet) {
	if log.Format != "" && !flags.Changed("log-format") {
		c.logFormat = log.Format
	}
	if log.Level != "" && !flags.Changed("log-level") {
		c.logLevel = log.Level
	}
}
