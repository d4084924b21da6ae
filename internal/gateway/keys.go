// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/routing"
	"github.com/inferencecache/inference-cache/internal/tokenize"
	"github.com/inferencecache/inference-cache/pkg/fingerprint"
)

// hint finds what the index knows about the request for the given eligible
// replicas. It never fails; a hint without a reason says why there is none.
func (x *exchange) hint(ctx context.Context, eligible []string) routing.Hint {
	g := x.gateway
	if g.tokenizer == nil || g.index == nil {
		return routing.Hint{Without: routing.BranchNone}
	}
	pools := g.pools(eligible)
	if len(pools) == 0 {
		g.metrics.lookups.WithLabelValues(reasonSkipped).Inc()
		return routing.Hint{Without: routing.BranchNoHint}
	}
	tokens, err := x.tokenize(ctx)
	if err != nil {
		g.metrics.lookups.WithLabelValues(reasonSkipped).Inc()
		return routing.Hint{Without: routing.BranchTokenizerUnavailable}
	}
	if len(pools) == 1 {
		return x.askPool(ctx, pools[0], tokens)
	}
	hints := make([]routing.Hint, len(pools))
	var calls sync.WaitGroup
	for i, p := range pools {
		calls.Go(func() { hints[i] = x.askPool(ctx, p, tokens) })
	}
	calls.Wait()
	return mergeHints(hints)
}

func (x *exchange) tokenize(ctx context.Context) ([]uint32, error) {
	m := x.gateway.metrics
	begin := time.Now()
	result, err := x.gateway.tokenizer.Tokenize(ctx, &x.prompt)
	source, outcome := string(result.Source), "ok"
	if err != nil {
		source, outcome = string(tokenize.SourceEngine), string(tokenize.ReasonFailed)
		var classified *tokenize.Error
		if errors.As(err, &classified) {
			outcome = string(classified.Reason)
		}
	}
	m.tokenize.WithLabelValues(source, outcome).Inc()
	m.tokenizeSeconds.WithLabelValues(source).Observe(time.Since(begin).Seconds())
	x.promptTokens, x.batch = len(result.Tokens), result.Batch
	return result.Tokens, err
}

func (x *exchange) askPool(ctx context.Context, p pool, tokens []uint32) routing.Hint {
	if len(tokens) < p.blockSize {
		x.gateway.metrics.lookups.WithLabelValues(reasonSkipped).Inc()
		return routing.Hint{Without: routing.BranchShortRequest, BlockSize: p.blockSize}
	}
	keys := make([]uint64, 0, len(tokens)/p.blockSize)
	keys = fingerprint.Append(keys, fingerprint.SaltParent(x.fields.salt), tokens, p.blockSize)
	return x.gateway.index.ask(ctx, p, x.model.adapter, keys)
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

// pools groups eligible replicas by the keys their blocks have. Replicas of a
// pool whose block size is unknown or in dispute are left out.
func (g *Gateway) pools(eligible []string) []pool {
	var pools []pool
	for _, id := range eligible {
		u := g.upstreams[id]
		p := pool{tenant: u.Tenant, model: g.catalog.IndexModel(id), scheme: u.Runtime}
		known := false
		for i := range pools {
			known = known || pools[i].tenant == p.tenant && pools[i].model == p.model && pools[i].scheme == p.scheme
		}
		if !known {
			pools = append(pools, p)
		}
	}
	kept := pools[:0]
	for _, p := range pools {
		if p.blockSize = g.blockSize(p); p.blockSize > 0 {
			kept = append(kept, p)
		}
	}
	return kept
}

// blockSize returns the block size all sources agree on, else 0.
func (g *Gateway) blockSize(p pool) int {
	size, agreed := g.options.BlockSize, true
	note := func(other int) {
		if other <= 0 {
			return
		}
		agreed = agreed && (size == 0 || size == other)
		size = other
	}
	for _, u := range g.upstreams {
		if u.Tenant == p.tenant && u.Runtime == p.scheme && g.catalog.IndexModel(u.ID) == p.model {
			note(int(u.blockSize.Load()))
		}
	}
	if g.options.BlockSizer != nil {
		if other, known := g.options.BlockSizer.BlockSize(p.tenant, p.model, p.scheme); known {
			note(other)
		}
	}
	if size > 0 && agreed {
		return size
	}
	finding := "block size is unknown; set it in the configuration to use cache hints"
	if !agreed {
		finding = "sources disagree about the block size; cache hints are off"
	}
	if g.findings.allow(finding+p.tenant+p.model+p.scheme, time.Now()) {
		g.logger.Warn(finding, "finding", "block_size", "tenant", p.tenant, "model", p.model, "hash_scheme", p.scheme)
	}
	return 0
}
