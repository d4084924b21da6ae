// SPDX-License-Identifier: Apache-2.0

package lookup_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/lookup"
	"github.com/inferencecache/inference-cache/internal/policy"
)

var (
	testNow   = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	testScope = index.Scope{Tenant: "team", Model: "m", Scheme: "vllm"}
)

// fleet is an index under a stopped clock with a decider over it.
type fleet struct {
	index    *index.Index
	policies *policy.Store
	decider  *lookup.Decider
	now      time.Time
}

func newFleet(change ...func(*lookup.Options)) *fleet {
	return newFleetOver(index.Config{ReservedTenant: policy.ReservedTenant}, change...)
}

func newFleetOver(config index.Config, change ...func(*lookup.Options)) *fleet {
	f := &fleet{
		index:    index.New(config),
		policies: policy.NewStore(0),
		now:      testNow,
	}
	options := lookup.Options{Index: f.index, Policies: f.policies, Now: func() time.Time { return f.now }}
	for _, c := range change {
		c(&options)
	}
	f.decider = lookup.New(options)
	return f
}

// holding is what a replica says it holds: one key for each letter of Chain,
// each of Block tokens.
type holding struct {
	Scope   index.Scope
	Adapter string
	Chain   string
	Block   int32
	Age     time.Duration
	Tier    index.Tier
}

func (f *fleet) hold(replica string, h holding) *fleet {
	if h.Scope == (index.Scope{}) {
		h.Scope = testScope
	}
	if h.Tier == 0 {
		h.Tier = index.TierT1
	}
	f.index.Apply(&index.Batch{
		Scope: h.Scope, Replica: replica,
		AtMillis: f.now.Add(-h.Age).UnixMilli(), NowMillis: f.now.UnixMilli(),
		Ops: []index.Op{{
			Adapter: h.Adapter, Tier: h.Tier, Keys: index.Keys{Short: keys(h.Chain)},
			Tokens: index.Tokens{First: h.Block, Step: h.Block},
		}},
	})
	return f
}

func (f *fleet) drop(replica, chain string) *fleet {
	f.index.RemoveEverywhere(testScope.Tenant, testScope.Model, replica, "", true, index.Keys{Short: keys(chain)})
	return f
}

func (f *fleet) stats(replica string, hitRate, pressure float32, age time.Duration) *fleet {
	at := f.now.Add(-age).UnixMilli()
	f.index.SetStats(testScope.Tenant, testScope.Model, replica, index.Stats{
		HitRate: hitRate, Pressure: pressure, LivenessMillis: at, ReportedMillis: at,
	})
	return f
}

func (f *fleet) policy(declared policy.Declared) *fleet {
	declared.Namespace = testScope.Tenant
	_, view := f.policies.Replace(&policy.Snapshot{Policies: []policy.Declared{declared}})
	f.index.SetRules(view.Rules())
	return f
}

func (f *fleet) extend(extensions policy.Extensions) *fleet {
	f.policies.ReplaceExtensions(&policy.ExtensionSet{
		Policies: []policy.NamespaceExtensions{{Namespace: testScope.Tenant, Extensions: extensions}},
	})
	return f
}

func (f *fleet) ask(request lookup.Request) *lookup.Decision {
	return f.askContext(context.Background(), request)
}

func (f *fleet) askContext(ctx context.Context, request lookup.Request) *lookup.Decision {
	var decision lookup.Decision
	f.decider.Decide(ctx, &request, &decision)
	return &decision
}

// keys numbers the letters of a chain; every key is unlike its neighbours.
func keys(chain string) []uint64 {
	var numbers []uint64
	for _, letter := range []byte(chain) {
		numbers = append(numbers, uint64(letter)<<32|7)
	}
	return numbers
}

func hash(letter byte) []byte {
	return binary.BigEndian.AppendUint64(nil, keys(string(letter))[0])
}

// chain asks for a prompt of one block of the given size for each letter.
func chain(letters string, block int32) lookup.Request {
	request := in(testScope)
	for i := range len(letters) {
		request.BlockHashes = append(request.BlockHashes, hash(letters[i]))
		request.BlockTokenCounts = append(request.BlockTokenCounts, block)
	}
	return request
}

// exact asks for one prefix.
func exact(letter byte, tokens int32) lookup.Request {
	request := in(testScope)
	request.PrefixHash, request.PrefixTokens = hash(letter), tokens
	return request
}

func in(scope index.Scope) lookup.Request {
	return lookup.Request{Tenant: scope.Tenant, Model: scope.Model, Scheme: scope.Scheme}
}

func with(request lookup.Request, change func(*lookup.Request)) lookup.Request {
	change(&request)
	return request
}

func tight(request lookup.Request, ttftMillis int32) lookup.Request {
	request.TTFTMillis = ttftMillis
	return request
}

// brief renders scores as "replica score/tokens", best first.
func brief(scores []lookup.Score) string {
	parts := make([]string, len(scores))
	for i, s := range scores {
		parts[i] = fmt.Sprintf("%s %s/%d", s.Replica, shortest(s.Score), s.MatchedTokens)
	}
	return strings.Join(parts, ", ")
}

func shortest(v float32) string { return strconv.FormatFloat(float64(v), 'g', -1, 32) }

func names(scores []lookup.Score) string {
	parts := make([]string, len(scores))
	for i, s := range scores {
		parts[i] = s.Replica
	}
	return strings.Join(parts, " ")
}

func ptr[T any](v T) *T { return &v }
