// SPDX-License-Identifier: Apache-2.0

package nodelocal_test

import (
	"strings"
	"testing"

	"github.com/inferencecache/inference-cache/internal/nodelocal"
)

func TestJudge(t *testing.T) {
	type (
		s = nodelocal.Server
		e = nodelocal.Engine
	)
	on := func(node string) e {
		return e{Name: "e-" + node, Node: node, Hash: "new", Live: true, Ready: true, Verified: true}
	}
	at := func(node string) s {
		return s{Name: nodelocal.ServerName("cb", node), Node: node, Hash: "new", Ready: true}
	}
	for name, tc := range map[string]struct {
		engines  []e
		servers  []s
		refusals map[string]nodelocal.Refusal
		want     string // reason, servers ready of desired, uncovered engines with reasons
		message  string
	}{
		"no engine":                          {want: " 0/0"},
		"every engine has its server":        {engines: []e{on("n1"), on("n2")}, servers: []s{at("n1"), at("n2")}, want: "served 2/2"},
		"an engine that goes does not count": {engines: []e{on("n1"), {Name: "x", Node: "n2", Verified: true}}, servers: []s{at("n1")}, want: "served 1/1"},
		"an engine that nobody wired": {
			engines: []e{on("n1"), {Name: "x", Node: "n1", Live: true}}, servers: []s{at("n1")},
			want: "unknown ConnectorInjectionUnverified 1/1 x=ConnectorInjectionUnverified", message: "1 engine pods are not known to be wired: x",
		},
		"no engine has a node": {
			engines: []e{{Name: "x", Live: true, Verified: true}}, want: "NodeLocalServerPoolPending 0/0 x=EngineSchedulingPending", message: "no engine pod has a node yet",
		},
		"no server is there": {engines: []e{on("n1")}, want: "NodeLocalServerPoolPending 0/1 e-n1=NodeLocalServerPoolPending", message: "no server on their node yet: e-n1"},
		"one node's server is not there": {
			engines: []e{on("n1"), on("n2")}, servers: []s{at("n1")}, want: "NodeLocalServerPoolPending 1/2 e-n2=NodeLocalServerPoolPending",
		},
		"a server's ports are taken": {
			engines: []e{on("n1")}, servers: []s{{Node: "n1", Hash: "new", Unschedulable: "0/3 nodes are available: 1 node(s) didn't have free ports for the requested pod ports"}},
			want: "NodeLocalHostPortConflict 0/1 e-n1=NodeLocalHostPortConflict", message: "didn't have free ports",
		},
		"a server finds no room": {
			engines: []e{on("n1")}, servers: []s{{Node: "n1", Hash: "new", Unschedulable: "Insufficient memory"}}, want: "MPServersNotReady 0/1 e-n1=MPServersNotReady",
		},
		"the API server refused a server": {
			engines: []e{on("n1"), on("n2")}, servers: []s{at("n2")}, refusals: map[string]nodelocal.Refusal{"n1": {Reason: nodelocal.ReasonRejected, Message: "violates PodSecurity"}},
			want: "NodeLocalServerRejected 1/2 e-n1=NodeLocalServerRejected", message: "violates PodSecurity",
		},
		"another object has the name": {
			engines: []e{on("n1")}, refusals: map[string]nodelocal.Refusal{"n1": {Reason: nodelocal.ReasonNameConflict, Message: "pod cb-1 is not ours"}},
			want: "NodeLocalNameConflict 0/1 e-n1=NodeLocalNameConflict", message: "pod cb-1 is not ours",
		},
		"more engines than workers": {
			engines: []e{on("n1"), {Name: "x", Node: "n1", Hash: "new", Live: true, Ready: true, Verified: true}, {Name: "y", Node: "n1", Hash: "new", Live: true, Ready: true, Verified: true}},
			servers: []s{at("n1")}, want: "NodeLocalWorkerCapacityExceeded 1/1", message: "1 nodes have more engines",
		},
		"two servers on one node": {
			engines: []e{on("n1")}, servers: []s{at("n1"), {Name: "copy", Node: "n1", Hash: "new", Ready: true}},
			want: "AmbiguousNodeLocalServers 0/1 e-n1=AmbiguousNodeLocalServers",
		},
		"a server that leaves is none": {engines: []e{on("n1")}, servers: []s{at("n1"), {Name: "copy", Node: "n1", Leaving: true}}, want: "served 1/1"},
		"an engine of another configuration": {
			engines: []e{on("n1"), {Name: "x", Node: "n1", Hash: "newer", Live: true, Verified: true}}, servers: []s{at("n1")},
			want: "NodeLocalServerOutdated 1/1 x=NodeLocalServerOutdated",
		},
		"an engine of an unknown configuration": {engines: []e{{Name: "x", Node: "n1", Live: true, Ready: true, Verified: true}}, servers: []s{at("n1")}, want: "served 1/1"},
		"a server that is not ready":            {engines: []e{on("n1")}, servers: []s{{Node: "n1", Hash: "new"}}, want: "MPServersNotReady 0/1 e-n1=MPServersNotReady"},
		"a server that ended": {
			engines: []e{on("n1")}, servers: []s{{Node: "n1", Hash: "new", Ready: true, Ended: noon}}, want: "MPServersNotReady 0/1 e-n1=MPServersNotReady",
		},
		"an engine that is not ready": {
			engines: []e{{Name: "x", Node: "n1", Hash: "new", Live: true, Verified: true}}, servers: []s{at("n1")}, want: "MPServersNotReady 1/1", message: "not ready themselves: x",
		},
		"one engine without a node": {
			engines: []e{on("n1"), {Name: "x", Live: true, Verified: true}}, servers: []s{at("n1")}, want: "EngineSchedulingPending 1/1 x=EngineSchedulingPending",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := nodelocal.Judge(nodelocal.View{MaxEngines: 2, Servers: tc.servers, Engines: tc.engines, Refusals: tc.refusals})
			if got := summary(r); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
			if !strings.Contains(r.Message, tc.message) || (r.Reason != "") != (r.Message != "") {
				t.Errorf("message %q, want %q in it", r.Message, tc.message)
			}
		})
	}
}

func summary(r nodelocal.Report) string {
	text := r.Reason
	switch {
	case r.Served:
		text = "served"
	case r.Unknown:
		text = "unknown " + text
	}
	text += " " + string(rune('0'+r.Ready)) + "/" + string(rune('0'+r.Desired))
	for _, c := range r.Coverage {
		if !c.Covered || c.Reason != "" {
			text += " " + c.Name + "=" + c.Reason
		}
	}
	return text
}

func TestJudgeNamesThreeEngines(t *testing.T) {
	v := nodelocal.View{MaxEngines: 9}
	for _, name := range []string{"d", "b", "a", "c"} {
		v.Engines = append(v.Engines, nodelocal.Engine{Name: name, Node: "n", Live: true, Verified: true})
	}
	if r := nodelocal.Judge(v); !strings.HasSuffix(r.Message, ": a, b, c, ...") {
		t.Errorf("message %q", r.Message)
	}
}
