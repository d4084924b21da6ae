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
	pools := g.poolsOf(eligible)
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
	x.noteChain.Do(func() { x.chain = x.tokenChain(keys, p.blockSize) })
	return x.gateway.index.ask(ctx, p, x.model.adapter, x.steering.ttftMillis, keys)
}
