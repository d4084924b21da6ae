// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"

	"github.com/inferencecache/inference-cache/internal/index"
)

// scope is where all measurements take place.
var scope = index.Scope{Tenant: "bench", Model: "model", Scheme: "vllm"}

// step is one request of a corpus ready to be played: its lookup, then the
// changes at the replica that served it.
type step struct {
	lookup index.Keys
	batch  index.Batch
	events int // blocks stored and removed
}

// steps prepares a corpus, so that playing it costs nothing but the index.
func (c *Corpus) steps(startMillis int64) []step {
	names := ReplicaNames(c.Header.Replicas)
	var out []step
	for _, op := range c.Ops {
		keys := make([]uint64, len(op.Blocks))
		for i, b := range op.Blocks {
			keys[i] = Key(b)
		}
		if op.Kind == Lookup {
			out = append(out, step{lookup: index.Keys{Short: keys}})
			continue
		}
		if len(out) == 0 {
			out = append(out, step{})
		}
		s := &out[len(out)-1]
		at := startMillis + op.AtMillis
		s.batch.Scope, s.batch.Replica, s.batch.AtMillis, s.batch.NowMillis = scope, names[op.Replica], at, at
		change := index.Op{Kind: index.OpRemove, Keys: index.Keys{Short: keys}}
		if op.Kind == Store {
			size := int32(c.Header.BlockSize)
			change.Kind, change.Tier = index.OpStore, index.TierT1
			change.Tokens = index.Tokens{First: (op.First + 1) * size, Step: size}
		}
		s.batch.Ops = append(s.batch.Ops, change)
		s.events += len(keys)
	}
	return out
}

// ReplicaNames names n replicas.
func ReplicaNames(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("replica-%05d", i)
	}
	return out
}
