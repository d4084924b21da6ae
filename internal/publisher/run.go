// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/engines"
)

// Publisher follows one engine and reports what its ranks hold. Several may
// run in one process.
type Publisher struct {
	config  Config
	deps    Deps
	started time.Time
	metrics *metrics

	// Set by Run before any stream is followed.
	ctx   context.Context
	tasks sync.WaitGroup
	// again asks for another look at what the engine serves.
	again chan struct{}

	// mu guards what follows. It is taken after the lock of a stream and
	// before that of a hub.
	mu       sync.Mutex
	targets  []Target
	identity Identity // of every rank, without its name and number
	model    string   // empty until known
	loRA     bool
	block    int // block size the engine states; 0 is unknown
	streams  []*stream
	ranks    []*engineRank
	reports  []*report // those whose hubs run, old names included
	load     LoadStatus
	// askError is why the engine has not told its models; empty if it has or
	// was not asked yet.
	askError string
}

// New checks the configuration. Run starts the work.
func New(config Config, targets []Target, deps Deps) (*Publisher, error) {
	p := &Publisher{
		config: config.withDefaults(), deps: deps.withDefaults(), targets: targets,
		again: make(chan struct{}, 1),
	}
	if err := p.config.check(); err != nil {
		return nil, err
	}
	if _, known := engines.ProfileOf(p.config.Scheme); !known {
		p.deps.Logger.Warn("unknown runtime, reading its load as that of vLLM", "scheme", p.config.Scheme)
	}
	p.started = p.deps.Now()
	p.model = p.config.Model
	p.metrics = newMetrics(p)
	p.config.Hub.Observer = p.metrics
	if p.config.Hub.Logger == nil {
		p.config.Hub.Logger = p.deps.Logger
	}
	if deps.Registerer != nil {
		if err := deps.Registerer.Register(p.metrics); err != nil {
			return nil, fmt.Errorf("register publisher metrics: %w", err)
		}
	}
	return p, nil
}

// Run follows the engine until ctx ends, and waits for it as long as it is not
// there. It returns within HubOptions.CloseTimeout and a second, and is called
// once.
func (p *Publisher) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer p.deps.HTTPClient.CloseIdleConnections()
	defer p.tasks.Wait()
	defer cancel()
	p.ctx = ctx

	var found engines.Discovery
	if p.mustAsk() {
		var ok bool
		if found, ok = p.discover(ctx); !ok {
			return nil
		}
	} else if p.config.BaseURL != "" {
		p.tasks.Go(func() { p.discover(ctx) })
	}
	sources, shared, err := p.config.sources(found)
	if err != nil {
		return err
	}
	p.follow(sources, shared)
	if p.config.BaseURL != "" {
		p.tasks.Go(func() { p.watchModel(ctx) })
	}
	if p.config.MetricsURL != "" && p.config.StatsInterval > 0 {
		p.tasks.Go(func() { p.scrape(ctx) })
	}
	<-ctx.Done()
	return nil
}

// SetTargets replaces the servers. Links to targets of the same name go on
// undisturbed.
func (p *Publisher) SetTargets(targets []Target) {
	p.mu.Lock()
	p.targets = targets
	reports := slices.Clone(p.reports)
	p.mu.Unlock()
	for _, r := range reports {
		r.hub.SetTargets(targets)
	}
}

// mustAsk is true when the streams cannot be opened without an answer of the
// engine. SGLang does not name adapters in its events, so it matters whether
// it has any.
func (p *Publisher) mustAsk() bool {
	c := &p.config
	return c.Model == "" || c.Events == "" || c.Scheme == engines.SGLang && c.BaseURL != ""
}

// askTimeout bounds one attempt to ask the engine.
const askTimeout = 10 * time.Second

// discover asks the engine until it answers; ok is false if ctx ended first.
func (p *Publisher) discover(ctx context.Context) (found engines.Discovery, ok bool) {
	wait := backoff{min: p.config.ReconnectMin, max: p.config.ReconnectMax, jitter: p.deps.Jitter}
	var waiting notice
	for ctx.Err() == nil {
		attempt, cancel := context.WithTimeout(ctx, askTimeout)
		found, err := engines.Discover(attempt, p.deps.HTTPClient, p.config.BaseURL, p.config.Scheme)
		cancel()
		if err == nil && p.config.Model == "" && found.BaseModel() == "" {
			err = fmt.Errorf("%s lists adapters only", p.config.BaseURL)
		}
		if err == nil {
			p.learn(found)
			return found, true
		}
		if ctx.Err() == nil {
			p.mu.Lock()
			p.askError = err.Error()
			p.mu.Unlock()
		}
		if ctx.Err() == nil && waiting.due(time.Now()) {
			p.deps.Logger.Warn("waiting for the engine to tell its models", "error", err)
		}
		sleep(ctx, wait.next())
	}
	return engines.Discovery{}, false
}

// lookAgain is called when another engine may be behind the sockets.
func (p *Publisher) lookAgain() {
	select {
	case p.again <- struct{}{}:
	default:
	}
}

// watchModel looks again whenever that is asked for, until ctx ends.
func (p *Publisher) watchModel(ctx context.Context) {
	for {
		select {
		case <-p.again:
			p.discover(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// learn keeps what the engine told and tells the ranks that exist already. A
// configured model stays.
func (p *Publisher) learn(found engines.Discovery) {
	p.mu.Lock()
	before := p.model
	if p.config.Model == "" {
		p.model = found.BaseModel()
		p.identity.Model = p.model
	}
	changed := before != "" && p.model != before
	p.loRA, p.block, p.askError = found.LoRA, found.BlockSize, ""
	replicas := slices.Clone(p.ranks)
	p.mu.Unlock()
	if changed {
		p.deps.Logger.Warn("engine has another model", "replica", p.config.Replica, "before", before, "model", found.BaseModel())
	}
	for _, r := range replicas {
		if changed {
			r.remodel()
		}
		r.apply(func(s *Session) Step {
			s.LearnBlockSize(found.BlockSize)
			return Step{}
		})
	}
}

// follow opens the streams.
func (p *Publisher) follow(sources []source, shared bool) {
	p.mu.Lock()
	p.identity = Identity{
		Tenant:        p.config.Tenant,
		Model:         p.model,
		Scheme:        p.config.Scheme,
		RankCount:     len(sources),
		PodUID:        p.config.PodUID,
		Epoch:         p.deps.Epoch,
		StartedAt:     p.started,
		ClientVersion: p.deps.Version,
	}
	p.mu.Unlock()
	ranked := len(sources) > 1 || p.config.FirstRank > 0
	for _, src := range sources {
		s := &stream{p: p, source: src, shared: shared, others: map[int]*engineRank{}}
		id := p.config.Replica
		if ranked {
			id = p.rankID(src.rank)
		}
		s.first = p.addRank(s, src, id)
		p.mu.Lock()
		p.streams = append(p.streams, s)
		p.mu.Unlock()
		p.tasks.Go(func() { s.run(p.ctx) })
	}
}

func (p *Publisher) rankID(rank int) string {
	return p.config.Replica + "#" + strconv.Itoa(rank)
}

// addRank makes a rank fed by a stream and starts to report it as id.
func (p *Publisher) addRank(s *stream, src source, id string) *engineRank {
	p.mu.Lock()
	defer p.mu.Unlock()
	config := p.config.Session
	config.Scheme = p.config.Scheme
	config.HasReplay = src.replay != ""
	config.Rank, config.HasRank = src.rank, !s.shared
	config.LoRAUnattributable = config.LoRAUnattributable || p.config.Scheme == engines.SGLang && p.loRA
	r := &engineRank{p: p, stream: s, session: NewSession(config)}
	if p.block > 0 {
		r.session.LearnBlockSize(p.block)
	}
	if src.replay != "" {
		r.replayer = newReplayer(r, src.replay)
	}
	r.report.Store(r.newReport(p.identity, id, src.rank))
	p.ranks = append(p.ranks, r)
	if r.replayer != nil {
		p.tasks.Go(func() { r.replayer.run(p.ctx) })
	}
	p.startLocked(r.report.Load())
	return r
}

// currentIdentity returns what ranks have in common.
func (p *Publisher) currentIdentity() Identity {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.identity
}

// newReport makes a hub for a name of the rank.
func (r *engineRank) newReport(identity Identity, id string, rank int) *report {
	fresh := &report{of: r, id: id, rank: rank}
	identity.Replica, identity.Rank = id, rank
	identity.RankCount = max(identity.RankCount, rank+1)
	fresh.hub = NewHub(identity, fresh, nil, r.p.config.Hub)
	return fresh
}

// start runs the hub of a report until that is retired or Run ends.
func (p *Publisher) start(r *report) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.startLocked(r)
}

func (p *Publisher) startLocked(r *report) {
	ctx, cancel := context.WithCancel(p.ctx)
	r.stop = cancel
	p.reports = append(p.reports, r)
	r.hub.SetTargets(p.targets)
	p.tasks.Go(func() {
		defer cancel()
		// Run of a hub ends without an error, with its context.
		_ = r.hub.Run(ctx)
		p.mu.Lock()
		p.reports = slices.DeleteFunc(p.reports, func(other *report) bool { return other == r })
		p.mu.Unlock()
	})
}
