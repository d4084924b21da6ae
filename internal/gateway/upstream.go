// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/inferencecache/inference-cache/internal/engines"
)

const (
	// failuresOut and successesIn are health checks in a row that change a
	// replica's state. The very first contact needs one success.
	failuresOut = 3
	successesIn = 2
	// unreadyInterval is the time between checks of a replica that is out.
	unreadyInterval = time.Second
	// discoverEvery is the number of checks between looks at facts that
	// change only with an engine's configuration.
	discoverEvery = 12
	// waitingTokens is the assumed prompt length of a waiting request.
	waitingTokens = 1024

	maxModelsBytes  = 4 << 20
	maxVersionBytes = 4 << 10
)

// upstream is a replica and the loop that watches it.
type upstream struct {
	Replica
	// uid is unique among all replicas there ever were.
	uid       string
	base      *url.URL
	transport *http.Transport
	client    *http.Client
	meter     *engines.LoadMeter
	tenure    tenure
	// cutting ends by cut, to end the requests at the replica.
	cutting context.Context
	cut     context.CancelFunc
	// unwatch ends the watching loop, leaving the wait for the last requests;
	// guarded by the roster's mutex.
	unwatch, leaving context.CancelFunc
	// probe asks for a check now.
	probe chan struct{}
	// offers has a bit for each optional endpoint the engine has.
	offers atomic.Uint32
	// problem is why the last check failed, "" if it did not.
	problem atomic.Value
	// blockSize in tokens as the engine tells it, 0 = unknown.
	blockSize atomic.Int64

	// watched is held by the watching goroutine, to which the rest belongs.
	watched             sync.Mutex
	ready, seen         bool
	failures, successes int
	checks              int // successful ones since the last failure
	version             string
	// asleep is what the engine said last, mute that it does not say.
	asleep, mute bool
}

func newUpstream(replica Replica, resolver *net.Resolver) (*upstream, error) {
	base, err := parseBaseURL(replica.URL)
	if err != nil {
		return nil, fmt.Errorf("replica %q: %w", replica.ID, err)
	}
	load := engines.LoadOptions{}
	if replica.Rank != nil {
		load.HasRank, load.Rank = true, *replica.Rank
	}
	transport := newTransport(replica.Protocol, hostPortOf(base), resolver)
	cutting, cut := context.WithCancel(context.Background())
	return &upstream{
		Replica:   replica,
		base:      base,
		transport: transport,
		cutting:   cutting, cut: cut,
		client: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		meter: engines.NewLoadMeter(replica.Runtime, load),
		probe: make(chan struct{}, 1),
	}, nil
}

// url returns the address of an endpoint of the engine.
func (u *upstream) url(path string) string { return u.base.String() + path }

// probeSoon asks the watching loop to check at once.
func (u *upstream) probeSoon() {
	select {
	case u.probe <- struct{}{}:
	default:
	}
}

// watch checks the replica until ctx ends. checked is called after each
// check.
func (g *Gateway) watch(ctx context.Context, u *upstream, checked func()) {
	u.watched.Lock()
	defer u.watched.Unlock()
	for {
		g.check(ctx, u)
		checked()
		wait := g.options.Timeouts.HealthInterval
		if !u.ready {
			wait = min(wait, unreadyInterval)
		}
		timer := time.NewTimer(wait*9/10 + rand.N(wait/5+1))
		select {
		case <-timer.C:
		case <-u.probe:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// check looks at health first; everything else is read only while healthy and
// never changes health.
func (g *Gateway) check(ctx context.Context, u *upstream) {
	err := g.checkHealth(ctx, u)
	if err == nil {
		err = g.readModels(ctx, u)
	}
	if err == nil && u.checks == 0 {
		err = g.checkSalts(ctx, u)
	}
	if ctx.Err() != nil {
		return
	}
	u.note(err)
	if err != nil {
		u.successes = 0
		u.failures++
		u.checks = 0 // it may come back with another configuration
		if u.ready && u.failures >= failuresOut {
			g.setReady(u, false, err)
		}
		if !u.ready && u.failures == 1 {
			g.logger.Warn("replica is not ready", "replica", u.ID, "error", err)
		}
		return
	}
	u.failures = 0
	u.successes++
	if u.checks%discoverEvery == 0 || u.blockSize.Load() == 0 {
		g.discover(ctx, u)
	}
	if u.checks%discoverEvery == 0 {
		g.readOffers(ctx, u)
	}
	u.checks++
	g.readLoad(ctx, u)
	if !u.ready && (u.successes >= successesIn || !u.seen) {
		if u.seen {
			g.parity.changed(u.ID) // it may have come back as another image
		}
		u.seen = true
		g.setReady(u, true, nil)
	}
}

// note keeps what the last check found, for operators to see.
func (u *upstream) note(err error) {
	if err == nil {
		u.problem.Store("")
		return
	}
	u.problem.Store(err.Error())
}

func (g *Gateway) setReady(u *upstream, ready bool, cause error) {
	u.ready = ready
	g.whileListed(u, func() { g.fleet.SetReady(u.ID, ready) })
	g.readyChanged.Broadcast()
	if ready {
		g.logger.Info("replica is ready", "replica", u.ID, "block_size", u.blockSize.Load())
		return
	}
	g.logger.Warn("replica left", "replica", u.ID, "error", cause)
}

func (g *Gateway) checkHealth(ctx context.Context, u *upstream) error {
	path := "/health"
	if u.Runtime == engines.SGLang {
		path = "/model_info" // its /health may generate a token
	}
	body, err := g.get(ctx, u, path)
	if err != nil {
		return fmt.Errorf("health check: %w", err)
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(body, 64<<10)) // lets the connection be reused
	return body.Close()
}

// readModels updates what the replica serves. Models given by configuration
// are never asked for.
func (g *Gateway) readModels(ctx context.Context, u *upstream) error {
	if len(u.Models) > 0 {
		if !u.seen {
			g.setModels(u, staticModels(u.Models, time.Now()))
		}
		return nil
	}
	body, err := g.get(ctx, u, "/v1/models")
	if err != nil {
		return fmt.Errorf("list models: %w", err)
	}
	defer body.Close()
	data, err := io.ReadAll(io.LimitReader(body, maxModelsBytes))
	if err != nil {
		return fmt.Errorf("list models: %w", err)
	}
	models, err := decodeModels(data)
	if err == nil && baseModel(models) == "" {
		err = errors.New("no base model")
	}
	if err != nil {
		return fmt.Errorf("list models: %w", err)
	}
	g.setModels(u, models)
	return nil
}

func (g *Gateway) setModels(u *upstream, models []model) {
	g.whileListed(u, func() {
		if g.catalog.Set(u.ID, models) {
			g.fleet.SetServes(u.ID, serves(models))
			g.rebuildPools()
			g.parity.changed(u.ID)
		}
	})
}

func (g *Gateway) discover(ctx context.Context, u *upstream) {
	ctx, cancel := context.WithTimeout(ctx, g.options.Timeouts.Health)
	defer cancel()
	g.readVersion(ctx, u)
	facts, err := engines.Discover(ctx, u.client, u.base.String(), u.Runtime)
	if err != nil || facts.BlockSize <= 0 {
		return
	}
	if size := int64(facts.BlockSize); u.blockSize.Swap(size) != size {
		g.rebuildPools()
	}
}

// readVersion notices an engine that was replaced between two checks.
func (g *Gateway) readVersion(ctx context.Context, u *upstream) {
	if u.Runtime != engines.VLLM {
		return
	}
	body, err := g.get(ctx, u, "/version")
	if err != nil {
		return // older ones do not tell
	}
	defer body.Close()
	version, err := io.ReadAll(io.LimitReader(body, maxVersionBytes))
	if err != nil {
		return
	}
	if before := u.version; before != "" && before != string(version) {
		g.parity.changed(u.ID)
	}
	u.version = string(version)
}

// get returns the body of a 200 answer; closing it ends the call.
func (g *Gateway) get(ctx context.Context, u *upstream, path string) (io.ReadCloser, error) {
	ctx, cancel := context.WithTimeout(ctx, g.options.Timeouts.Health)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.url(path), nil)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("build request: %w", err)
	}
	response, err := u.client.Do(request)
	if err != nil {
		cancel()
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		_ = response.Body.Close()
		cancel()
		return nil, fmt.Errorf("status %d", response.StatusCode)
	}
	return &cancelledBody{response.Body, cancel}, nil
}

// cancelledBody ends its context when closed.
type cancelledBody struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b *cancelledBody) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}
