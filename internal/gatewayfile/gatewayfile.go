// SPDX-License-Identifier: Apache-2.0

// Package gatewayfile is the configuration file of a gateway: what may change
// while it runs.
package gatewayfile

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/inferencecache/inference-cache/internal/configfile"
	"github.com/inferencecache/inference-cache/internal/gateway"
	"github.com/inferencecache/inference-cache/internal/routing"
	"github.com/inferencecache/inference-cache/internal/trace"
)

// Version is the only version of the file so far.
const Version = 1

// File is what a file says. The zero value says nothing.
type File struct {
	// Version is 1; default 1.
	Version  configfile.Count `yaml:"version"`
	Replicas []Replica        `yaml:"replicas"`
	Routing  Routing          `yaml:"routing"`
	Limits   Limits           `yaml:"limits"`
	Trace    Trace            `yaml:"trace"`
}

// Replica is one engine, or one data-parallel rank of an engine; see
// gateway.Replica.
type Replica struct {
	ID      string            `yaml:"id"`
	UID     string            `yaml:"uid"`
	URL     string            `yaml:"url"`
	Runtime string            `yaml:"runtime"`
	Rank    *configfile.Count `yaml:"rank"`
	// Role is single, prefill or decode; BootstrapPort is where decode engines
	// meet an SGLang prefill engine.
	Role          string           `yaml:"role"`
	BootstrapPort configfile.Count `yaml:"bootstrapPort"`
	Models        []string         `yaml:"models"`
	Tenant        string           `yaml:"tenant"`
	MaxInflight   configfile.Count `yaml:"maxInflight"`
	Protocol      string           `yaml:"protocol"`
	Cordoned      bool             `yaml:"cordoned"`
	// Callers are the only caller tenants it serves; default all.
	Callers []string `yaml:"callers"`
}

// Routing says how replicas are chosen.
type Routing struct {
	// Policy and Fallback are names of policies.
	Policy   string `yaml:"policy"`
	Fallback string `yaml:"fallback"`
	// ShedTTFT refuses requests that every replica would make wait longer.
	ShedTTFT configfile.Duration `yaml:"shedTTFT"`
	// HedgeAfter is off or a percentile from p50 to p99.
	HedgeAfter string `yaml:"hedgeAfter"`
	// PDMinUncached is the least number of uncached prompt tokens that a prefill
	// replica computes for a decode replica.
	PDMinUncached *configfile.Count `yaml:"pdMinUncached"`
}

// Limits bound what is under way.
type Limits struct {
	// MaxInflight bounds requests under way.
	MaxInflight configfile.Count `yaml:"maxInflight"`
	// Queue bounds those that wait; 0 is none.
	Queue *configfile.Count `yaml:"queue"`
	// QueueTimeout bounds their wait.
	QueueTimeout configfile.Duration `yaml:"queueTimeout"`
}

// Trace switches the record of each decision; see trace.Switches.
type Trace struct {
	Log           bool             `yaml:"log"`
	Outcome       bool             `yaml:"outcome"`
	Sample        configfile.Count `yaml:"sample"`
	Header        string           `yaml:"header"`
	HeaderReplica bool             `yaml:"headerReplica"`
	ReplicaNames  string           `yaml:"replicaNames"`
	RequestOptin  bool             `yaml:"requestOptin"`
	OptinTenants  []string         `yaml:"requestOptinTenants"`
}

// complete adds what the file says to switches.
func (t *Trace) complete(s *trace.Switches, given func(flag string) bool) {
	take(&s.Log, t.Log, given("cache-trace"))
	take(&s.Outcome, t.Outcome, given("cache-trace-outcome"))
	take(&s.Sample, int(t.Sample), given("cache-trace-sample"))
	take(&s.Header, trace.HeaderMode(t.Header), given("cache-trace-header"))
	take(&s.HeaderReplica, t.HeaderReplica, given("cache-trace-header-replica"))
	take(&s.ReplicaNames, trace.NameMode(t.ReplicaNames), given("cache-trace-replica-names"))
	take(&s.RequestOptin, t.RequestOptin, given("cache-trace-request-optin"))
	if len(t.OptinTenants) > 0 && !given("cache-trace-request-optin-tenants") {
		s.OptinTenants = t.OptinTenants
	}
}

// Load reads and checks a file. Whatever is wrong with it is a
// *configfile.Error with its line and column.
func Load(path string) (*File, error) {
	f := &File{}
	if err := configfile.Load(path, f, f.check); err != nil {
		return nil, err
	}
	return f, nil
}

// Parse is Load on bytes; name appears in errors.
func Parse(name string, data []byte) (*File, error) {
	f := &File{}
	if err := configfile.Parse(name, data, f, f.check); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *File) check() *configfile.Fault {
	if f.Version != 0 && f.Version != Version {
		return configfile.NewFault("$.version", fmt.Sprintf("%d: expected %d", f.Version, Version))
	}
	for i := range f.Replicas {
		path := fmt.Sprintf("$.replicas[%d]", i)
		if f.Replicas[i].MaxInflight < 0 {
			return configfile.NewFault(path+".maxInflight", "expected 0 (no bound) or more")
		}
		if rank := f.Replicas[i].Rank; rank != nil && *rank < 0 {
			return configfile.NewFault(path+".rank", "expected 0 or more")
		}
		// One at a time, so that the fault has a place.
		if err := gateway.ValidateReplicas(f.replicas()[i : i+1]); err != nil {
			return configfile.NewFault(path, err.Error())
		}
	}
	if err := gateway.ValidateReplicas(f.replicas()); err != nil {
		return configfile.NewFault("$.replicas", err.Error())
	}
	for path, name := range map[string]string{"$.routing.policy": f.Routing.Policy, "$.routing.fallback": f.Routing.Fallback} {
		if name != "" && !slices.Contains(routing.PolicyNames(), name) {
			return configfile.NewFault(path, fmt.Sprintf("%q: expected %s", name, strings.Join(routing.PolicyNames(), ", ")))
		}
	}
	if _, err := gateway.ParseHedgeAfter(f.Routing.HedgeAfter); err != nil {
		return configfile.NewFault("$.routing.hedgeAfter", err.Error())
	}
	if f.Routing.ShedTTFT < 0 {
		return configfile.NewFault("$.routing.shedTTFT", "expected a positive duration")
	}
	if n := f.Routing.PDMinUncached; n != nil && *n < 0 {
		return configfile.NewFault("$.routing.pdMinUncached", "expected 0 (always two legs) or more")
	}
	if f.Limits.QueueTimeout < 0 {
		return configfile.NewFault("$.limits.queueTimeout", "expected a positive duration")
	}
	if f.Limits.MaxInflight < 0 {
		return configfile.NewFault("$.limits.maxInflight", "expected 0 (no bound) or more")
	}
	if f.Trace.Sample < 0 {
		return configfile.NewFault("$.trace.sample", "expected 1 or more")
	}
	var switches trace.Switches
	f.Trace.complete(&switches, func(string) bool { return false })
	if err := switches.Validate(); err != nil {
		return configfile.NewFault("$.trace", err.Error())
	}
	if f.Limits.Queue != nil && *f.Limits.Queue < 0 {
		return configfile.NewFault("$.limits.queue", "expected 0 (nobody waits) or more")
	}
	return nil
}

func (f *File) replicas() []gateway.Replica {
	out := make([]gateway.Replica, len(f.Replicas))
	for i, r := range f.Replicas {
		out[i] = gateway.Replica{
			ID: r.ID, UID: r.UID, URL: r.URL, Runtime: r.Runtime, Models: r.Models, Tenant: r.Tenant,
			Role: r.Role, BootstrapPort: int(r.BootstrapPort),
			MaxInflight: int(r.MaxInflight), Protocol: r.Protocol, Cordoned: r.Cordoned, CallerTenants: r.Callers,
		}
		if r.Rank != nil {
			rank := int(*r.Rank)
			out[i].Rank = &rank
		}
	}
	return out
}

// Complete adds to options what the file says and given, a set of flag names,
// does not contain. Replicas are added to those of the options.
func (f *File) Complete(options *gateway.Options, given func(flag string) bool) {
	options.Replicas = append(slices.Clip(options.Replicas), f.replicas()...)
	take(&options.Policy, f.Routing.Policy, given("policy"))
	take(&options.Fallback, f.Routing.Fallback, given("fallback"))
	take(&options.ShedTTFT, time.Duration(f.Routing.ShedTTFT), given("shed-ttft"))
	hedge, _ := gateway.ParseHedgeAfter(f.Routing.HedgeAfter) // checked before
	take(&options.HedgePercentile, hedge, given("hedge-after"))
	take(&options.MaxInflight, int(f.Limits.MaxInflight), given("max-inflight"))
	take(&options.Timeouts.Queue, time.Duration(f.Limits.QueueTimeout), given("queue-timeout"))
	f.Trace.complete(&options.Trace.Switches, given)
	if n := f.Routing.PDMinUncached; n != nil && !given("pd-min-uncached") {
		if options.PDMinUncached = int(*n); options.PDMinUncached == 0 {
			options.PDMinUncached = -1
		}
	}
	if f.Limits.Queue != nil && !given("queue-limit") {
		if options.QueueLimit = int(*f.Limits.Queue); options.QueueLimit == 0 {
			options.QueueLimit = -1
		}
	}
}

func take[T comparable](value *T, said T, given bool) {
	var nothing T
	if said != nothing && !given {
		*value = said
	}
}
