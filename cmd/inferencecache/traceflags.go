// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/inferencecache/inference-cache/internal/gateway"
	"github.com/inferencecache/inference-cache/internal/trace"
	"github.com/inferencecache/inference-cache/internal/trace/otlp"
	"github.com/inferencecache/inference-cache/internal/version"
)

// traceHelp belongs to the help of commands with these flags.
const traceHelp = `The trace records who chose a replica and why. The latest records are always in
memory, see 'inferencecache explain'. --cache-trace-header adds a compact form
to answers, for trusted clients, who must verify root_id and remove the header
before they answer anybody else; --cache-trace-header=any tells everybody engine
ids and policy predictions. Predictions are not hits: only engine_cached_tokens
is the engine's own figure. Each --cache-trace flag may also be set by
INFERENCE_CACHE_ and its name, such as INFERENCE_CACHE_CACHE_TRACE_SAMPLE.`

// traceOptions are the flags of the trace, the access log and profiling.
type traceOptions struct {
	switches  trace.Switches
	file      string
	endpoint  string
	accessLog string

	profiling        bool
	requestIDHeaders []string
}

func (o *traceOptions) addFlags(flags *pflag.FlagSet) {
	s := &o.switches
	flags.BoolVar(&s.Log, "cache-trace", false, "log a record of each decision; alone it changes no byte of an answer")
	flags.Var((*headerMode)(&s.Header), "cache-trace-header", "add the trace header to answers: trusted (clients of the trusted listener), any, or off")
	flags.Lookup("cache-trace-header").NoOptDefVal = string(trace.HeaderTrusted)
	flags.BoolVar(&s.RequestOptin, "cache-trace-request-optin", false, "let trusted clients ask for the header of one request with x-inference-cache-trace: 1")
	flags.StringSliceVar(&s.OptinTenants, "cache-trace-request-optin-tenants", nil, "authenticated tenants that may ask too")
	flags.BoolVar(&s.Outcome, "cache-trace-outcome", false, "add records of how answers ended, with the engine's own cached tokens")
	flags.Var((*sampleValue)(&s.Sample), "cache-trace-sample", "log one request in this many, and each with a failure; anything but a number from 1 is 1")
	flags.IntVar(&s.MaxLineBytes, "cache-trace-max-line-bytes", trace.DefaultLineBytes, "longest line of a record")
	flags.IntVar(&s.MaxHeaderBytes, "cache-trace-max-header-bytes", trace.DefaultHeaderBytes, "longest trace header, at most 4096; a longer one is left out")
	flags.StringVar((*string)(&s.ReplicaNames), "cache-trace-replica-names", string(trace.NamesFull), "replicas in lines and spans: full, hash (keyed per process) or none")
	flags.BoolVar(&s.HeaderReplica, "cache-trace-header-replica", false, "add the chosen replica's id to the trace header")
	flags.StringVar(&s.HeaderName, "cache-trace-header-name", strings.ToLower(trace.HeaderName), "name of the trace header, or x-smg-cache-trace")
	flags.StringVar(&o.file, "cache-trace-file", "", "write the records to this file as JSON lines; rotated at 100 MiB, 5 old files are kept")
	flags.StringVar(&o.endpoint, "otlp-endpoint", "", "send spans to this OpenTelemetry collector over HTTP, such as http://127.0.0.1:4318; also by "+otlp.EnvEndpoint)
	flags.StringVar(&o.accessLog, "access-log", "", "write a line of JSON for each request to this file, - is standard output; rotated like the trace")
	flags.BoolVar(&o.profiling, "pprof", false, "serve /debug/pprof/ on the admin address")
	flags.StringSliceVar(&o.requestIDHeaders, "request-id-header", nil, "headers that may carry a request's id, the first present counts (default x-request-id,x-correlation-id,x-trace-id,request-id)")
}

// headerMode is a trace.HeaderMode as a flag that may stand without a value.
type headerMode trace.HeaderMode

// String implements pflag.Value.
func (m *headerMode) String() string {
	if *m == "" {
		return string(trace.HeaderOff)
	}
	return string(*m)
}

// Set implements pflag.Value.
func (m *headerMode) Set(text string) error {
	switch text {
	case "1", "true", string(trace.HeaderTrusted):
		*m = headerMode(trace.HeaderTrusted)
	case string(trace.HeaderAny):
		*m = headerMode(trace.HeaderAny)
	case "0", "false", string(trace.HeaderOff):
		*m = headerMode(trace.HeaderOff)
	default:
		return fmt.Errorf("%.32q: expected trusted, any or off", text)
	}
	return nil
}

// Type implements pflag.Value.
func (*headerMode) Type() string { return "mode" }

// sampleValue is a number that falls back to 1.
type sampleValue int

// String implements pflag.Value.
func (v *sampleValue) String() string { return strconv.Itoa(max(int(*v), 1)) }

// Set implements pflag.Value.
func (v *sampleValue) Set(text string) error {
	number, err := strconv.Atoi(text)
	if err != nil || number < 1 {
		number = 1
	}
	*v = sampleValue(number)
	return nil
}

// Type implements pflag.Value.
func (*sampleValue) Type() string { return "N" }

// Environment variables of another gateway that mean the same.
const (
	envSMGTrace  = "SMG_CACHE_TRACE"
	envSMGHeader = "SMG_CACHE_TRACE_HEADER"
)

// fromEnvironment sets the trace flags that were not given. Only the exact
// value 1 of another gateway's variables counts, and its header only with its
// log.
func (o *traceOptions) fromEnvironment(flags *pflag.FlagSet, lookup func(string) (string, bool), logger *slog.Logger) error {
	var failure error
	flags.VisitAll(func(flag *pflag.Flag) {
		name := "INFERENCE_CACHE_" + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
		value, given := lookup(name)
		if !strings.HasPrefix(flag.Name, "cache-trace") || flag.Changed || !given || failure != nil {
			return
		}
		if err := flags.Set(flag.Name, value); err != nil {
			failure = usagef("%s: %w", name, err)
		}
	})
	if value, _ := lookup(envSMGTrace); failure != nil || value != "1" {
		return failure
	}
	adopt := func(name, flag, value string) error {
		if flags.Changed(flag) {
			return nil
		}
		logger.Info("a variable of another gateway is in use", "variable", name, "flag", "--"+flag)
		return flags.Set(flag, value)
	}
	if err := adopt(envSMGTrace, "cache-trace", "true"); err != nil {
		return err
	}
	if value, _ := lookup(envSMGHeader); value != "1" {
		return nil
	}
	return adopt(envSMGHeader, "cache-trace-header", string(trace.HeaderTrusted))
}

// observation is what the flags come to, to be closed after the gateway.
type observation struct {
	trace     gateway.Trace
	accessLog trace.LineSink
	close     func()
}

// closeFor bounds how long the last spans may take.
const closeFor = 2 * time.Second

// open makes what the flags ask for.
func (c *cli) openObservation(ctx context.Context, o *traceOptions, flags *pflag.FlagSet, logger *slog.Logger) (*observation, error) {
	if err := o.fromEnvironment(flags, os.LookupEnv, logger); err != nil {
		return nil, err
	}
	switch strings.ToLower(o.switches.HeaderName) {
	case strings.ToLower(trace.HeaderName):
		o.switches.HeaderName = trace.HeaderName
	case strings.ToLower(trace.HeaderAlias):
		o.switches.HeaderName = trace.HeaderAlias
	}
	if err := o.switches.Validate(); err != nil {
		return nil, &usageError{err}
	}
	out := &observation{trace: gateway.Trace{Switches: o.switches, File: o.file}, close: func() {}}
	switch o.accessLog {
	case "":
	case "-":
		out.accessLog = trace.NewWriterSink(c.stdout)
	default:
		file, err := trace.OpenFile(o.accessLog, trace.FileOptions{})
		if err != nil {
			return nil, usagef("--access-log: %w", err)
		}
		out.accessLog = file
	}
	if o.endpoint == "" && os.Getenv(otlp.EnvEndpoint) == "" && os.Getenv(otlp.EnvTracesEndpoint) == "" {
		return out, nil
	}
	provider, err := otlp.New(ctx, otlp.Options{
		Endpoint: o.endpoint, Service: "inference-cache-gateway", Version: version.Get().Version, Logger: logger,
	})
	if err != nil {
		return nil, usagef("--otlp-endpoint: %w", err)
	}
	out.trace.Tracer = provider.Tracer()
	out.close = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeFor)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			logger.Warn("the last spans were not sent", "error", err)
		}
	}
	return out, nil
}
