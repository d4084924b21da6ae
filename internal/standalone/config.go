// SPDX-License-Identifier: Apache-2.0

package standalone

import "github.com/inferencecache/inference-cache/internal/configfile"

// ConfigVersion is the only version of the configuration file so far.
const ConfigVersion = 1

// NoEvents as an engine's events value says that it publishes none.
const NoEvents = "none"

// Config is the configuration of `up`. The zero value plus one engine works.
type Config struct {
	// Version is 1; default 1.
	Version Count `yaml:"version"`
	// Listen is the OpenAI-compatible gateway; default 127.0.0.1:8100.
	Listen string `yaml:"listen"`
	// Admin serves health, readiness and metrics; default 127.0.0.1:8180.
	Admin string `yaml:"admin"`
	// GRPC serves the index contract; default 127.0.0.1:8190.
	GRPC string `yaml:"grpc"`
	// Tenant names the owner of all engines; default local.
	Tenant string `yaml:"tenant"`
	// Engines to watch and to route to.
	Engines   []Engine  `yaml:"engines"`
	Routing   Routing   `yaml:"routing"`
	Access    Access    `yaml:"access"`
	Tokenizer Tokenizer `yaml:"tokenizer"`
	Index     Index     `yaml:"index"`
	Log       Log       `yaml:"log"`
}

// Engine is one engine process.
type Engine struct {
	// URL of its HTTP API, without a path.
	URL string `yaml:"url"`
	// Replica is its name in hints and logs; default the URL's host:port.
	Replica string `yaml:"replica"`
	// Runtime is vllm, sglang or tensorrt-llm; default vllm.
	Runtime string `yaml:"runtime"`
	// Model it serves; default what its /v1/models says.
	Model string `yaml:"model"`
	// Events is its KV event socket; default what the engine tells, else
	// tcp://HOST:5557. "none" if it publishes no events.
	Events string `yaml:"events"`
	// Replay is its replay socket; default none.
	Replay string `yaml:"replay"`
	// Topic filters its events by prefix; default all.
	Topic string `yaml:"topic"`
	// Ranks is its number of data-parallel ranks; default 1.
	Ranks Count `yaml:"ranks"`
	// Role is single, prefill or decode; default single.
	Role string `yaml:"role"`
	// BootstrapPort is where decode engines meet an SGLang prefill engine;
	// default 8998.
	BootstrapPort Count `yaml:"bootstrapPort"`
}

// Routing says how requests are placed.
type Routing struct {
	// Policy is hint, approx, round_robin, random, least_load, power_of_two,
	// consistent_hash or prefix_hash; default hint.
	Policy string `yaml:"policy"`
	// LookupTimeout bounds one index lookup; default 5ms.
	LookupTimeout Duration `yaml:"lookupTimeout"`
	// PDMinUncached is the least number of uncached prompt tokens that a prefill
	// engine computes for a decode engine; default 256, 1 for all.
	PDMinUncached Count `yaml:"pdMinUncached"`
	// PDPrefillTimeout bounds that; default 60s.
	PDPrefillTimeout Duration `yaml:"pdPrefillTimeout"`
	// ExposeReplica adds x-inference-cache-replica and -reason to responses;
	// default false.
	ExposeReplica bool `yaml:"exposeReplica"`
}

// Tokenizer says where token ids come from.
type Tokenizer struct {
	// Mode is render (ask the engines' render endpoints), engine (their
	// /tokenize), local (use the folders) or ids (use token-id prompts only);
	// default engine.
	Mode string `yaml:"mode"`
	// Folders hold a model's tokenizer.json and chat template, as DIR or
	// MODEL=DIR; default none.
	Folders []string `yaml:"folders"`
	// RenderURL is a render service for mode render; default the engines.
	RenderURL string `yaml:"renderURL"`
	// Timeout bounds one prompt; default 100ms.
	Timeout Duration `yaml:"timeout"`
	// Parity is on or off: whether canary prompts prove that the token ids are
	// the engines'; default on for modes render and local, else off.
	Parity string `yaml:"parity"`
}

// Index bounds what is remembered.
type Index struct {
	// MaxMemory bounds the index, for example 512MiB; default half of this
	// machine's memory, at most 8GiB.
	MaxMemory ByteSize `yaml:"maxMemory"`
	// MaxEntries bounds (block, replica) pairs; default 0, only memory.
	MaxEntries Count `yaml:"maxEntries"`
	// TTL forgets blocks that no live publisher vouches for; default 30m.
	TTL Duration `yaml:"ttl"`
}

// Log says what is logged; flags win over it.
type Log struct {
	// Format is json or text; default json.
	Format string `yaml:"format"`
	// Level is debug, info, warn or error; default info.
	Level string `yaml:"level"`
}

// ConfigError is a fault in a configuration file.
type ConfigError = configfile.Error

// Values of a configuration.
type (
	ByteSize = configfile.ByteSize
	Duration = configfile.Duration
	Count    = configfile.Count
)

// LoadFile reads and checks a configuration file. Every fault in it is a
// *ConfigError with its line and column.
func LoadFile(path string) (Config, error) {
	var config Config
	err := configfile.Load(path, &config, func() *fault { return config.check() })
	return resultOf(config, err)
}

// Parse is LoadFile on bytes; name appears in errors.
func Parse(name string, data []byte) (Config, error) {
	var config Config
	err := configfile.Parse(name, data, &config, func() *fault { return config.check() })
	return resultOf(config, err)
}

func resultOf(config Config, err error) (Config, error) {
	if err != nil {
		return Config{}, err
	}
	return config, nil
}

// fault is a wrong value and the YAML path of it.
type fault = configfile.Fault
