// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"fmt"
	"maps"
	"os"
	"time"

	"github.com/inferencecache/inference-cache/internal/bench"
	"github.com/inferencecache/inference-cache/internal/sim/demo"
	"github.com/inferencecache/inference-cache/internal/sim/engine"
	"github.com/inferencecache/inference-cache/internal/sim/sched"
)

// model of the simulated engines.
const model = "sim"

// quick engines compute 8 million tokens a second, so that they add as little
// as they can, and hold a million.
var quick = engine.Config{
	Model:     model,
	Scheduler: sched.Config{CapacityBlocks: 65_536, StepTokens: 1 << 17},
	Timing:    sched.Timing{Speed: 1000},
}

// rig is engines and an index that follows them, all processes of their own,
// and whatever routes to them.
type rig struct {
	executable string
	engines    []demo.Engine
	index      *child
	grpc       string // address of the index
	children   map[string]*child
}

// newRig starts engines and their index.
func newRig(ctx context.Context, o Options) (_ *rig, err error) {
	g := &rig{executable: o.Executable, children: map[string]*child{}}
	defer func() {
		if err != nil {
			g.close()
		}
	}()
	launch := demo.Processes(o.Executable)
	for range o.Engines {
		e, err := launch(ctx, quick)
		if err != nil {
			return nil, err
		}
		g.engines = append(g.engines, e)
	}
	addresses, err := freeAddresses(3)
	if err != nil {
		return nil, err
	}
	g.grpc = addresses[2]
	arguments := []string{"up", "--listen", addresses[0], "--admin", addresses[1], "--grpc", g.grpc, "--exit-with-stdin"}
	for i, e := range g.engines {
		arguments = append(arguments, "--engine", engineFlag(i, e.Addresses()))
	}
	g.index, err = startChild(ctx, "http://"+addresses[1]+"/readyz", o.Executable, arguments...)
	return g, err
}

// engineFlag is how up is told of an engine.
func engineFlag(i int, a demo.Addresses) string {
	return fmt.Sprintf("%s,events=%s,replay=%s,replica=%s", a.HTTP, a.Events, a.Replay, replicaName(i))
}

func replicaName(i int) string { return fmt.Sprintf("engine-%d", i+1) }

// stopChildren ends what routes to the engines.
func (g *rig) stopChildren() {
	for name, c := range g.children {
		c.stop()
		delete(g.children, name)
	}
}

func (g *rig) close() {
	g.stopChildren()
	if g.index != nil {
		g.index.stop()
	}
	for _, e := range g.engines {
		_ = e.Close() // the measurement is over
	}
}

// urls are those of the engines.
func (g *rig) urls() []string {
	out := make([]string, len(g.engines))
	for i, e := range g.engines {
		out[i] = e.Addresses().HTTP
	}
	return out
}

// gateway starts a gateway in front of the replicas at urls and returns its
// URL.
func (g *rig) gateway(ctx context.Context, name string, urls []string, flags ...string) (string, error) {
	addresses, err := freeAddresses(2)
	if err != nil {
		return "", err
	}
	arguments := append([]string{"gateway", "--listen", addresses[0], "--admin-listen", addresses[1]}, flags...)
	for i, url := range urls {
		arguments = append(arguments, "--replica", replicaName(i)+"="+url)
	}
	c, err := startChild(ctx, "http://"+addresses[1]+"/readyz", g.executable, arguments...)
	if err != nil {
		return "", err
	}
	g.children[name] = c
	return "http://" + addresses[0], nil
}

// usage is what processes and the machine have used.
type usage struct {
	at            time.Time
	by            map[string]time.Duration
	busy, stolen  time.Duration
	measuredByAll time.Duration
}

// processes that usage tells apart, besides the children.
const (
	ofClients = "client"
	ofEngines = "engine"
	ofIndex   = "index"
)

func (g *rig) use() usage {
	u := usage{at: time.Now(), by: map[string]time.Duration{ofClients: bench.ProcessTime()}}
	u.busy, u.stolen = bench.MachineTime()
	add := func(name string, pid int) {
		if pid != os.Getpid() {
			u.by[name] += bench.ProcessTimeOf(pid)
		}
	}
	for _, e := range g.engines {
		if p, ok := e.(interface{ PID() int }); ok {
			add(ofEngines, p.PID())
		}
	}
	if g.index != nil {
		add(ofIndex, g.index.pid())
	}
	for name, c := range g.children {
		add(name, c.pid())
	}
	for used := range maps.Values(u.by) {
		u.measuredByAll += used
	}
	return u
}

// since returns the processor time of one process, and adds the cores in use
// meanwhile to a row. Others and the host belong to nobody measured: where they
// are not small, the row says little.
func (u usage) since(before usage, name string, to map[string]float64) time.Duration {
	wall := u.at.Sub(before.at).Seconds()
	share := func(now, then time.Duration) float64 { return (now - then).Seconds() / wall }
	for _, of := range []string{ofClients, ofEngines, ofIndex} {
		to[of+"_cores"] = share(u.by[of], before.by[of])
	}
	to["other_cores"] = max(share(u.busy, before.busy)-share(u.measuredByAll, before.measuredByAll), 0)
	to["stolen_cores"] = share(u.stolen, before.stolen)
	used := u.by[name] - before.by[name]
	to["router_cores"] = used.Seconds() / wall
	return used
}
