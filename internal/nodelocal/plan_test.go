// SPDX-License-Identifier: Apache-2.0

package nodelocal_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/nodelocal"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func wish() nodelocal.Wish {
	return nodelocal.Wish{Backend: "cb", Wanted: true, Hash: "new", Retention: 5 * time.Minute}
}

func engine(hash string) nodelocal.Engine {
	return nodelocal.Engine{Name: "e-" + hash, Node: "n", Hash: hash, Live: true, Ready: true, Verified: true}
}

func server(edits ...func(*nodelocal.Server)) nodelocal.Server {
	s := nodelocal.Server{Name: nodelocal.ServerName("cb", "n"), Node: "n", Hash: "new", Created: noon.Add(-time.Hour), Ready: true}
	for _, edit := range edits {
		edit(&s)
	}
	return s
}

// told is a plan in one line.
func told(actions []nodelocal.Action, wait time.Duration) string {
	var parts []string
	for _, a := range actions {
		text := string(a.Step)
		if a.Cause != "" {
			text += " " + string(a.Cause)
		}
		if a.Server != nodelocal.ServerName("cb", a.Node) {
			text += " " + a.Server
		}
		if a.Failures > 0 {
			text += fmt.Sprintf(" after %d", a.Failures)
		}
		parts = append(parts, text)
	}
	if wait > 0 {
		parts = append(parts, "wait "+wait.String())
	}
	return strings.Join(parts, ", ")
}

func TestPlan(t *testing.T) {
	type (
		s = nodelocal.Server
		e = nodelocal.Engine
	)
	outdated := func(s *s) { s.Hash = "old" }
	ended := func(ran, ago time.Duration, failures int) func(*s) {
		return func(s *s) {
			s.Ready, s.Ended, s.Created, s.Failures = false, noon.Add(-ago), noon.Add(-ago-ran), failures
		}
	}
	idle := func(d time.Duration) func(*s) { return func(s *s) { s.IdleSince = noon.Add(-d) } }
	named := func(name string) func(*s) { return func(s *s) { s.Name = name } }
	leaving := func(s *s) { s.Leaving = true }
	for name, tc := range map[string]struct {
		wish    func(*nodelocal.Wish)
		servers []s
		engines []e
		want    string
	}{
		"the first engine brings a server":             {engines: []e{engine("new")}, want: "create"},
		"an engine without a node brings none":         {engines: []e{{Name: "e", Hash: "new", Live: true, Verified: true}}},
		"an engine that others wired brings none":      {engines: []e{{Name: "e", Node: "n", Live: true}}},
		"an engine that goes brings none":              {engines: []e{{Name: "e", Node: "n", Hash: "new", Verified: true}}},
		"a server in use stays":                        {servers: []s{server()}, engines: []e{engine("new")}},
		"an engine that goes keeps its server":         {servers: []s{server()}, engines: []e{{Name: "e", Node: "n", Hash: "new", Verified: true}}},
		"a server without engines is marked":           {servers: []s{server()}, want: "mark-idle, wait 5m0s"},
		"an idle server waits":                         {servers: []s{server(idle(time.Minute))}, want: "wait 4m0s"},
		"an idle server goes":                          {servers: []s{server(idle(5 * time.Minute))}, want: "delete idle"},
		"an idle mark of tomorrow waits no longer":     {servers: []s{server(idle(-24 * time.Hour))}, want: "wait 5m0s"},
		"demand takes the mark away":                   {servers: []s{server(idle(time.Hour))}, engines: []e{engine("new")}, want: "mark-used"},
		"without retention an idle server goes":        {wish: func(w *nodelocal.Wish) { w.Retention = 0 }, servers: []s{server()}, want: "delete idle"},
		"a server that ended waits":                    {servers: []s{server(ended(time.Minute, time.Second, 0))}, engines: []e{engine("new")}, want: "wait 9s"},
		"a server that ended is replaced":              {servers: []s{server(ended(time.Minute, 10*time.Second, 0))}, engines: []e{engine("new")}, want: "delete ended, create after 1"},
		"the third end waits for longer":               {servers: []s{server(ended(time.Minute, 10*time.Second, 2))}, engines: []e{engine("new")}, want: "wait 30s"},
		"the end of a steady server is the first":      {servers: []s{server(ended(time.Hour, 10*time.Second, 8))}, engines: []e{engine("new")}, want: "delete ended, create after 1"},
		"an end without engines leaves nothing":        {servers: []s{server(ended(time.Minute, 0, 0))}, want: "delete ended"},
		"an end in the future waits no longer":         {servers: []s{server(ended(time.Minute, -time.Hour, 0))}, engines: []e{engine("new")}, want: "wait 10s"},
		"old engines keep an outdated server":          {servers: []s{server(outdated)}, engines: []e{engine("old"), engine("new")}},
		"engines of any other hash do":                 {servers: []s{server(outdated)}, engines: []e{engine("older"), engine("new")}},
		"an old engine that goes does":                 {servers: []s{server(outdated)}, engines: []e{{Name: "e", Node: "n", Hash: "old", Verified: true}}},
		"an outdated server goes after the last":       {servers: []s{server(outdated)}, engines: []e{engine("new")}, want: "delete outdated"},
		"an outdated server without engines goes":      {servers: []s{server(outdated)}, want: "delete outdated"},
		"an outdated server in use loses its mark":     {servers: []s{server(outdated, idle(0))}, engines: []e{engine("old")}, want: "mark-used"},
		"replacement now spares no engine":             {wish: func(w *nodelocal.Wish) { w.ReplaceNow = true }, servers: []s{server(outdated)}, engines: []e{engine("old")}, want: "delete outdated"},
		"replacement now spares a current server":      {wish: func(w *nodelocal.Wish) { w.ReplaceNow = true }, servers: []s{server()}, engines: []e{engine("old")}},
		"a server asked to be replaced goes":           {servers: []s{server(func(s *s) { s.Replace = true })}, engines: []e{engine("new")}, want: "delete replace"},
		"nothing is created beside one that goes":      {servers: []s{server(leaving)}, engines: []e{engine("new")}},
		"duplicates go, the one so named stays":        {servers: []s{server(named("a")), server()}, engines: []e{engine("new")}, want: "delete duplicate a"},
		"of duplicates one that runs stays":            {servers: []s{server(ended(0, 0, 0)), server(named("a"))}, engines: []e{engine("new")}, want: "delete duplicate"},
		"a backend without servers keeps those in use": {wish: func(w *nodelocal.Wish) { w.Wanted, w.Hash = false, "" }, servers: []s{server()}, engines: []e{engine("new")}},
		"a backend without servers gives up the rest":  {wish: func(w *nodelocal.Wish) { w.Wanted, w.Hash = false, "" }, servers: []s{server()}, want: "delete outdated"},
		"a backend without servers replaces none": {
			wish: func(w *nodelocal.Wish) { w.Wanted, w.Hash = false, "" }, servers: []s{server(ended(0, time.Hour, 0))}, engines: []e{engine("new")},
			want: "delete ended",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := wish()
			if tc.wish != nil {
				tc.wish(&w)
			}
			if got := told(nodelocal.Plan(w, tc.servers, tc.engines, noon)); got != tc.want {
				t.Errorf("plan %q, want %q", got, tc.want)
			}
		})
	}
}

func TestBackoffGrowsFromTenSecondsToFiveMinutes(t *testing.T) {
	var got []string
	for n := range 8 {
		got = append(got, nodelocal.Backoff(n).String())
	}
	if want := "0s 10s 20s 40s 1m20s 2m40s 5m0s 5m0s"; strings.Join(got, " ") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, " "), want)
	}
	if nodelocal.Backoff(1<<30) != 5*time.Minute {
		t.Error("many failures wait for something else")
	}
}

// world is a cluster in which plans are carried out.
type world struct {
	t       *testing.T
	random  *rand.Rand
	wish    nodelocal.Wish
	now     time.Time
	servers []nodelocal.Server
	engines []nodelocal.Engine
	born    int
}

var worldNodes = []string{"n0", "n1", "n2"}

// upset changes something that nobody asked for.
func (w *world) upset() {
	node := worldNodes[w.random.IntN(len(worldNodes))]
	switch w.random.IntN(9) {
	case 0, 1, 2:
		w.born++
		w.engines = append(w.engines, nodelocal.Engine{
			Name: fmt.Sprintf("e%d", w.born), Node: node, Hash: w.wish.Hash, Live: true, Ready: true, Verified: w.random.IntN(8) > 0,
		})
	case 3:
		if len(w.engines) > 0 {
			w.engines[w.random.IntN(len(w.engines))].Live = false
		}
	case 4:
		if len(w.engines) > 0 {
			i := w.random.IntN(len(w.engines))
			w.engines = slices.Delete(w.engines, i, i+1)
		}
	case 5:
		if len(w.servers) > 0 {
			s := &w.servers[w.random.IntN(len(w.servers))]
			if s.Ended.IsZero() {
				s.Ended, s.Ready = w.now, false
			}
		}
	case 6:
		w.born++
		w.wish.Hash = fmt.Sprintf("h%d", w.born)
	case 7:
		w.born++
		w.servers = append(w.servers, nodelocal.Server{Name: fmt.Sprintf("copy%d", w.born), Node: node, Hash: w.wish.Hash, Created: w.now})
	case 8:
		w.now = w.now.Add(time.Duration(w.random.IntN(400)) * time.Second)
	}
}

// step carries one plan out and checks that no engine lost its server to a
// change of configuration.
func (w *world) step() (acted bool, wait time.Duration) {
	actions, wait := nodelocal.Plan(w.wish, w.servers, w.engines, w.now)
	for _, a := range actions {
		i := slices.IndexFunc(w.servers, func(s nodelocal.Server) bool { return s.Name == a.Server })
		if a.Step == nodelocal.Create {
			if i >= 0 {
				w.t.Fatalf("%s is created twice", a.Server)
			}
			w.servers = append(w.servers, nodelocal.Server{Name: a.Server, Node: a.Node, Hash: w.wish.Hash, Created: w.now, Failures: a.Failures, Ready: true})
			continue
		}
		if i < 0 {
			w.t.Fatalf("%s of %s, which is not there", a.Step, a.Server)
		}
		switch a.Step {
		case nodelocal.Delete:
			if a.Cause == nodelocal.CauseOutdated && w.used(a.Node, func(e nodelocal.Engine) bool { return e.Hash != w.wish.Hash }) ||
				a.Cause == nodelocal.CauseIdle && w.used(a.Node, func(nodelocal.Engine) bool { return true }) {
				w.t.Fatalf("%s took the server of %s from its engines", a.Cause, a.Node)
			}
			w.servers = slices.Delete(w.servers, i, i+1)
		case nodelocal.MarkIdle:
			w.servers[i].IdleSince = w.now
		case nodelocal.MarkUsed:
			w.servers[i].IdleSince = time.Time{}
		}
	}
	return len(actions) > 0, wait
}

func (w *world) used(node string, by func(nodelocal.Engine) bool) bool {
	return slices.ContainsFunc(w.engines, func(e nodelocal.Engine) bool { return e.Node == node && e.Verified && by(e) })
}

// settle carries plans out until none changes anything, however long it takes.
func (w *world) settle() {
	for range 60 {
		acted, wait := w.step()
		switch {
		case acted:
		case wait == 0:
			w.now = w.now.Add(30 * 24 * time.Hour)
			if actions, _ := nodelocal.Plan(w.wish, w.servers, w.engines, w.now); len(actions) > 0 {
				w.t.Fatalf("nobody waits for %v", actions)
			}
			return
		default:
			w.now = w.now.Add(wait)
		}
	}
	w.t.Fatal("plans do not come to an end")
}

// model is what a node holds in the end, told from its engines alone: current,
// any (what was there stays) or none.
func (w *world) model(node string) string {
	live := w.used(node, func(e nodelocal.Engine) bool { return e.Live })
	foreign := w.used(node, func(e nodelocal.Engine) bool { return e.Hash != w.wish.Hash })
	switch {
	case live && !foreign:
		return "current"
	case live:
		return "any"
	case w.used(node, func(nodelocal.Engine) bool { return true }):
		return "at most one"
	}
	return "none"
}

func TestPlansLeadToWhatThePlainModelSays(t *testing.T) {
	for seed := range uint64(300) {
		w := &world{t: t, random: rand.New(rand.NewPCG(seed, 1)), wish: wish(), now: noon}
		for range 40 {
			w.upset()
			if w.random.IntN(3) > 0 {
				w.step()
			}
		}
		w.settle()
		for _, node := range worldNodes {
			var here []nodelocal.Server
			for _, s := range w.servers {
				if s.Node == node {
					here = append(here, s)
				}
			}
			want := w.model(node)
			ok := map[string]bool{
				"current":     len(here) == 1 && here[0].Hash == w.wish.Hash && here[0].Ended.IsZero(),
				"any":         len(here) == 1 && here[0].Ended.IsZero(),
				"at most one": len(here) <= 1,
				"none":        len(here) == 0,
			}[want]
			if !ok {
				t.Fatalf("seed %d: node %s holds %+v, want %s", seed, node, here, want)
			}
		}
	}
}
