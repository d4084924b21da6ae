// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"
	"errors"
	"slices"
	"time"

	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"

	"github.com/inferencecache/inference-cache/internal/engines"
)

// staleMisses in a row make the load signal stale.
const staleMisses = 3

// scrapeResult is a label value; the list is closed.
type scrapeResult string

const (
	scrapeOK          scrapeResult = "ok"
	scrapeError       scrapeResult = "error"
	scrapeWrongEngine scrapeResult = "wrong_engine"
	scrapeNoLoadGauge scrapeResult = "no_load_gauge"
)

func scrapeResults() []scrapeResult {
	return []scrapeResult{scrapeOK, scrapeError, scrapeWrongEngine, scrapeNoLoadGauge}
}

// LoadStatus is what is known of the engine's load.
type LoadStatus struct {
	// At is the time of the last good scrape; zero before the first.
	At time.Time
	// Running and Waiting are the requests of all ranks at that time.
	Running, Waiting float64
	// Misses counts the failed scrapes since. Stale is true from the third on:
	// servers then no longer hear of load.
	Misses int
	Stale  bool
	// LastError is why the last scrape failed; empty if it did not.
	LastError string
}

// scrape reads and reports load until ctx ends. The first reading comes after
// one interval.
func (p *Publisher) scrape(ctx context.Context) {
	interval := p.config.StatsInterval
	meters := map[string]*engines.LoadMeter{}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		attempt, cancel := context.WithTimeout(ctx, askTimeout)
		load, err := p.scrapeOnce(attempt, meters)
		cancel()
		if ctx.Err() != nil {
			return
		}
		p.metrics.scraped(resultOf(err))
		p.noteLoad(load, err)
	}
}

// scrapeOnce reads the engine once and reports every replica whose load is on
// the page. It returns the total and the first reason for a missing one.
func (p *Publisher) scrapeOnce(ctx context.Context, meters map[string]*engines.LoadMeter) (engines.Load, error) {
	families, err := engines.Scrape(ctx, p.deps.HTTPClient, p.config.MetricsURL)
	if err != nil {
		return engines.Load{}, err
	}
	p.mu.Lock()
	replicas := slices.Clone(p.ranks)
	p.mu.Unlock()
	var total engines.Load
	var firstErr error
	for _, r := range replicas {
		current := r.report.Load()
		meter := meters[current.id]
		if meter == nil {
			options := p.config.Load
			options.Rank, options.HasRank = current.rank, current.id != p.config.Replica
			meter = engines.NewLoadMeter(p.config.Scheme, options)
			meters[current.id] = meter
		}
		load, err := meter.Read(families)
		if err != nil {
			if firstErr == nil {
				firstErr = err
			}
			continue
		}
		total.Running += load.Running
		total.Waiting += load.Waiting
		current.hub.PublishStats(p.replicaStats(current.id, load), p.deps.Now())
	}
	return total, firstErr
}

func (p *Publisher) replicaStats(id string, load engines.Load) *pb.ReplicaStats {
	return &pb.ReplicaStats{
		ReplicaId:        id,
		CacheMemoryBytes: load.CacheBytes,
		HitRate:          float32(load.HitRate),
		Pressure:         float32(load.Pressure),
		ClientVersion:    p.deps.Version,
		T2HitTokens:      load.T2HitTokens,
		T2QueryTokens:    load.T2QueryTokens,
	}
}

func resultOf(err error) scrapeResult {
	switch {
	case err == nil:
		return scrapeOK
	case errors.Is(err, engines.ErrWrongEngine):
		return scrapeWrongEngine
	case errors.Is(err, engines.ErrNoLoadGauge):
		return scrapeNoLoadGauge
	default:
		return scrapeError
	}
}

// noteLoad keeps the outcome of a scrape and logs when the signal is lost and
// when it is back.
func (p *Publisher) noteLoad(load engines.Load, err error) {
	p.mu.Lock()
	before := p.load.Stale
	if err == nil {
		p.load = LoadStatus{At: p.deps.Now(), Running: load.Running, Waiting: load.Waiting}
	} else {
		p.load.Misses++
		p.load.Stale = p.load.Misses >= staleMisses
		p.load.LastError = err.Error()
	}
	now := p.load
	p.mu.Unlock()
	switch {
	case now.Stale && !before:
		p.deps.Logger.Error("engine tells no load", "event", "load_signal_stale", "misses", now.Misses, "error", err)
	case before && !now.Stale:
		p.deps.Logger.Info("engine tells its load again", "event", "load_signal_recovered")
	}
}
