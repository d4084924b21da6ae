// SPDX-License-Identifier: Apache-2.0

package standalone

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inferencecache/inference-cache/internal/publisher"
)

// followers are the publishers of all engines. They may change while they run.
type followers struct {
	mu   sync.Mutex
	each []*follower
	// run starts a publisher; nil before Run and after its end.
	run func(*follower)
}

// follower is one engine's publisher.
type follower struct {
	engine    Engine
	publisher *publisher.Publisher
	registry  *prometheus.Registry
	// stop ends the publisher, done is closed when it has; nil before it runs.
	stop context.CancelFunc
	done chan struct{}
}

// publishers lists them as they are now.
func (f *followers) publishers() []*publisher.Publisher {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]*publisher.Publisher, len(f.each))
	for i, one := range f.each {
		out[i] = one.publisher
	}
	return out
}

// gatherers lists their metrics as they are now.
func (f *followers) gatherers() prometheus.Gatherers {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out prometheus.Gatherers
	for _, one := range f.each {
		out = append(out, one.registry)
	}
	return out
}

// newFollower builds the publisher of an engine.
func (s *Standalone) newFollower(engine Engine) (*follower, error) {
	registry := prometheus.NewRegistry()
	targets := []publisher.Target{publisher.NewInProcTarget("server", s.server.CacheSync())}
	built, err := publisher.New(publisher.Config{
		Tenant:  s.config.Tenant,
		Model:   engine.Model,
		Scheme:  engine.Runtime,
		Replica: engine.Replica,
		BaseURL: engine.URL,
		Events:  engine.Events,
		Replay:  engine.Replay,
		Topic:   engine.Topic,
		Ranks:   int(engine.Ranks),
	}, targets, publisher.Deps{
		Logger: s.logger.With("role", "publisher", "engine", engine.Replica),
		// The label tells the publishers of one process apart.
		Registerer: prometheus.WrapRegistererWith(prometheus.Labels{"replica_id": engine.Replica}, registry),
		Version:    s.deps.Version,
	})
	if err != nil {
		return nil, fmt.Errorf("building the publisher of %s: %w", engine.Replica, err)
	}
	return &follower{engine: engine, publisher: built, registry: registry}, nil
}

// follow makes the engines with events those that are followed. Publishers of
// engines that stay as they are go on.
func (s *Standalone) follow(engines []Engine) error {
	f := &s.followers
	f.mu.Lock()
	before := slices.Clone(f.each)
	f.mu.Unlock()
	var next []*follower
	for _, engine := range engines {
		if engine.Events == NoEvents {
			continue
		}
		at := slices.IndexFunc(before, func(one *follower) bool { return one.engine == engine })
		if at >= 0 {
			next = append(next, before[at])
			continue
		}
		built, err := s.newFollower(engine)
		if err != nil {
			return err
		}
		next = append(next, built)
	}
	for _, one := range before {
		if !slices.Contains(next, one) && one.stop != nil {
			one.stop()
			<-one.done
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.each = next
	f.startLocked()
	return nil
}

// startLocked starts those that do not run yet.
func (f *followers) startLocked() {
	for _, one := range f.each {
		if f.run != nil && one.stop == nil {
			f.run(one)
		}
	}
}

// begin starts all with run, and end keeps later ones from being started.
func (f *followers) begin(run func(*follower)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.run = run
	f.startLocked()
}

func (f *followers) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.run = nil
}
