// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"context"
	"encoding/binary"
	"math"
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// updateWriter carries one CacheStateUpdate through validation to the index.
type updateWriter struct {
	contract *Contract
	update   *pb.CacheStateUpdate
	scope    index.Scope
	replica  string
	now      time.Time
	at       int64
	bounded  bool
	result   Result
}

func (w *updateWriter) drop(reason Reason) {
	w.contract.metrics.drop(reason)
	w.result.Dropped = true
}

func (w *updateWriter) run(ctx context.Context) Result {
	w.countMessage()
	reason := w.contract.rejects(ctx, Write{
		Tenant: w.scope.Tenant, Model: w.scope.Model, Scheme: w.scope.Scheme, Replica: w.replica,
	})
	if reason != "" {
		w.drop(reason)
		w.result.Unauthorized = reason == ReasonUnauthorized
		return w.result
	}
	at, oddity := clampTime(w.update.GetTimestampUs(), w.now.UnixMilli())
	if oddity != "" {
		w.contract.metrics.drop(oddity)
	}
	w.at = at
	w.contract.metrics.observeLag(w.update.GetTimestampUs(), w.now.UnixMicro())

	start := time.Now()
	if len(w.update.GetPrefixes()) > 0 {
		w.writePrefixes()
	}
	if stats := w.update.GetStats(); stats != nil {
		w.writeStats(stats)
	}
	w.contract.index.Heard(w.scope.Tenant, w.scope.Model, w.replica, w.now.UnixMilli())
	w.contract.metrics.apply.Observe(time.Since(start).Seconds())
	return w.result
}

func (w *updateWriter) countMessage() {
	prefixes, stats := len(w.update.GetPrefixes()) > 0, w.update.GetStats() != nil
	switch {
	case prefixes && stats:
		w.contract.metrics.update("both")
	case stats:
		w.contract.metrics.update("stats")
	default:
		w.contract.metrics.update("prefixes")
	}
}

func (w *updateWriter) writePrefixes() {
	if reason := w.unreachable(); reason != "" {
		w.drop(reason)
		return
	}
	builder := opBuilder{}
	room := w.contract.options.MaxKeys
	for _, entry := range w.update.GetPrefixes() {
		adapter := entry.GetAdapterId()
		if adapter == "" {
			adapter = w.update.GetAdapterId()
		}
		if reason := checkEntry(entry, adapter); reason != "" {
			w.drop(reason)
			continue
		}
		if room -= entryKeys(entry); room < 0 {
			w.drop(ReasonUpdateTooLarge)
			break
		}
		builder.entry(entry, adapter)
	}
	if reason := w.overLimit(builder.ops); reason != "" {
		w.drop(reason)
		return
	}
	w.apply(builder.ops)
}

// overLimit says which bound of the replica keeps the prefixes out, or "". One
// that is reached within an update counts from the next.
func (w *updateWriter) overLimit(ops []index.Op) Reason {
	if !w.bounded || len(ops) == 0 {
		return ""
	}
	limits := w.contract.options.Limits
	if limits.debt(w.scope.Tenant, w.replica) > 0 {
		return ReasonRateLimit
	}
	blocks := 0
	for i := range ops {
		blocks += ops[i].Keys.Len()
	}
	limits.charge(w.scope.Tenant, w.replica, blocks)
	if limits.full(w.scope, limits.held(w.scope, w.replica)+1) {
		return ReasonReplicaLimit
	}
	return ""
}

// unreachable says why no lookup could ever return the prefixes, or "".
func (w *updateWriter) unreachable() Reason {
	switch {
	case w.scope.Scheme == "":
		return ReasonNoHashScheme
	case w.scope.Tenant == "":
		return ReasonNoTenant
	case w.scope.Model == "":
		return ReasonNoModel
	}
	return checkID(w.scope.Scheme)
}

func (w *updateWriter) apply(ops []index.Op) {
	if len(ops) == 0 {
		return
	}
	applied := w.contract.index.Apply(&index.Batch{
		Scope: w.scope, Replica: w.replica, AtMillis: w.at, NowMillis: w.now.UnixMilli(), Ops: ops,
	})
	if w.contract.metrics.applied(applied) > 0 {
		w.result.Dropped = true
	}
	if applied.Stored+applied.Refreshed+applied.MovedTier+applied.Older > 0 {
		w.result.Applied = true
	}
}

func (w *updateWriter) writeStats(stats *pb.ReplicaStats) {
	w.contract.index.SetStats(w.scope.Tenant, w.scope.Model, w.replica, statsOf(stats, w.at))
	w.result.Applied = true
}

func isChain(entry *pb.PrefixEntry) bool {
	return len(entry.GetBlockHashes()) > 0 || len(entry.GetBlockTokenCounts()) > 0
}

// entryKeys is the number of keys a valid entry writes.
func entryKeys(entry *pb.PrefixEntry) int {
	if !isChain(entry) {
		return 1
	}
	n := len(entry.GetBlockHashes())
	if len(entry.GetPrefixHash()) > 0 {
		n++
	}
	return n
}

// checkEntry returns why an entry is dropped, or "".
func checkEntry(entry *pb.PrefixEntry, adapter string) Reason {
	if reason := checkID(adapter); reason != "" {
		return reason
	}
	chain := isChain(entry)
	if chain {
		if reason := checkChain(entry.GetBlockHashes(), entry.GetBlockTokenCounts()); reason != "" {
			return reason
		}
	}
	if !chain || len(entry.GetPrefixHash()) > 0 {
		if entry.GetTokenCount() < 0 {
			return ReasonCountNegative
		}
		return checkHash(entry.GetPrefixHash())
	}
	return ""
}

func checkChain(hashes [][]byte, counts []int32) Reason {
	if len(hashes) != len(counts) {
		return ReasonChainMismatch
	}
	sum := int64(0)
	for i, hash := range hashes {
		if reason := checkHash(hash); reason != "" {
			return reason
		}
		if counts[i] < 0 {
			return ReasonCountNegative
		}
		if sum += int64(counts[i]); sum > math.MaxInt32 {
			return ReasonCountOverflow
		}
	}
	return ""
}

// opBuilder turns valid entries into as few store ops as their order allows.
type opBuilder struct{ ops []index.Op }

func (b *opBuilder) entry(entry *pb.PrefixEntry, adapter string) {
	tier := tierOf(entry.GetTier())
	if isChain(entry) {
		sum := int32(0)
		for i, hash := range entry.GetBlockHashes() {
			sum += entry.GetBlockTokenCounts()[i]
			b.key(adapter, tier, hash, sum)
		}
		if len(entry.GetPrefixHash()) == 0 {
			return
		}
	}
	b.key(adapter, tier, entry.GetPrefixHash(), entry.GetTokenCount())
}

func (b *opBuilder) key(adapter string, tier index.Tier, hash []byte, tokens int32) {
	short := len(hash) == 8
	n := len(b.ops)
	if n == 0 || b.ops[n-1].Adapter != adapter || b.ops[n-1].Tier != tier || (b.ops[n-1].Keys.Long == nil) != short {
		b.ops = append(b.ops, index.Op{Kind: index.OpStore, Adapter: adapter, Tier: tier})
		n++
	}
	op := &b.ops[n-1]
	if short {
		op.Keys.Short = append(op.Keys.Short, binary.BigEndian.Uint64(hash))
	} else {
		op.Keys.Long = append(op.Keys.Long, hash)
	}
	op.Tokens.Counts = append(op.Tokens.Counts, tokens)
}
