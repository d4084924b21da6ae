// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"time"

	"github.com/inferencecache/inference-cache/internal/finding"
	"github.com/inferencecache/inference-cache/internal/routing"
)

// poolTable says which replicas share prefix keys. It never changes.
type poolTable struct {
	// byReplica holds pools without block size.
	byReplica map[string]pool
	sizes     map[pool]agreement
}

// agreement is what several sources say about a block size; 0 is unknown.
type agreement struct {
	size     int
	disputed bool
}

// and adds a source; a size of 0 says nothing.
func (a agreement) and(size int) agreement {
	if size <= 0 {
		return a
	}
	a.disputed = a.disputed || a.size != 0 && a.size != size
	a.size = size
	return a
}

// rebuildPools follows a change of models or block sizes.
func (g *Gateway) rebuildPools() {
	g.rebuilding.Lock()
	defer g.rebuilding.Unlock()
	table := &poolTable{byReplica: map[string]pool{}, sizes: map[pool]agreement{}}
	for id, u := range g.roster.all() {
		p := pool{tenant: u.Tenant, model: g.catalog.IndexModel(id), scheme: u.Runtime}
		if p.model == "" {
			continue
		}
		table.byReplica[id] = p
		table.sizes[p] = table.sizes[p].and(int(u.blockSize.Load()))
	}
	g.pools.Store(table)
}

// poolsOf returns the pools of eligible replicas. Those whose block size is
// unknown or disputed are left out.
func (g *Gateway) poolsOf(eligible []string) []pool {
	table := g.pools.Load()
	var pools []pool
	seen := pool{}
	for _, id := range eligible {
		p, known := table.byReplica[id]
		if !known || p == seen || containsKeys(pools, p) {
			continue
		}
		seen = p
		if p.blockSize = g.blockSize(table, p); p.blockSize > 0 {
			pools = append(pools, p)
		}
	}
	return pools
}

func containsKeys(pools []pool, p pool) bool {
	for _, other := range pools {
		other.blockSize = 0
		if other == p {
			return true
		}
	}
	return false
}

// blockSize returns the block size all sources agree on, else 0.
func (g *Gateway) blockSize(table *poolTable, p pool) int {
	agreed := table.sizes[p].and(g.options.BlockSize)
	if g.options.BlockSizer != nil {
		if size, known := g.options.BlockSizer.BlockSize(p.tenant, p.model, p.scheme); known {
			agreed = agreed.and(size)
		}
	}
	problem, code := "", finding.BlockSizeMismatch
	switch {
	case agreed.disputed:
		problem = "sources disagree about the block size; cache hints are off"
	case agreed.size == 0:
		problem, code = "block size is unknown; set it in the configuration to use cache hints", finding.BlockSizeUnknown
	default:
		g.blockSizeAgreed(p)
		return agreed.size
	}
	now := time.Now()
	if g.findings.allow(problem+p.tenant+p.model+p.scheme, now) {
		g.found.Raise(finding.Finding{
			Code: code, Where: p.identity().name(), What: problem,
			Action: "compare --block-size, the engines' block_size in /debug/state and the events; all replicas of a model need the same",
		}, now)
		g.sizeFindings.Store(true)
		g.logger.Warn(problem, "finding", code, "tenant", p.tenant, "model", p.model, "hash_scheme", p.scheme)
	}
	return 0
}

// blockSizeAgreed closes findings about a pool's block size.
func (g *Gateway) blockSizeAgreed(p pool) {
	if g.sizeFindings.Load() {
		g.found.Clear(finding.BlockSizeMismatch, p.identity().name())
		g.found.Clear(finding.BlockSizeUnknown, p.identity().name())
	}
}

// mergeHints joins the answers of several pools: evidence beats its absence.
func mergeHints(hints []routing.Hint) routing.Hint {
	merged := hints[0]
	for _, hint := range hints[1:] {
		switch {
		case hint.Reason == routing.ReasonPrefixMatch && merged.Reason == routing.ReasonPrefixMatch:
			merged.Scores = append(merged.Scores, hint.Scores...)
		case hint.Reason == routing.ReasonPrefixMatch,
			len(hint.Scores) > 0 && len(merged.Scores) == 0,
			hint.Reason != "" && merged.Reason == "":
			merged = hint
		}
	}
	return merged
}
