// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"sync"

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
	pools := g.poolsOf(eligible)
	without := routing.BranchNoHint
	if len(pools) > 0 {
		if pools = g.parity.trusted(pools); len(pools) == 0 {
			without = routing.BranchParityFailed
		}
	}
	if len(pools) == 0 {
		g.metrics.lookups.WithLabelValues(reasonSkipped).Inc()
		return routing.Hint{Without: without}
	}
	x.prompt.Runtime = pools[0].scheme
	prompt, err := x.tokenize(ctx)
	if err != nil {
		g.metrics.lookups.WithLabelValues(reasonSkipped).Inc()
		return routing.Hint{Without: routing.BranchTokenizerUnavailable}
	}
	if len(pools) == 1 {
		return x.askPool(ctx, pools[0], &prompt)
	}
	hints := make([]routing.Hint, len(pools))
	var calls sync.WaitGroup
	for i, p := range pools {
		calls.Go(func() { hints[i] = x.askPool(ctx, p, &prompt) })
	}
	calls.Wait()
	return mergeHints(hints)
}

func (x *exchange) askPool(ctx context.Context, p pool, prompt *tokenize.Result) routing.Hint {
	if len(prompt.Tokens) < p.blockSize {
		x.gateway.metrics.lookups.WithLabelValues(reasonSkipped).Inc()
		return routing.Hint{Without: routing.BranchShortRequest, BlockSize: p.blockSize}
	}
	keys := make([]uint64, 0, len(prompt.Tokens)/p.blockSize)
	keys = prompt.AppendKeys(keys, fingerprint.SaltParent(x.fields.salt), p.blockSize)
	x.noteChain.Do(func() { x.chain = x.tokenChain(keys, p.blockSize) })
	return x.gateway.index.ask(ctx, p, x.model.adapter, x.steering.ttftMillis, keys)
}
