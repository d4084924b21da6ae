// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/inferencecache/inference-cache/internal/bench"
	"github.com/inferencecache/inference-cache/internal/sim/demo"
	"github.com/inferencecache/inference-cache/internal/sim/engine"
	"github.com/inferencecache/inference-cache/internal/sim/sched"
	"github.com/inferencecache/inference-cache/internal/sim/workload"
)

// peer is another router in one setting.
type peer struct {
	// program is its name and that of its folder; setting tells settings of
	// one program apart.
	program, setting string
	// flags besides address and workers.
	flags []string
	// events says that it follows the engines' events.
	events bool
	// overhead says that it is measured for what it adds, too.
	overhead bool
}

// plain keeps peers from hiding errors and from writing logs.
var plain = []string{"--disable-retries", "--disable-circuit-breaker", "--log-level", "error"}

// peers in the order they are measured.
var peers = []peer{
	{program: "smg", flags: smgFlags(), overhead: true},
	{program: "smg", setting: "low thresholds", flags: smgFlags("--balance-abs-threshold", "4", "--balance-rel-threshold", "1.1")},
	{program: "vllm-router", flags: append([]string{"--policy", "cache_aware"}, plain...), overhead: true},
	{program: "vllm-router", setting: "events", flags: append([]string{"--policy", "kv_aware", "--kv-event-model", model}, plain...), events: true},
}

func smgFlags(more ...string) []string {
	return slices.Concat([]string{"launch", "--policy", "cache_aware", "--disable-tokenizer-autoload"}, more, plain)
}

func (p peer) name() string {
	if p.setting == "" {
		return p.program
	}
	return p.program + " (" + p.setting + ")"
}

// version reads which version is installed, "" for none.
func (p peer) version(folder string) string {
	text, err := os.ReadFile(filepath.Join(folder, p.program, "installed"))
	if err != nil {
		return ""
	}
	version, _, _ := strings.Cut(string(text), " ")
	return version
}

// start runs it in front of engines and returns its URL.
func (p peer) start(ctx context.Context, folder string, engines []demo.Addresses) (*child, string, error) {
	addresses, err := freeAddresses(2)
	if err != nil {
		return nil, "", err
	}
	host, port, err := net.SplitHostPort(addresses[0])
	if err != nil {
		return nil, "", err
	}
	_, metrics, err := net.SplitHostPort(addresses[1])
	if err != nil {
		return nil, "", err
	}
	arguments := append(slices.Clone(p.flags), "--host", host, "--port", port, "--prometheus-host", host, "--prometheus-port", metrics)
	for _, e := range engines {
		if p.events {
			arguments = append(arguments, "--kv-event-source", e.HTTP+"="+e.Events)
		}
	}
	arguments = append(arguments, "--worker-urls")
	for _, e := range engines {
		arguments = append(arguments, e.HTTP)
	}
	url := "http://" + addresses[0]
	c, err := startChild(ctx, url+"/v1/models", filepath.Join(folder, p.program, "bin", p.program), arguments...)
	return c, url, err
}

// peerNote is a line about a peer.
type peerNote struct {
	Peer    string   `json:"peer"`
	Version string   `json:"version,omitempty"`
	Flags   []string `json:"flags"`
	Skipped string   `json:"skipped,omitempty"`
}

// note prints which version runs with which flags, or why none does.
func (p peer) note(r *bench.Report, o Options, err error) {
	n := peerNote{Peer: p.name(), Version: p.version(o.Peers), Flags: p.flags}
	switch {
	case n.Version == "":
		n.Skipped = "not installed in " + o.Peers
	case err != nil:
		n.Skipped = err.Error()
	}
	r.Print(n)
}

// startPeers starts the peers whose overhead is measured. One that cannot be
// started is left out and said so.
func startPeers(ctx context.Context, r *bench.Report, o Options, g *rig) (arms []*arm, err error) {
	if o.Peers == "" {
		return nil, nil
	}
	var engines []demo.Addresses
	for _, e := range g.engines {
		engines = append(engines, e.Addresses())
	}
	for _, p := range peers {
		if !p.overhead {
			continue
		}
		if p.version(o.Peers) == "" {
			p.note(r, o, nil)
			continue
		}
		c, url, err := p.start(ctx, o.Peers, engines)
		p.note(r, o, err)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			continue
		}
		g.children[p.name()] = c
		arms = append(arms, &arm{name: p.name(), urls: []string{url}})
	}
	return arms, nil
}

// ours is the gateway among its peers: up, whose one process is publishers,
// index and gateway.
const ours = "inferencecache up"

// comparePeers sends the same chats through each router, each time to fresh
// engines of realistic speed. Reuse is what the engines say.
func comparePeers(ctx context.Context, r *bench.Report, o Options) error {
	f := &fronts{options: o, used: map[string]time.Duration{}}
	names := []string{ours, ours + " (round robin)"}
	for _, p := range peers {
		if p.version(o.Peers) == "" {
			p.note(r, o, nil)
			continue
		}
		if err := f.try(ctx, p); err != nil {
			p.note(r, o, err)
			continue
		}
		p.note(r, o, nil)
		names = append(names, p.name())
	}
	report, err := demo.Run(ctx, demo.Options{
		Launch: demo.Processes(o.Executable), Front: f.open, Policies: names,
		Engine: engine.Config{Model: model, Scheduler: sched.Config{CapacityBlocks: 1536}},
		// As many requests a second as in the demo.
		Workload: workload.Config{
			Duration: 2 * o.Duration, Conversations: max(int(6*o.Duration.Seconds()), 1), Pause: o.Duration / 5,
		},
	})
	if err != nil {
		return err
	}
	for _, p := range report.Phases {
		r.AtMost("peers", p.Policy+": tokens reused", "of oracle", 0, []float64{p.ReusedOfOracle}, map[string]float64{
			"requests": float64(p.Requests), "failed": float64(p.Failed), "max_mean_load": p.MaxMeanLoad,
			"first_p50_ms": p.FirstTokenP50, "first_p99_ms": p.FirstTokenP99,
			"reused": float64(p.ReusedTokens) / float64(max(report.PromptTokens, 1)), "oracle_max_mean_load": report.OracleMaxMeanLoad,
			"processor_us_per_request": micros(f.used[p.Policy]) / float64(max(p.Requests, 1)),
		})
	}
	return nil
}

// fronts starts routers and keeps what they used.
type fronts struct {
	options Options
	used    map[string]time.Duration
}

// front is a router in front of engines.
type front struct {
	*child
	url    string
	before time.Duration // used when it began to serve
	keep   func(time.Duration)
}

func (f *front) URL() string { return f.url }

// Close implements demo.Route.
func (f *front) Close() error {
	f.keep(bench.ProcessTimeOf(f.pid()) - f.before)
	f.stop()
	return nil
}

// open is a demo.Front.
func (f *fronts) open(ctx context.Context, name string, engines []demo.Addresses) (demo.Route, error) {
	var c *child
	var url string
	var err error
	switch name {
	case ours:
		c, url, err = f.up(ctx, "hint", engines)
	case ours + " (round robin)":
		c, url, err = f.up(ctx, "round_robin", engines)
	default:
		for _, p := range peers {
			if p.name() == name {
				c, url, err = p.start(ctx, f.options.Peers, engines)
			}
		}
	}
	if err != nil {
		return nil, err
	}
	return &front{c, url, bench.ProcessTimeOf(c.pid()), func(d time.Duration) { f.used[name] = d }}, nil
}

// up starts ours.
func (f *fronts) up(ctx context.Context, policy string, engines []demo.Addresses) (*child, string, error) {
	addresses, err := freeAddresses(3)
	if err != nil {
		return nil, "", err
	}
	arguments := []string{
		"up", "--policy", policy, "--listen", addresses[0], "--admin", addresses[1], "--grpc", addresses[2], "--exit-with-stdin",
	}
	for i, e := range engines {
		arguments = append(arguments, "--engine", engineFlag(i, e))
	}
	c, err := startChild(ctx, "http://"+addresses[1]+"/readyz", f.options.Executable, arguments...)
	return c, "http://" + addresses[0], err
}

// try tells whether a peer starts at all.
func (f *fronts) try(ctx context.Context, p peer) error {
	e, err := demo.Processes(f.options.Executable)(ctx, quick)
	if err != nil {
		return err
	}
	defer func() { _ = e.Close() }()
	c, url, err := p.start(ctx, f.options.Peers, []demo.Addresses{e.Addresses()})
	if err != nil {
		return err
	}
	defer c.stop()
	client := newClient()
	defer client.close()
	if _, err := client.send(ctx, url, chat(0, smallPrompt), time.Now()); err != nil {
		return fmt.Errorf("the first request: %w", err)
	}
	return nil
}
