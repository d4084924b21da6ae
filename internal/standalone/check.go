// SPDX-License-Identifier: Apache-2.0

package standalone

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/inferencecache/inference-cache/internal/configfile"
	"github.com/inferencecache/inference-cache/internal/defaults"
	"github.com/inferencecache/inference-cache/internal/engines"
	"github.com/inferencecache/inference-cache/internal/gateway"
	"github.com/inferencecache/inference-cache/internal/routing"
)

const (
	maxRanks   = 1024
	maxIDBytes = 256
)

var (
	runtimes       = []string{"vllm", "sglang", "tensorrt-llm"}
	policies       = routing.PolicyNames()
	tokenizerModes = []string{"render", "engine", "local", "ids"}
	switches       = []string{"on", "off"}
	logFormats     = []string{"json", "text"}
	logLevels      = []string{"debug", "info", "warn", "error"}
)

// Validate checks every value. The first fault is returned, with the place
// of the value in words.
func (c *Config) Validate() error {
	if f := c.check(); f != nil {
		return f
	}
	return nil
}

func (c *Config) check() *fault {
	if c.Version != 0 && c.Version != ConfigVersion {
		return configfile.NewFault("$.version", fmt.Sprintf("%d: expected %d", c.Version, ConfigVersion))
	}
	for _, address := range []struct{ path, value string }{
		{"$.listen", c.Listen}, {"$.admin", c.Admin}, {"$.grpc", c.GRPC},
	} {
		if address.value == "" {
			continue
		}
		_, port, err := net.SplitHostPort(address.value)
		if _, wrong := strconv.ParseUint(port, 10, 16); err != nil || wrong != nil {
			return configfile.NewFault(address.path, fmt.Sprintf("%q: expected HOST:PORT with a port from 0 to 65535", address.value))
		}
	}
	if problem := idProblem(c.Tenant); problem != "" {
		return configfile.NewFault("$.tenant", problem)
	}
	for i := range c.Engines {
		if f := c.Engines[i].check(fmt.Sprintf("$.engines[%d]", i)); f != nil {
			return f
		}
	}
	if f := c.checkSections(); f != nil {
		return f
	}
	if f := c.checkUnique(); f != nil {
		return f
	}
	return c.checkRoles()
}

// checkRoles refuses engines that could not pass KV on to each other.
func (c *Config) checkRoles() *fault {
	complete := c.withDefaults()
	var replicas []gateway.Replica
	for i, engine := range complete.Engines {
		added := engine.replicas()
		// One at a time first, so that the fault has a place.
		for _, some := range [][]gateway.Replica{added, append(replicas, added...)} {
			if err := gateway.ValidateReplicas(some); err != nil {
				return configfile.NewFault(fmt.Sprintf("$.engines[%d]", i), err.Error())
			}
		}
		replicas = append(replicas, added...)
	}
	return nil
}

func (c *Config) checkSections() *fault {
	for _, choice := range []struct {
		path, value string
		allowed     []string
	}{
		{"$.routing.policy", c.Routing.Policy, policies},
		{"$.tokenizer.mode", c.Tokenizer.Mode, tokenizerModes},
		{"$.tokenizer.parity", c.Tokenizer.Parity, switches},
		{"$.log.format", c.Log.Format, logFormats},
		{"$.log.level", c.Log.Level, logLevels},
	} {
		if choice.value != "" && !slices.Contains(choice.allowed, choice.value) {
			return configfile.NewFault(choice.path, fmt.Sprintf("%q: expected %s", choice.value, strings.Join(choice.allowed, ", ")))
		}
	}
	if c.Tokenizer.Mode == "local" && len(c.Tokenizer.Folders) == 0 {
		return configfile.NewFault("$.tokenizer", "mode local needs folders")
	}
	if c.Tokenizer.RenderURL != "" && c.Tokenizer.Mode != "render" {
		return configfile.NewFault("$.tokenizer.renderURL", "expected only with mode render")
	}
	for _, duration := range []struct {
		path  string
		value Duration
	}{
		{"$.routing.lookupTimeout", c.Routing.LookupTimeout},
		{"$.tokenizer.timeout", c.Tokenizer.Timeout},
		{"$.index.ttl", c.Index.TTL},
		{"$.routing.pdPrefillTimeout", c.Routing.PDPrefillTimeout},
	} {
		if duration.value < 0 {
			return configfile.NewFault(duration.path, fmt.Sprintf("%s: expected a positive duration", time.Duration(duration.value)))
		}
	}
	if c.Routing.PDMinUncached < 0 {
		return configfile.NewFault("$.routing.pdMinUncached", fmt.Sprintf("%d: expected 1 (always two legs) or more", c.Routing.PDMinUncached))
	}
	if c.Index.MaxEntries < 0 {
		return configfile.NewFault("$.index.maxEntries", fmt.Sprintf("%d: expected 0 (only memory) or more", c.Index.MaxEntries))
	}
	return nil
}

func (e *Engine) check(path string) *fault {
	if e.URL == "" {
		return configfile.NewFault(path, "an engine needs a url")
	}
	parsed, err := url.Parse(e.URL)
	if err != nil || (parsed.Scheme != "http" && parsed.Scheme != "https") || parsed.Host == "" {
		return configfile.NewFault(path+".url", fmt.Sprintf("%q: expected http://HOST:PORT or https://HOST:PORT", e.URL))
	}
	if strings.Trim(parsed.Path, "/") != "" || parsed.RawQuery != "" || parsed.User != nil {
		return configfile.NewFault(path+".url", fmt.Sprintf("%q: expected no path, query or user", parsed.Redacted()))
	}
	if e.Runtime != "" && !slices.Contains(runtimes, e.Runtime) {
		return configfile.NewFault(path+".runtime", fmt.Sprintf("%q: expected %s", e.Runtime, strings.Join(runtimes, ", ")))
	}
	if problem := endpointProblem(e.Events); problem != "" && e.Events != NoEvents {
		return configfile.NewFault(path+".events", problem)
	}
	if problem := endpointProblem(e.Replay); problem != "" {
		return configfile.NewFault(path+".replay", problem)
	}
	if e.Replay != "" && e.Events == NoEvents {
		return configfile.NewFault(path+".replay", "an engine without events has nothing to replay")
	}
	for _, id := range []struct{ key, value string }{{"replica", e.Replica}, {"model", e.Model}} {
		if problem := idProblem(id.value); problem != "" {
			return configfile.NewFault(path+"."+id.key, problem)
		}
	}
	if _, err := routing.ParseRole(e.Role); err != nil {
		return configfile.NewFault(path+".role", err.Error())
	}
	if e.Ranks < 0 || e.Ranks > maxRanks {
		return configfile.NewFault(path+".ranks", fmt.Sprintf("%d: expected 1 to %d", e.Ranks, maxRanks))
	}
	return nil
}

// checkUnique refuses two engines under one name or on one event socket.
func (c *Config) checkUnique() *fault {
	replicas, sockets := map[string]int{}, map[string]int{}
	for i := range c.Engines {
		engine := c.Engines[i].withDefaults()
		if first, ok := replicas[engine.Replica]; ok {
			return configfile.NewFault(fmt.Sprintf("$.engines[%d]", i), fmt.Sprintf("replica %q is engine %d already", engine.Replica, first))
		}
		replicas[engine.Replica] = i
		if engine.Events == NoEvents {
			continue
		}
		socket := cmp.Or(engine.Events, engine.usualEvents())
		if first, ok := sockets[socket]; ok {
			return configfile.NewFault(fmt.Sprintf("$.engines[%d]", i), fmt.Sprintf("events %s belong to engine %d already: give each engine its own", socket, first))
		}
		sockets[socket] = i
	}
	return nil
}

// usualEvents is where an engine's events are looked for when neither the
// configuration nor the engine tells.
func (e *Engine) usualEvents() string {
	parsed, err := url.Parse(e.URL)
	if err != nil {
		return ""
	}
	profile, _ := engines.ProfileOf(e.Runtime)
	return "tcp://" + net.JoinHostPort(parsed.Hostname(), strconv.Itoa(profile.EventsPort))
}

// endpointProblem says what is wrong with a ZMQ endpoint; empty is right.
func endpointProblem(endpoint string) string {
	if endpoint == "" {
		return ""
	}
	if path, ok := strings.CutPrefix(endpoint, "ipc://"); ok && path != "" {
		return ""
	}
	if address, ok := strings.CutPrefix(endpoint, "tcp://"); ok {
		host, port, err := net.SplitHostPort(address)
		if host == "*" {
			return fmt.Sprintf("%q: expected the engine's host in place of *, to connect to", endpoint)
		}
		if err == nil && host != "" {
			if number, err := strconv.ParseUint(port, 10, 16); err == nil && number > 0 {
				return ""
			}
		}
	}
	return fmt.Sprintf("%q: expected tcp://HOST:PORT or ipc://PATH", endpoint)
}

func idProblem(id string) string {
	if len(id) > maxIDBytes {
		return fmt.Sprintf("%d bytes: expected at most %d", len(id), maxIDBytes)
	}
	if strings.ContainsFunc(id, unicode.IsControl) {
		return fmt.Sprintf("%q: expected no control characters", id)
	}
	return ""
}

// Defaults of the listeners: loopback only.
const (
	DefaultListen = "127.0.0.1:8100"
	DefaultAdmin  = "127.0.0.1:8180"
	DefaultGRPC   = "127.0.0.1:8190"
	DefaultTenant = "local"
)

// withDefaults returns a copy in which every value is set.
func (c Config) withDefaults() Config {
	defaults.Set(&c.Listen, DefaultListen)
	defaults.Set(&c.Admin, DefaultAdmin)
	defaults.Set(&c.GRPC, DefaultGRPC)
	defaults.Set(&c.Tenant, DefaultTenant)
	defaults.Set(&c.Routing.Policy, "hint")
	defaults.Set(&c.Routing.LookupTimeout, Duration(5*time.Millisecond))
	defaults.Set(&c.Tokenizer.Mode, "engine")
	defaults.Set(&c.Tokenizer.Timeout, Duration(100*time.Millisecond))
	if c.Tokenizer.Mode == "render" || c.Tokenizer.Mode == "local" {
		defaults.Set(&c.Tokenizer.Parity, "on")
	}
	defaults.Set(&c.Tokenizer.Parity, "off")
	defaults.Set(&c.Index.TTL, Duration(30*time.Minute))
	engines := make([]Engine, len(c.Engines))
	for i := range c.Engines {
		engines[i] = c.Engines[i].withDefaults()
	}
	c.Engines = engines
	return c
}

func (e Engine) withDefaults() Engine {
	e.URL = strings.TrimRight(e.URL, "/")
	parsed, err := url.Parse(e.URL)
	if err != nil {
		return e
	}
	defaults.Set(&e.Runtime, "vllm")
	defaults.Set(&e.Replica, parsed.Host)
	defaults.Set(&e.Ranks, 1)
	return e
}
