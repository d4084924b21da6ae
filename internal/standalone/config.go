// SPDX-License-Identifier: Apache-2.0

package standalone

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

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
}

// Routing says how requests are placed.
type Routing struct {
	// Policy is hint, approx, round_robin, random, least_load, power_of_two,
	// consistent_hash or prefix_hash; default hint.
	Policy string `yaml:"policy"`
	// LookupTimeout bounds one index lookup; default 5ms.
	LookupTimeout Duration `yaml:"lookupTimeout"`
	// ExposeReplica adds x-inference-cache-replica and -reason to responses;
	// default false.
	ExposeReplica bool `yaml:"exposeReplica"`
}

// Tokenizer says where token ids come from.
type Tokenizer struct {
	// Mode is engine (ask the engines) or ids (use token-id prompts only);
	// default engine.
	Mode string `yaml:"mode"`
	// Timeout bounds one call to an engine; default 100ms.
	Timeout Duration `yaml:"timeout"`
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
type ConfigError struct {
	File         string
	Line, Column int // 1-based; 0 when the fault has no place
	Problem      string
}

func (e *ConfigError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.Problem)
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Problem)
}

// LoadFile reads and checks a configuration file. Every fault in it is a
// *ConfigError with its line and column.
func LoadFile(path string) (Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("reading configuration: %w", err)
	}
	return Parse(path, data)
}

// Parse is LoadFile on bytes; name appears in errors.
func Parse(name string, data []byte) (config Config, err error) {
	defer func() {
		if recover() != nil { // the YAML library gives up on some texts
			config, err = Config{}, &ConfigError{File: name, Problem: "not the YAML of a configuration"}
		}
	}()
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return Config{}, syntaxError(name, err)
	}
	if len(file.Docs) > 1 {
		position := file.Docs[1].GetToken().Position
		return Config{}, &ConfigError{name, position.Line, position.Column, "a second document: expected one"}
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data), yaml.Strict())
	if err := decoder.Decode(&config); err != nil && !errors.Is(err, io.EOF) {
		return Config{}, syntaxError(name, err)
	}
	if fault := config.check(); fault != nil {
		return Config{}, locate(name, file, fault)
	}
	return config, nil
}

func syntaxError(name string, err error) error {
	var placed *ConfigError
	if errors.As(err, &placed) {
		return &ConfigError{name, placed.Line, placed.Column, placed.Problem}
	}
	fault := &ConfigError{File: name, Problem: err.Error()}
	var positioned yaml.Error
	if errors.As(err, &positioned) {
		fault.Problem = problemOf(positioned)
		if token := positioned.GetToken(); token != nil {
			fault.Line, fault.Column = token.Position.Line, token.Position.Column
		}
	}
	return fault
}

// problemOf says what is wrong in words of the file, not of the decoder.
func problemOf(err yaml.Error) string {
	var wrong *yaml.TypeError
	if !errors.As(err, &wrong) || wrong.Token == nil || wrong.DstType == nil {
		return err.GetMessage()
	}
	expected := ""
	switch wrong.DstType.Kind() {
	case reflect.Bool:
		expected = "true or false"
	case reflect.Int, reflect.Int64:
		expected = "a whole number"
	case reflect.String:
		expected = "a text"
	default:
		return err.GetMessage()
	}
	return fmt.Sprintf("%q: expected %s", wrong.Token.Value, expected)
}

// fault is a wrong value and the YAML path of it.
type fault struct{ path, problem string }

func (f *fault) Error() string { return f.path[len("$."):] + ": " + f.problem }

func locate(name string, file *ast.File, f *fault) error {
	located := &ConfigError{File: name, Problem: f.Error()}
	path, err := yaml.PathString(f.path)
	if err != nil {
		return located
	}
	node, err := path.FilterFile(file)
	if err != nil {
		return located
	}
	position := node.GetToken().Position
	located.Line, located.Column = position.Line, position.Column
	return located
}
