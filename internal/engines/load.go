// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"errors"
	"math"
	"slices"
)

// Reasons for a scrape that tells nothing about load.
var (
	// ErrWrongEngine: none of the metrics of this runtime is there.
	ErrWrongEngine = errors.New("page has none of the engine's metrics")
	// ErrNoLoadGauge: the number of running or of waiting requests is missing
	// or no number.
	ErrNoLoadGauge = errors.New("no usable gauge of running and waiting requests")
)

// LoadOptions tune a LoadMeter. The zero value works.
type LoadOptions struct {
	// Ceiling is the number of running and waiting requests that is a
	// pressure of 1. Default 256; a negative one makes pressure always 0.
	Ceiling float64
	// CacheBytes is the size of the engine's KV cache, default 0: unknown.
	CacheBytes int64
	// Model leaves out series of other model_name, default none.
	Model string
	// HasRank leaves out series of other data-parallel ranks than Rank.
	HasRank bool
	Rank    int
	// HitRateFromTokens computes the hit rate of SGLang from its token
	// counters instead of its gauge, default false.
	HitRateFromTokens bool
}

// Load is the load of an engine, or of one rank of it, at one scrape.
type Load struct {
	// Running and Waiting count requests.
	Running, Waiting float64
	// Pressure, Usage (of KV blocks) and HitRate (since the scrape before)
	// lie between 0 and 1.
	Pressure, Usage, HitRate float64
	// CacheBytes is the part of the KV cache in use; 0 if its size is unknown.
	CacheBytes int64
	// T2HitTokens and T2QueryTokens are cumulative.
	T2HitTokens, T2QueryTokens int64
}

// LoadMeter turns scrapes into loads. It remembers the counters of the scrape
// before, and nothing else. It is not safe for concurrent use.
type LoadMeter struct {
	profile loadProfile
	opts    LoadOptions
	base    baseline
}

// baseline is the newest pair of counters seen.
type baseline struct {
	set         bool
	part, whole float64
}

// NewLoadMeter returns a meter for a runtime; see ProfileOf for unknown ones.
func NewLoadMeter(runtime string, opts LoadOptions) *LoadMeter {
	if opts.Ceiling == 0 {
		opts.Ceiling = 256
	}
	p, _ := ProfileOf(runtime)
	return &LoadMeter{profile: p.load, opts: opts}
}

// Read computes the load of one scrape. The error is ErrWrongEngine or
// ErrNoLoadGauge.
func (m *LoadMeter) Read(f Families) (Load, error) {
	p := m.profile
	if !slices.ContainsFunc(p.families(), func(name string) bool { return f[name] != nil }) {
		return Load{}, ErrWrongEngine
	}
	sel := selection{model: m.opts.Model, skipPriority: p.skipPriority}
	if m.opts.HasRank {
		sel.rankLabel, sel.rank = p.rankLabel, m.opts.Rank
	}
	running, waiting := f.values(p.running, sel), f.values(p.waiting, sel)
	if len(running) == 0 || len(waiting) == 0 {
		return Load{}, ErrNoLoadGauge
	}
	sel.skipPriority = false
	load := Load{
		Running: max(total(running), 0),
		Waiting: max(total(waiting), 0),
		Usage:   unit(p.readUsage(f, sel)),
		HitRate: m.readHitRate(f, sel),
	}
	if m.opts.Ceiling > 0 {
		load.Pressure = unit((load.Running + load.Waiting) / m.opts.Ceiling)
	}
	load.CacheBytes = max(m.opts.CacheBytes, 0)
	if load.Usage < 1 {
		load.CacheBytes = int64(load.Usage * float64(load.CacheBytes))
	}
	load.T2HitTokens = count(f, p.external.part, sel)
	load.T2QueryTokens = count(f, p.external.whole, sel)
	return load, nil
}

// readUsage takes the first alternative that is present.
func (p loadProfile) readUsage(f Families, sel selection) float64 {
	for _, alternative := range p.usage {
		var values []float64
		for _, name := range alternative {
			values = append(values, f.values(name, sel)...)
		}
		if len(values) > 0 {
			return slices.Max(values)
		}
	}
	return 0
}

func (m *LoadMeter) readHitRate(f Families, sel selection) float64 {
	if m.profile.hitRate != "" && !m.opts.HitRateFromTokens {
		values := f.values(m.profile.hitRate, sel)
		if len(values) == 0 {
			return 0
		}
		return unit(slices.Max(values))
	}
	pairs := m.profile.hits
	if len(pairs) == 0 {
		pairs = []ratioCounters{m.profile.cachedTokens}
	}
	for _, pair := range pairs {
		if part, whole, ok := pair.read(f, sel); ok {
			return m.base.advance(part, whole)
		}
	}
	// A counter that is missing once keeps the baseline.
	return 0
}

func (c ratioCounters) read(f Families, sel selection) (part, whole float64, ok bool) {
	part, hasPart := f.counter(c.part, sel)
	if c.missed != "" {
		missed, hasMissed := f.counter(c.missed, sel)
		return part, part + missed, hasPart && hasMissed
	}
	whole, hasWhole := f.counter(c.whole, sel)
	return part, whole, hasPart && hasWhole
}

// advance returns the ratio of what both counters gained: 0 on first sight,
// after a reset and without new queries.
func (b *baseline) advance(part, whole float64) float64 {
	before := *b
	*b = baseline{set: true, part: part, whole: whole}
	gained := whole - before.whole
	if !before.set || part < before.part || gained <= 0 {
		return 0
	}
	return unit((part - before.part) / gained)
}

// families lists every name the profile may look at.
func (p loadProfile) families() []string {
	names := []string{p.running, p.waiting, p.hitRate}
	for _, alternative := range p.usage {
		names = append(names, alternative...)
	}
	for _, c := range slices.Concat(p.hits, []ratioCounters{p.external, p.cachedTokens}) {
		for _, name := range []string{c.part, c.whole, c.missed} {
			if name != "" {
				names = append(names, name, name+"_total")
			}
		}
	}
	return names
}

func count(f Families, name string, sel selection) int64 {
	if name == "" {
		return 0
	}
	sum, _ := f.counter(name, sel)
	return int64(min(max(sum, 0), math.MaxInt64/2))
}

func unit(v float64) float64 { return min(max(v, 0), 1) }
