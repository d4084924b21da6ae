// SPDX-License-Identifier: Apache-2.0

package nodelocal

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Times between the end of a server and its successor.
const (
	firstBackoff = 10 * time.Second
	maxBackoff   = 5 * time.Minute
	// steadyAfter is how long a server runs before its end counts as the first.
	steadyAfter = 10 * time.Minute
)

// Backoff is how long to wait after so many failures in a row: 10 s after the
// first, doubled by each more, at most 5 min. 0 for none.
func Backoff(failures int) time.Duration {
	if failures <= 0 {
		return 0
	}
	wait := firstBackoff
	for range failures - 1 {
		if wait *= 2; wait >= maxBackoff {
			return maxBackoff
		}
	}
	return wait
}

// Engine is an engine pod that a backend has wired to the server of its node.
type Engine struct {
	Name string
	// Node is empty until the pod is scheduled.
	Node string
	// Hash is the ConfigHash that the engine was wired for; empty is unknown.
	Hash string
	// Live is false for a pod that is going away: it uses a server, and is no
	// reason to start one.
	Live bool
	// Ready is the pod's condition.
	Ready bool
	// Verified engines were wired by the backend.
	Verified bool
}

// Server is a server's pod that a backend owns.
type Server struct {
	Name string
	// Node is where the server belongs.
	Node string
	Hash string
	// Created, and Ended where the pod failed or finished, else zero.
	Created, Ended time.Time
	// Leaving pods are being deleted.
	Leaving bool
	// Ready pods serve.
	Ready bool
	// Failures is how many servers ended here before.
	Failures int
	// IdleSince is zero for a server in use.
	IdleSince time.Time
	// Replace asks for a successor at once.
	Replace bool
	// Unschedulable is what the scheduler says; empty if nothing.
	Unschedulable string
}

// Wish is what a backend wants of its nodes.
type Wish struct {
	Backend string
	// Wanted is false for a backend that has no servers any more: those left
	// go with their last engines.
	Wanted bool
	// Hash is that of the servers wanted.
	Hash string
	// Retention is how long a server without engines stays.
	Retention time.Duration
	// ReplaceNow has servers of another hash replaced under their engines.
	ReplaceNow bool
}

// Step is what is to be done about a server.
type Step string

// Steps.
const (
	Create Step = "create"
	Delete Step = "delete"
	// MarkIdle and MarkUsed write when the last engine left, or that one came.
	MarkIdle Step = "mark-idle"
	MarkUsed Step = "mark-used"
)

// Cause says why a server is deleted.
type Cause string

// Causes.
const (
	CauseDuplicate Cause = "duplicate"
	CauseEnded     Cause = "ended"
	CauseOutdated  Cause = "outdated"
	CauseReplace   Cause = "replace"
	CauseIdle      Cause = "idle"
)

// Action is one step.
type Action struct {
	Step Step
	Node string
	// Server is the pod's name.
	Server string
	Cause  Cause // of a Delete
	// Failures is for the server created.
	Failures int
}

// Plan says which servers are to come and go, node by node in the order of
// their names, and when to look again though nothing happens; 0 is never. A
// node's server is created for the first live engine and kept while any engine
// uses it.
func Plan(w Wish, servers []Server, engines []Engine, now time.Time) (actions []Action, wait time.Duration) {
	nodes := map[string]*site{}
	at := func(node string) *site {
		if nodes[node] == nil {
			nodes[node] = &site{name: node}
		}
		return nodes[node]
	}
	for _, s := range servers {
		at(s.Node).servers = append(at(s.Node).servers, s)
	}
	for _, e := range engines {
		if e.Node != "" && e.Verified {
			at(e.Node).engines = append(at(e.Node).engines, e)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		more, next := nodes[name].plan(w, now)
		actions = append(actions, more...)
		if next > 0 && (wait == 0 || next < wait) {
			wait = next
		}
	}
	return actions, wait
}

// site is one node.
type site struct {
	name    string
	servers []Server
	engines []Engine
}

// wanted says whether an engine here is a reason for a server.
func (s *site) wanted(w Wish) bool {
	return w.Wanted && slices.ContainsFunc(s.engines, func(e Engine) bool { return e.Live })
}

// others says whether an engine here was wired for another server than the
// wanted one.
func (s *site) others(w Wish) bool {
	return slices.ContainsFunc(s.engines, func(e Engine) bool { return !w.Wanted || e.Hash != w.Hash })
}

func (s *site) plan(w Wish, now time.Time) (actions []Action, wait time.Duration) {
	keep, spare := s.keeper(w)
	for _, server := range spare {
		actions = append(actions, s.delete(server, CauseDuplicate))
	}
	switch {
	case keep == nil:
		leaving := slices.ContainsFunc(s.servers, func(server Server) bool { return server.Leaving })
		if s.wanted(w) && !leaving && len(spare) == 0 {
			actions = append(actions, s.create(w, 0))
		}
		return actions, 0
	case !keep.Ended.IsZero():
		more, wait := s.succeed(w, *keep, now)
		return append(actions, more...), wait
	case keep.Replace:
		return append(actions, s.delete(*keep, CauseReplace)), 0
	case !w.Wanted || keep.Hash != w.Hash:
		if w.ReplaceNow || !s.others(w) {
			return append(actions, s.delete(*keep, CauseOutdated)), 0
		}
		return append(actions, s.use(*keep)...), 0
	case len(s.engines) > 0:
		return append(actions, s.use(*keep)...), 0
	}
	more, wait := s.idle(w, *keep, now)
	return append(actions, more...), wait
}

// keeper picks the server of the node among those that stay: one that runs,
// under the name it would be created with, that serves, the oldest.
func (s *site) keeper(w Wish) (keep *Server, spare []Server) {
	var staying []Server
	for _, server := range s.servers {
		if !server.Leaving {
			staying = append(staying, server)
		}
	}
	if len(staying) == 0 {
		return nil, nil
	}
	name := ServerName(w.Backend, s.name)
	slices.SortFunc(staying, func(a, b Server) int {
		return cmp.Or(first(a.Ended.IsZero(), b.Ended.IsZero()), first(a.Name == name, b.Name == name),
			first(a.Ready, b.Ready), a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	return &staying[0], staying[1:]
}

// first orders what is true before what is not.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// succeed replaces a server that has ended, after a while.
func (s *site) succeed(w Wish, ended Server, now time.Time) (actions []Action, wait time.Duration) {
	if !s.wanted(w) {
		return []Action{s.delete(ended, CauseEnded)}, 0
	}
	failures := ended.Failures + 1
	if ended.Ended.Sub(ended.Created) >= steadyAfter {
		failures = 1
	}
	backoff := Backoff(failures)
	if left := ended.Ended.Add(backoff).Sub(now); left > 0 {
		return nil, min(left, backoff)
	}
	return []Action{s.delete(ended, CauseEnded), s.create(w, failures)}, 0
}

// idle has a server without engines go after a while.
func (s *site) idle(w Wish, server Server, now time.Time) (actions []Action, wait time.Duration) {
	if w.Retention <= 0 {
		return []Action{s.delete(server, CauseIdle)}, 0
	}
	if server.IdleSince.IsZero() {
		return []Action{{Step: MarkIdle, Node: s.name, Server: server.Name}}, w.Retention
	}
	if left := server.IdleSince.Add(w.Retention).Sub(now); left > 0 {
		return nil, min(left, w.Retention)
	}
	return []Action{s.delete(server, CauseIdle)}, 0
}

func (s *site) use(server Server) []Action {
	if server.IdleSince.IsZero() {
		return nil
	}
	return []Action{{Step: MarkUsed, Node: s.name, Server: server.Name}}
}

func (s *site) create(w Wish, failures int) Action {
	return Action{Step: Create, Node: s.name, Server: ServerName(w.Backend, s.name), Failures: failures}
}

func (s *site) delete(server Server, cause Cause) Action {
	return Action{Step: Delete, Node: s.name, Server: server.Name, Cause: cause}
}
