// SPDX-License-Identifier: Apache-2.0

package nodelocal

import (
	"fmt"
	"slices"
	"strings"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

// Reasons why engines are not served.
const (
	ReasonUnverified        = "ConnectorInjectionUnverified"
	ReasonPoolPending       = "NodeLocalServerPoolPending"
	ReasonRejected          = "NodeLocalServerRejected"
	ReasonNameConflict      = "NodeLocalNameConflict"
	ReasonHostPortConflict  = "NodeLocalHostPortConflict"
	ReasonCapacityExceeded  = "NodeLocalWorkerCapacityExceeded"
	ReasonAmbiguous         = "AmbiguousNodeLocalServers"
	ReasonOutdated          = "NodeLocalServerOutdated"
	ReasonServersNotReady   = "MPServersNotReady"
	ReasonSchedulingPending = "EngineSchedulingPending"
)

// examples is how many names a message gives.
const examples = 3

// Refusal is why the server of a node could not be created.
type Refusal struct {
	// Reason is ReasonRejected or ReasonNameConflict.
	Reason, Message string
}

// Report is what Judge found.
type Report struct {
	// Served is true when every live engine is ready and has a ready server.
	Served bool
	// Unknown is set where engines cannot be told to be wired.
	Unknown bool
	// Reason is empty when Served.
	Reason, Message string
	// Desired and Ready count servers.
	Desired, Ready int32
	// Coverage is that of each live engine, by name.
	Coverage []v1alpha1.EnginePodCoverage
}

// View is what Judge looks at.
type View struct {
	// MaxEngines is how many engines a server serves at once.
	MaxEngines int32
	Servers    []Server
	Engines    []Engine
	// Refusals are the nodes without a server, and why.
	Refusals map[string]Refusal
}

// Judge says whether the live engines are served.
func Judge(v View) Report {
	at := map[string][]Server{}
	for _, s := range v.Servers {
		if !s.Leaving {
			at[s.Node] = append(at[s.Node], s)
		}
	}
	var (
		r      Report
		causes = map[string][]string{} // by reason
		crowd  = map[string]int32{}    // engines by node
	)
	for _, e := range v.Engines {
		if !e.Live {
			continue
		}
		c := v.cover(e, at[e.Node])
		if c.Reason != "" {
			causes[c.Reason] = append(causes[c.Reason], e.Name)
		} else if !e.Ready {
			causes[causeEngines] = append(causes[causeEngines], e.Name)
		}
		if e.Verified && e.Node != "" {
			crowd[e.Node]++
		}
		r.Coverage = append(r.Coverage, c)
	}
	slices.SortFunc(r.Coverage, func(a, b v1alpha1.EnginePodCoverage) int { return strings.Compare(a.Name, b.Name) })
	for node, engines := range crowd {
		r.Desired++
		if len(at[node]) == 1 && serves(at[node][0]) {
			r.Ready++
		}
		if engines > v.MaxEngines {
			causes[ReasonCapacityExceeded] = append(causes[ReasonCapacityExceeded], node)
		}
	}
	v.conclude(&r, causes, len(at) == 0 && len(v.Refusals) == 0)
	return r
}

func serves(s Server) bool { return s.Ready && s.Ended.IsZero() }

// cover says whether one engine has a server.
func (v View) cover(e Engine, servers []Server) v1alpha1.EnginePodCoverage {
	c := v1alpha1.EnginePodCoverage{Name: e.Name, NodeName: e.Node, Ready: e.Ready}
	refusal, refused := v.Refusals[e.Node]
	switch {
	case !e.Verified:
		c.Reason = ReasonUnverified
	case e.Node == "":
		c.Reason = ReasonSchedulingPending
	case len(servers) > 1:
		c.Reason = ReasonAmbiguous
	case len(servers) == 0 && refused:
		c.Reason = refusal.Reason
	case len(servers) == 0:
		c.Reason = ReasonPoolPending
	case portConflict(servers[0].Unschedulable):
		c.Reason = ReasonHostPortConflict
	case e.Hash != "" && e.Hash != servers[0].Hash:
		c.Reason = ReasonOutdated
	case !serves(servers[0]):
		c.Reason = ReasonServersNotReady
	default:
		c.Covered = true
	}
	return c
}

// portConflict recognises the scheduler's words for a port that is taken.
func portConflict(message string) bool {
	message = strings.ToLower(message)
	return slices.ContainsFunc([]string{"free ports", "hostport", "host port"}, func(part string) bool { return strings.Contains(message, part) })
}

// rank is a reason in the order of telling.
type rank struct {
	cause, reason, text string
	// alone counts only while no node has a server.
	alone bool
}

// causeEngines is that of engines which have a server and are not ready.
const causeEngines = "engines"

func ranking() []rank {
	return []rank{
		{ReasonUnverified, ReasonUnverified, "engine pods are not known to be wired", false},
		{ReasonPoolPending, ReasonPoolPending, "engine pods have no server on their node yet", true},
		{ReasonNameConflict, ReasonNameConflict, "engine pods have no server, as another object has its name", false},
		{ReasonRejected, ReasonRejected, "engine pods have no server, as the API server refused it", false},
		{ReasonHostPortConflict, ReasonHostPortConflict, "engine pods have a server that finds its ports taken on the node", false},
		{ReasonCapacityExceeded, ReasonCapacityExceeded, "nodes have more engines than lmCache.nodeLocal.server.maxGPUWorkers", false},
		{ReasonAmbiguous, ReasonAmbiguous, "engine pods have several servers on their node", false},
		{ReasonOutdated, ReasonOutdated, "engine pods wait until engines of another configuration have left their node", false},
		{ReasonPoolPending, ReasonPoolPending, "engine pods have no server on their node yet", false},
		{ReasonServersNotReady, ReasonServersNotReady, "engine pods have a server that is not ready", false},
		{causeEngines, ReasonServersNotReady, "engine pods are not ready themselves", false},
		{ReasonSchedulingPending, ReasonSchedulingPending, "engine pods have no node yet", false},
	}
}

// conclude picks the reason that tells most.
func (v View) conclude(r *Report, causes map[string][]string, bare bool) {
	if all := len(r.Coverage); all > 0 && len(causes[ReasonSchedulingPending]) == all {
		r.Reason, r.Message = ReasonPoolPending, "no server runs: no engine pod has a node yet"
		return
	}
	for _, k := range ranking() {
		names := causes[k.cause]
		if len(names) == 0 || k.alone && !bare {
			continue
		}
		slices.Sort(names)
		r.Reason, r.Message = k.reason, fmt.Sprintf("%d %s: %s", len(names), k.text, list(names))
		r.Unknown = k.reason == ReasonUnverified
		if detail := v.detail(k.reason); detail != "" {
			r.Message += ": " + detail
		}
		return
	}
	r.Served = len(r.Coverage) > 0
}

// detail quotes the API server or the scheduler.
func (v View) detail(reason string) string {
	switch reason {
	case ReasonRejected, ReasonNameConflict:
		for _, e := range v.Engines {
			if refusal := v.Refusals[e.Node]; refusal.Reason == reason {
				return refusal.Message
			}
		}
	case ReasonHostPortConflict:
		for _, s := range v.Servers {
			if portConflict(s.Unschedulable) {
				return s.Unschedulable
			}
		}
	}
	return ""
}

func list(names []string) string {
	if len(names) > examples {
		return strings.Join(names[:examples], ", ") + ", ..."
	}
	return strings.Join(names, ", ")
}
