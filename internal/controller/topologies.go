// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/inferencecache/inference-cache/internal/propagate"
)

const (
	// topologyQuiet is how long topologies stay the same before they are
	// pushed: pods of a rollout change state one after another.
	topologyQuiet = 2 * time.Second
	// topologyLoad bounds the first resolution of all topologies.
	topologyLoad = 10 * time.Second
)

// Topologies holds the resolved topologies between their reconciler and the
// pusher. It is safe for concurrent use.
type Topologies struct {
	changed func()
	logger  *slog.Logger
	moved   chan struct{}

	mu     sync.Mutex
	load   func(context.Context) ([]propagate.Topology, error) // nil once published
	latest map[types.NamespacedName]propagate.Topology
	pushed []propagate.Topology
}

// NewTopologies returns an empty set that tells changed when there is
// something new to push.
func NewTopologies(changed func(), logger *slog.Logger) *Topologies {
	return &Topologies{
		changed: changed, logger: logger, moved: make(chan struct{}, 1), latest: make(map[types.NamespacedName]propagate.Topology),
	}
}

// LoadWith has the first All resolve everything at once, so that a controller
// that starts does not push that there are no topologies.
func (t *Topologies) LoadWith(load func(context.Context) ([]propagate.Topology, error)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.load = load
}

// All returns what is to be pushed.
func (t *Topologies) All() []propagate.Topology {
	t.mu.Lock()
	load := t.load
	t.load = nil
	t.mu.Unlock()
	if load != nil {
		ctx, cancel := context.WithTimeout(context.Background(), topologyLoad)
		defer cancel()
		all, err := load(ctx)
		if err != nil {
			t.logger.Error("cannot resolve the topologies at start", "error", err)
		}
		t.mu.Lock()
		for _, topology := range all {
			if _, newer := t.latest[topology.Name]; !newer {
				t.latest[topology.Name] = topology
			}
		}
		t.publishLocked()
		t.mu.Unlock()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pushed
}

// publishLocked makes the latest what is pushed.
func (t *Topologies) publishLocked() {
	t.pushed = nil
	for _, name := range sortedNames(t.latest) {
		t.pushed = append(t.pushed, t.latest[name])
	}
}

func (t *Topologies) set(topology propagate.Topology) {
	t.mu.Lock()
	old, known := t.latest[topology.Name]
	t.latest[topology.Name] = topology
	t.mu.Unlock()
	if !known || !reflect.DeepEqual(old, topology) {
		signal(t.moved)
	}
}

func (t *Topologies) remove(name types.NamespacedName) {
	t.mu.Lock()
	_, known := t.latest[name]
	delete(t.latest, name)
	t.mu.Unlock()
	if known {
		signal(t.moved)
	}
}

// NeedLeaderElection is true: only the pusher listens.
func (t *Topologies) NeedLeaderElection() bool { return true }

// Start publishes changes once they have settled, until the context ends.
func (t *Topologies) Start(ctx context.Context) error {
	settled := time.NewTimer(topologyQuiet)
	settled.Stop()
	defer settled.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.moved:
			settled.Reset(topologyQuiet)
		case <-settled.C:
			t.mu.Lock()
			t.publishLocked()
			t.mu.Unlock()
			t.changed()
		}
	}
}
