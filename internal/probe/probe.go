// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/lookup"
	"github.com/inferencecache/inference-cache/internal/policy"
)

// blockTokens is the length of the block a probe puts in.
const blockTokens = 16

// tier2Timeout bounds what a probe waits for tier 2.
const tier2Timeout = 2 * time.Second

// Request says what to probe.
type Request struct {
	// Backend is any name that is not empty; probes of equal backend and
	// model run one after the other.
	Backend string
	Model   string
	Scheme  string
	// BackendType decides about tier 2: "LMCache" and "" have one.
	BackendType string
}

// Stage is one step of a probe.
type Stage string

// Stages, in order.
const (
	// Ingest puts a block into the index and finds it there.
	Ingest Stage = "ingest"
	// Routing decides on a request for the block.
	Routing Stage = "routing"
	// Tier2 puts a payload into tier 2 and gets it back.
	Tier2 Stage = "t2"
)

// Outcome is how a stage ended.
type Outcome string

// Outcomes. A stage is skipped when an earlier one failed or when there is
// nothing to test.
const (
	OK      Outcome = "ok"
	Failed  Outcome = "failed"
	Skipped Outcome = "skipped"
)

// Problem says why a stage failed.
type Problem struct {
	Stage   Stage
	Message string
}

// Result is what a probe found.
type Result struct {
	Ingest, Routing, Tier2 Outcome
	Problems               []Problem
}

// Block is what a probe puts in.
type Block struct {
	Scope   index.Scope
	Replica string
	Hash    []byte
	Tokens  int32
}

// Plane is the part of a server a probe goes through.
type Plane interface {
	// Store makes the replica hold the block, and report itself as hit by
	// every request.
	Store(Block)
	// Holders returns the replicas that hold the block.
	Holders(Block) []string
	// Decide answers a request for the block from what the index holds.
	Decide(context.Context, Block) (lookup.Reason, []string)
	// Clear makes the replica hold nothing.
	Clear(Block)
}

// Tier2Store keeps payloads in the second tier of a backend.
type Tier2Store interface {
	Put(ctx context.Context, backend string, key, payload []byte) error
	Get(ctx context.Context, backend string, key []byte) ([]byte, error)
}

// Hash returns the key of a probe's block.
func Hash(scheme, model, backend string) []byte {
	text := []byte(policy.ReservedTenant + "/v1\n")
	for _, part := range []string{scheme, model, backend} {
		text = binary.BigEndian.AppendUint32(text, uint32(len(part)))
		text = append(text, part...)
	}
	sum := sha256.Sum256(text)
	return sum[:]
}

// payload is what a probe stores in tier 2.
func payload(hash []byte) []byte { return append([]byte("probe-payload-v1\n"), hash...) }

func (r Request) block() Block {
	return Block{
		Scope:   index.Scope{Tenant: policy.ReservedTenant, Model: r.Model, Scheme: r.Scheme},
		Replica: "__probe-" + r.Backend,
		Hash:    Hash(r.Scheme, r.Model, r.Backend),
		Tokens:  blockTokens,
	}
}

func (r Request) hasTier2() bool { return r.BackendType == "" || r.BackendType == "LMCache" }

// run is one probe under way.
type run struct {
	plane   Plane
	tier2   Tier2Store
	request Request
	block   Block
	result  Result
}

// stages runs the stages in order, and clears what they left behind.
func (r *run) stages(ctx context.Context, panicked func(any)) {
	r.result = Result{Ingest: Skipped, Routing: Skipped, Tier2: Skipped}
	defer r.guard(Ingest, panicked, func() error {
		r.plane.Clear(r.block)
		return nil
	})
	if r.result.Ingest = r.guard(Ingest, panicked, r.ingest); r.result.Ingest != OK {
		return
	}
	if r.result.Routing = r.guard(Routing, panicked, func() error { return r.routing(ctx) }); r.result.Routing != OK {
		return
	}
	if r.tier2 != nil && r.request.hasTier2() {
		r.result.Tier2 = r.guard(Tier2, panicked, func() error { return r.roundTrip(ctx) })
	}
}

// guard runs one stage. A panic fails it like an error.
func (r *run) guard(stage Stage, panicked func(any), do func() error) (outcome Outcome) {
	defer func() {
		if cause := recover(); cause != nil {
			panicked(cause)
			r.result.Problems = append(r.result.Problems, Problem{stage, "internal error"})
			outcome = Failed
		}
	}()
	if err := do(); err != nil {
		r.result.Problems = append(r.result.Problems, Problem{stage, err.Error()})
		return Failed
	}
	return OK
}

func (r *run) ingest() error {
	r.plane.Store(r.block)
	if !slices.Contains(r.plane.Holders(r.block), r.block.Replica) {
		return errors.New("the block was put in and is not found for its replica")
	}
	return nil
}

func (r *run) routing(ctx context.Context) error {
	reason, replicas := r.plane.Decide(ctx, r.block)
	switch {
	case reason != lookup.PrefixMatch:
		return fmt.Errorf("the decision is %s, expected %s", reason, lookup.PrefixMatch)
	case !slices.Contains(replicas, r.block.Replica):
		return fmt.Errorf("the decision is %s without the replica that holds the block", reason)
	}
	return nil
}

func (r *run) roundTrip(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, tier2Timeout)
	defer cancel()
	sent := payload(r.block.Hash)
	if err := r.tier2.Put(ctx, r.request.Backend, r.block.Hash, sent); err != nil {
		return fmt.Errorf("put failed: %w", err)
	}
	got, err := r.tier2.Get(ctx, r.request.Backend, r.block.Hash)
	switch {
	case err != nil:
		return fmt.Errorf("get failed: %w", err)
	case !slices.Equal(got, sent):
		return errors.New("get failed: another payload came back")
	}
	return nil
}
