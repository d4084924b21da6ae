// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/propagate"
)

// DefaultPushInterval is how often everything is sent again.
const DefaultPushInterval = 30 * time.Second

const (
	// mergeWindow collects events into one push.
	mergeWindow = 200 * time.Millisecond
	// backoffJitter is the share by which back-offs differ.
	backoffJitter = 0.2
)

// PusherOptions of a Pusher. Fields without a default are required.
type PusherOptions struct {
	// Client lists the resources and writes their status.
	Client    client.Client
	Discovery Discovery
	// WireVersion is the schema of the policy body; default the newest.
	WireVersion int
	// Interval between pushes without an event; default DefaultPushInterval.
	Interval time.Duration
	// Topologies are the resolved PDTopologies; default none.
	Topologies func() []propagate.Topology
	// Metrics counts pushes; default nowhere.
	Metrics *Metrics
	// Logger takes the logs; default none.
	Logger *slog.Logger
	// Now is the clock of conditions; default time.Now.
	Now func() time.Time
	// Jitter spreads back-offs; default by up to 20 %.
	Jitter func(time.Duration) time.Duration
}

func (o PusherOptions) withDefaults() PusherOptions {
	if o.WireVersion == 0 {
		o.WireVersion = 7
	}
	if o.Interval <= 0 {
		o.Interval = DefaultPushInterval
	}
	if o.Topologies == nil {
		o.Topologies = func() []propagate.Topology { return nil }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Jitter == nil {
		o.Jitter = func(d time.Duration) time.Duration {
			return time.Duration(float64(d) * (1 + backoffJitter*(2*rand.Float64()-1)))
		}
	}
	return o
}

// Pusher sends the whole declared policy to every server after each change and
// at every interval, and says on the resources what became of it. It is safe
// for concurrent use.
type Pusher struct {
	options  PusherOptions
	changed  chan struct{} // resources or servers may differ
	reported chan struct{} // a server has answered

	mu      sync.Mutex
	workers map[string]*worker // by server name
	running sync.WaitGroup
	current *push
}

// NewPusher returns a pusher that waits for Start.
func NewPusher(options PusherOptions) *Pusher {
	return &Pusher{
		options: options.withDefaults(),
		changed: make(chan struct{}, 1), reported: make(chan struct{}, 1),
		workers: make(map[string]*worker),
	}
}

// NeedLeaderElection is true: one controller pushes.
func (p *Pusher) NeedLeaderElection() bool { return true }

// Changed asks for a push soon. It never blocks.
func (p *Pusher) Changed() { signal(p.changed) }

// Observed compares what a server has applied with what it should have, and
// sends it again if it differs: the server has restarted.
func (p *Pusher) Observed(server, policyRevision string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.workers[server]
	if w == nil || p.current == nil {
		return
	}
	last := w.outcome()
	if last == nil || last.policies != nil || last.identity.PolicyRevision != "" && last.identity.PolicyRevision != policyRevision {
		w.resend()
	}
}

// Start pushes until the context ends.
func (p *Pusher) Start(ctx context.Context) error {
	defer p.running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ticker := time.NewTicker(p.options.Interval)
	defer ticker.Stop()
	p.round(ctx, true)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			p.round(ctx, true)
		case <-p.changed:
			if !pause(ctx, mergeWindow) {
				return nil
			}
			p.round(ctx, false)
		case <-p.reported:
			p.writeStatus(ctx)
		}
	}
}

// pause waits and reports whether the context still lives.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// round builds what the servers should have and hands it to their workers.
// Rounds follow one another, so an older list never replaces a newer one.
func (p *Pusher) round(ctx context.Context, force bool) {
	next, err := p.build(ctx)
	if err != nil {
		p.options.Logger.Error("cannot build the policy to push", "error", err)
		return
	}
	if next == nil {
		return
	}
	servers, err := p.options.Discovery.Servers(ctx)
	if err != nil {
		p.options.Logger.Error("cannot find the servers", "error", err)
		return
	}
	p.mu.Lock()
	p.current = next
	p.adopt(ctx, servers)
	for _, w := range p.workers {
		w.want(next, force)
	}
	p.mu.Unlock()
	p.writeStatus(ctx)
}

// build lists all resources. A kind that is not installed has none, but
// without CachePolicies there is nothing to push: an empty snapshot would end
// the policies of servers that outlive the installation. It returns nil then.
func (p *Pusher) build(ctx context.Context) (*push, error) {
	var (
		policies  v1alpha1.CachePolicyList
		tenants   v1alpha1.CacheTenantList
		templates v1alpha1.PromptTemplateList
	)
	for _, list := range []client.ObjectList{&policies, &tenants, &templates} {
		err := p.options.Client.List(ctx, list)
		switch {
		case meta.IsNoMatchError(err) && list == client.ObjectList(&policies):
			return nil, nil
		case err != nil && !meta.IsNoMatchError(err):
			return nil, fmt.Errorf("list %T: %w", list, err)
		}
	}
	snapshot, err := propagate.Policies(policies.Items, tenants.Items, p.options.WireVersion)
	if err != nil {
		return nil, err
	}
	topologies := p.options.Topologies()
	extensions, err := propagate.BuildExtensions(policies.Items, templates.Items, topologies)
	if err != nil {
		return nil, err
	}
	return &push{snapshot, extensions, topologies}, nil
}

// adopt starts workers for new servers and ends those of servers that left.
func (p *Pusher) adopt(ctx context.Context, servers []Server) {
	present := make(map[string]bool, len(servers))
	for _, server := range servers {
		present[server.Name] = true
		if old := p.workers[server.Name]; old != nil {
			if old.server.Address == server.Address {
				continue
			}
			old.cancel()
		}
		w := newWorker(server, func() { signal(p.reported) }, p.options.Jitter)
		w.sent = func(o *outcome, took time.Duration) {
			p.options.Metrics.pushed(server.Name, o, took, p.options.Now())
		}
		ctx, cancel := context.WithCancel(ctx)
		w.cancel = cancel
		p.workers[server.Name] = w
		p.running.Go(func() { w.run(ctx) })
		p.options.Logger.Info("server found", "server", server.Name)
	}
	for name, w := range p.workers {
		if !present[name] {
			w.cancel()
			delete(p.workers, name)
			p.options.Metrics.serverGone(name)
			p.options.Logger.Info("server gone", "server", name)
		}
	}
}
