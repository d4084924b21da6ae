// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/controlclient"
)

// Defaults of a Poller.
const (
	DefaultPollInterval = 30 * time.Second
	DefaultPollHurry    = 2 * time.Second
	DefaultMaxReplicas  = 1000
)

// PollerOptions of a Poller. Fields without a default are required.
type PollerOptions struct {
	// Client reads resources and pods, and writes status.
	Client    client.Client
	Discovery Discovery
	// Interval between polls; default DefaultPollInterval.
	Interval time.Duration
	// Hurry is the time between polls while servers come or go, or the first
	// event of a CacheBackend is awaited; default DefaultPollHurry.
	Hurry time.Duration
	// MaxReplicas bounds the rows of the CacheIndex; default
	// DefaultMaxReplicas.
	MaxReplicas int
	// Observed is told what policy a server says it has; default nobody.
	Observed func(server, policyRevision string)
	// Rows takes the replicas found; default nobody.
	Rows *Rows
	// Metrics counts polls; default nowhere.
	Metrics *Metrics
	// Logger takes the logs; default none.
	Logger *slog.Logger
	// Now is the clock of conditions; default time.Now.
	Now func() time.Time
}

// Poller reads what the servers know and writes it into the status of
// CacheIndex, CacheTenants and CacheBackends. When no server answers, every
// status stays as it is.
type Poller struct {
	options PollerOptions
	pace    *pace
	last    lastPoll
}

// NewPoller returns a poller that waits for Start.
func NewPoller(o PollerOptions) *Poller {
	if o.Interval <= 0 {
		o.Interval = DefaultPollInterval
	}
	if o.Hurry <= 0 {
		o.Hurry = DefaultPollHurry
	}
	if o.MaxReplicas <= 0 {
		o.MaxReplicas = DefaultMaxReplicas
	}
	if o.Observed == nil {
		o.Observed = func(string, string) {}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Poller{options: o, pace: newPace(o.Interval)}
}

// NeedLeaderElection is true: one controller writes status.
func (p *Poller) NeedLeaderElection() bool { return true }

// Start polls until the context ends.
func (p *Poller) Start(ctx context.Context) error {
	ticker := time.NewTicker(min(p.options.Interval, p.options.Hurry))
	defer ticker.Stop()
	for {
		if begin := time.Now(); p.due(ctx) {
			if err := p.Poll(ctx); err != nil && ctx.Err() == nil {
				p.options.Logger.Error("cannot poll the servers", "error", err)
			}
			p.last.began, p.last.took = begin, time.Since(begin)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// polled is one server's answer.
type polled struct {
	server   Server
	snapshot *controlclient.Snapshot
	identity controlclient.Identity
	err      error
}

// Poll asks every server once and writes what has changed.
func (p *Poller) Poll(ctx context.Context) error {
	if err := p.ensureIndex(ctx); err != nil {
		return err
	}
	servers, err := p.options.Discovery.Servers(ctx)
	if err != nil {
		return err
	}
	answers := ask(ctx, servers)
	p.last.saw(answers)
	var snapshots []*controlclient.Snapshot
	for _, a := range answers {
		p.options.Metrics.polled(a.server.Name, a.err, p.options.Now())
		if a.err != nil {
			p.options.Logger.Warn("a server does not answer", "server", a.server.Name, "error", a.err)
			continue
		}
		p.options.Observed(a.server.Name, a.identity.PolicyRevision)
		snapshots = append(snapshots, a.snapshot)
	}
	if len(snapshots) == 0 {
		return fmt.Errorf("none of %d servers answers: every status stays as it is", len(servers))
	}
	defer func() { p.pace.tidy(p.options.Now()) }()
	merged := merge(snapshots)
	if p.options.Rows != nil {
		p.options.Rows.Set(merged)
	}
	return firstError(
		p.writeIndex(ctx, answers, merged),
		p.writeTenants(ctx, merged),
		p.writeParticipation(ctx, merged),
	)
}

func firstError(all ...error) error {
	for _, err := range all {
		if err != nil {
			return err
		}
	}
	return nil
}

// ask polls all servers at once; each call is bounded by its client.
func ask(ctx context.Context, servers []Server) []polled {
	answers := make([]polled, len(servers))
	var all sync.WaitGroup
	for i, server := range servers {
		all.Go(func() {
			snapshot, identity, err := server.Client.Snapshot(ctx)
			answers[i] = polled{server, snapshot, identity, err}
		})
	}
	all.Wait()
	return answers
}

// ensureIndex creates the CacheIndex, also while no server answers. Without
// its definition there is nothing to create yet.
func (p *Poller) ensureIndex(ctx context.Context) error {
	var index v1alpha1.CacheIndex
	err := p.options.Client.Get(ctx, client.ObjectKey{Name: v1alpha1.CacheIndexName}, &index)
	if apierrors.IsNotFound(err) {
		index = v1alpha1.CacheIndex{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.CacheIndexName}}
		err = p.options.Client.Create(ctx, &index)
	}
	if err != nil && !meta.IsNoMatchError(err) && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create CacheIndex: %w", err)
	}
	return nil
}
