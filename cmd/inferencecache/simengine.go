// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/inferencecache/inference-cache/internal/sim/engine"
	"github.com/inferencecache/inference-cache/internal/sim/eventsock"
	"github.com/inferencecache/inference-cache/internal/sim/httpapi"
	"github.com/inferencecache/inference-cache/internal/sim/wire"
	"github.com/inferencecache/inference-cache/internal/zmtp"
)

// simEngineGrace is how long open streams may go on after a signal.
const simEngineGrace = 3 * time.Second

const (
	// replayPorts is how far the replay socket is from the event socket.
	replayPorts = 100
	// lastingReplay is the replay socket where the event socket gives none.
	lastingReplay = "tcp://*:5657"
)

type simEngineOptions struct {
	config         engine.Config
	runtime        string
	events         string
	eventsConfig   string
	transferConfig string
	role           string
	printAddresses bool
	exitWithStdin  bool
}

func (c *cli) newSimEngineCommand() *cobra.Command {
	options := &simEngineOptions{}
	cmd := &cobra.Command{
		Use:   "sim-engine",
		Short: "Run a simulated LLM engine",
		Long: `sim-engine behaves like one vLLM or SGLang server: OpenAI endpoints, a real
block pool with prefix reuse and eviction, KV events with replay, and the
engine's metric names. Token ids are byte values, answers depend on the prompt
alone, and time follows a simple model of prefill and decode.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.runSimEngine(cmd.Context(), options) },
	}
	options.addFlags(cmd.Flags())
	return cmd
}

func (o *simEngineOptions) addFlags(flags *pflag.FlagSet) {
	config := &o.config
	flags.StringVar(&config.Listen, "listen", "127.0.0.1:8000", "HTTP address; port 0 picks a free one")
	flags.StringVar(&o.runtime, "runtime", "vllm", "engine to simulate: vllm or sglang")
	flags.StringVar(&config.Model, "model", "sim", "id of the base model")
	flags.StringSliceVar(&config.Adapters, "adapter", nil, "id of a LoRA adapter; may be repeated")
	flags.IntVar(&config.Ranks, "ranks", 1, "data-parallel ranks; rank N publishes on the event ports plus N")
	flags.IntVar(&config.Ranks, "data-parallel-size", 1, "the same by its name in engines")

	flags.StringVar(&o.events, "events", "tcp://*:5557", "endpoint of the event socket, or none")
	flags.BoolVar(&config.Events.Connect, "events-connect", false, "connect the event socket to a subscriber that binds")
	flags.StringVar(&config.Events.Replay, "replay", "",
		"endpoint of the replay socket, or none (default that of --events with a port higher by 100, else tcp://*:5657)")
	flags.StringVar(&config.Events.Topic, "topic", "", "topic of the events")
	flags.StringVar(&o.eventsConfig, "kv-events-config", "",
		"the event sockets as engines take them, in JSON; replaces --events, --events-connect, --replay and --topic")
	flags.StringVar(&o.transferConfig, "kv-transfer-config", "", "what engines are told of a KV connector, in JSON; the offload itself is not simulated")
	flags.Bool("disable-hybrid-kv-cache-manager", false, "taken as by engines; without effect")
	flags.IntVar(&config.Events.BufferSteps, "buffer-steps", 10000, "batches kept for replay")
	flags.BoolVar(&config.Events.TopicInReplay, "replay-topic", false, "replay with topics, as vLLM 0.25 and later do")
	flags.StringVar(&config.EventShape, "event-shape", "",
		"event form: "+strings.Join(wire.ShapeNames(), ", ")+" (default vllm-0.24, or sglang-0.5.9)")
	flags.BoolVar(&config.ByteHashes, "byte-hashes", false, "send whole digests instead of integers")
	flags.StringVar(&config.HashSeed, "hash-seed", "0", "PYTHONHASHSEED of the engine, or "+engine.RandomHashSeed)

	flags.IntVar(&config.Scheduler.BlockSize, "block-size", 16, "tokens in a block")
	flags.IntVar(&config.Scheduler.CapacityBlocks, "blocks", 4096, "blocks in the pool of each rank")
	flags.IntVar(&config.Scheduler.MaxRunning, "max-running", 256, "most requests in one step")
	flags.IntVar(&config.Scheduler.StepTokens, "step-tokens", 2048, "most tokens computed in one step")
	flags.IntVar(&config.Scheduler.MaxModelTokens, "max-model-len", 0, "most tokens of prompt and answer; 0 is what the pool holds")
	flags.Float64Var(&config.Timing.PrefillTokensPerSecond, "prefill-rate", 8000, "prompt tokens computed per second")
	flags.DurationVar(&config.Timing.DecodeStep, "decode-step", 8*time.Millisecond, "least time of a step that decodes")
	flags.Float64Var(&config.Timing.Speed, "speed", 1, "divides all times")
	flags.Uint64Var(&config.AnswerSeed, "answer-seed", 0, "chooses the answers; engines with equal seeds answer alike")

	flags.StringVar(&o.role, "role", "single", "part in split prefill and decode: single, prefill or decode")
	flags.StringVar(&config.BootstrapListen, "bootstrap-listen", "127.0.0.1:8998", "address where decode engines meet an SGLang prefill engine")
	flags.DurationVar(&config.HoldFor, "transfer-ttl", 480*time.Second, "how long a vLLM engine keeps blocks for a decode engine")

	flags.BoolVar(&config.HideCachedTokens, "hide-cached-tokens", false, "leave cached tokens out of usage")
	flags.BoolVar(&config.Faults, "faults", false, "inject faults asked for at POST /sim/fault")
	flags.BoolVar(&o.printAddresses, "print-addresses", false, "print the addresses as one JSON line on stdout")
	flags.BoolVar(&o.exitWithStdin, "exit-with-stdin", false, "exit when stdin is closed, so that no parent leaves an orphan")
}

func (o *simEngineOptions) engineConfig() engine.Config {
	config := o.config
	config.Runtime = httpapi.Runtime(o.runtime)
	if o.role != "single" {
		config.Role = httpapi.Role(o.role)
	}
	config.NoEvents = o.events == eventsock.NoReplay
	config.Events.Endpoint = o.events
	if config.Events.Replay == "" {
		config.Events.Replay = o.defaultReplay()
	}
	return config
}

// checkTransferConfig refuses what an engine could not start with.
func (o *simEngineOptions) checkTransferConfig() error {
	if o.transferConfig == "" {
		return nil
	}
	var transfer struct {
		Connector string `json:"kv_connector"`
		Role      string `json:"kv_role"`
	}
	if err := json.Unmarshal([]byte(o.transferConfig), &transfer); err != nil {
		return usagef("--kv-transfer-config: %v", err)
	}
	if transfer.Connector == "" || transfer.Role == "" {
		return usagef("--kv-transfer-config: expected kv_connector and kv_role")
	}
	return nil
}

// defaultReplay follows the event socket, so that engines of one machine need
// no more than HTTP addresses and event sockets of their own.
func (o *simEngineOptions) defaultReplay() string {
	endpoint, err := zmtp.ParseEndpoint(o.events)
	if err != nil || endpoint.Network != "tcp" || o.config.Events.Connect {
		return lastingReplay
	}
	if endpoint.Port == 0 {
		return o.events
	}
	shifted, err := endpoint.Shift(replayPorts)
	if err != nil {
		return lastingReplay
	}
	return shifted.String()
}

// simEngineAddresses is what --print-addresses prints.
type simEngineAddresses struct {
	HTTP   string `json:"http"`
	Events string `json:"events,omitempty"`
	Replay string `json:"replay,omitempty"`
	// Bootstrap is where decode engines meet an SGLang prefill engine.
	Bootstrap string `json:"bootstrap,omitempty"`
}

func (c *cli) runSimEngine(ctx context.Context, options *simEngineOptions) error {
	logger, err := c.logger()
	if err != nil {
		return err
	}
	if err := options.applyEventsConfig(); err != nil {
		return err
	}
	if err := options.checkTransferConfig(); err != nil {
		return err
	}
	config := options.engineConfig()
	if err := config.Validate(); err != nil {
		return usagef("%v", err)
	}
	running, err := engine.Start(context.WithoutCancel(ctx), config)
	if err != nil {
		return err
	}
	if options.exitWithStdin {
		ctx = c.untilStdinCloses(ctx)
	}
	addresses := simEngineAddresses{HTTP: running.URL(), Events: running.EventsEndpoint(), Replay: running.ReplayEndpoint(), Bootstrap: running.BootstrapAddress()}
	logger.Info("simulated engine serves", "http", addresses.HTTP, "events", addresses.Events, "replay", addresses.Replay)
	if options.printAddresses {
		if err := json.NewEncoder(c.stdout).Encode(addresses); err != nil {
			running.Close()
			return err
		}
	}
	<-ctx.Done()
	running.Shutdown(simEngineGrace)
	return nil
}
