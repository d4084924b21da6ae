// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"github.com/inferencecache/inference-cache/internal/sim/blockhash"
	"github.com/inferencecache/inference-cache/internal/sim/eventsock"
	"github.com/inferencecache/inference-cache/internal/sim/httpapi"
	"github.com/inferencecache/inference-cache/internal/sim/rank"
	"github.com/inferencecache/inference-cache/internal/sim/sched"
	"github.com/inferencecache/inference-cache/internal/sim/wire"
)

// RandomHashSeed as Config.HashSeed gives each start its own block hashes, as
// vLLM does without PYTHONHASHSEED.
const RandomHashSeed = "random"

// Config of an Engine. The zero value is one vLLM rank on free ports of the
// loopback that publishes its events.
type Config struct {
	// Runtime defaults to httpapi.VLLM.
	Runtime httpapi.Runtime
	// Model is the base model's id. Default "sim".
	Model string
	// Adapters are the ids of LoRA adapters. Default none.
	Adapters []string
	// Listen is the HTTP address. Default 127.0.0.1:0.
	Listen string
	// Ranks is the number of data-parallel ranks; rank n has the event ports
	// of rank 0 plus n. Default 1.
	Ranks int
	// NoEvents turns KV events off. Default false.
	NoEvents bool
	// Events configures the event sockets of rank 0.
	Events eventsock.Options
	// EventShape is a name wire.ParseShape knows. Default vllm-0.24, or
	// sglang-0.5.9.
	EventShape string
	// ByteHashes sends whole digests in events. Default false: integers.
	ByteHashes bool
	// HashSeed is PYTHONHASHSEED of a vLLM engine, or RandomHashSeed.
	// Default "0".
	HashSeed string
	// Scheduler sizes each rank. Chainer and PerNode follow from the runtime.
	Scheduler sched.Config
	// Timing of the steps.
	Timing sched.Timing
	// AnswerSeed chooses the answers. Default 0.
	AnswerSeed uint64
	// HideCachedTokens leaves cached tokens out of usage. Default false.
	HideCachedTokens bool
	// Faults opens POST /sim/fault. Default false.
	Faults bool
	// Role in split prefill and decode. Default none.
	Role httpapi.Role
	// BootstrapListen is where decode engines meet an SGLang prefill engine.
	// Default 127.0.0.1:0.
	BootstrapListen string
	// HoldFor is how long a vLLM engine keeps blocks for a decode engine.
	// Default 480 s.
	HoldFor time.Duration
	// Clock defaults to rank.SystemClock.
	Clock rank.Clock
}

func (c Config) withDefaults() Config {
	if c.Runtime == "" {
		c.Runtime = httpapi.VLLM
	}
	if c.Model == "" {
		c.Model = "sim"
	}
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	if c.BootstrapListen == "" {
		c.BootstrapListen = "127.0.0.1:0"
	}
	if c.Ranks <= 0 {
		c.Ranks = 1
	}
	if c.EventShape == "" {
		c.EventShape = "vllm-0.24"
		if c.Runtime == httpapi.SGLang {
			c.EventShape = "sglang-0.5.9"
		}
	}
	if c.HashSeed == "" {
		c.HashSeed = "0"
	}
	if c.Clock == nil {
		c.Clock = rank.SystemClock{}
	}
	return c
}

// Validate reports the first value that Start would refuse.
func (c Config) Validate() error {
	c = c.withDefaults()
	if c.Runtime != httpapi.VLLM && c.Runtime != httpapi.SGLang {
		return fmt.Errorf("runtime %q: expected %s or %s", c.Runtime, httpapi.VLLM, httpapi.SGLang)
	}
	if c.Role != httpapi.RoleSingle && c.Role != httpapi.RolePrefill && c.Role != httpapi.RoleDecode {
		return fmt.Errorf("role %.32q: expected %s or %s", string(c.Role), httpapi.RolePrefill, httpapi.RoleDecode)
	}
	if _, err := wire.ParseShape(c.EventShape); err != nil {
		return err
	}
	return nil
}

// hasBootstrap says whether decode engines come to this one.
func (c Config) hasBootstrap() bool {
	return c.Runtime == httpapi.SGLang && c.Role == httpapi.RolePrefill
}

// version is what the engine calls itself: the first version with its events.
func (c Config) version() string {
	_, number, _ := strings.Cut(c.EventShape, "-")
	if number == "" || number[0] < '0' || number[0] > '9' {
		number = "0.6.0" // shapes that are named after no version are the latest
	}
	return number + "+sim"
}

// newScheduler builds the scheduler of one rank with the hashes of a fresh
// process.
func (c Config) newScheduler() *sched.Scheduler {
	config := c.Scheduler
	switch {
	case c.Runtime == httpapi.SGLang:
		config.Chainer, config.PerNode = blockhash.SGLang{}, true
	case c.HashSeed == RandomHashSeed:
		var root blockhash.Digest
		_, _ = rand.Read(root[:]) // never fails
		config.Chainer = blockhash.NewVLLMRandom(root)
	default:
		config.Chainer = blockhash.NewVLLM(c.HashSeed)
	}
	return sched.New(config)
}

func (c Config) encoder(rank int) wire.Encoder {
	shape, err := wire.ParseShape(c.EventShape)
	if err != nil {
		panic(err) // validate has accepted it
	}
	if c.Runtime == httpapi.SGLang {
		rank = wire.NoRank // SGLang names no rank under plain data parallelism
	}
	return wire.Encoder{Shape: shape, ByteHashes: c.ByteHashes, Rank: rank}
}
