// SPDX-License-Identifier: Apache-2.0

package lookup_test

import (
	"context"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/lookup"
	"github.com/inferencecache/inference-cache/internal/policy"
)

// busy is a fleet in which every kind of finding is possible: w is hot and
// holds the chain abcd, v holds something else.
func busy() *fleet {
	return newFleet().
		hold("w", holding{Chain: "abcd", Block: 64}).stats("w", .8, 0, 0).
		hold("v", holding{Chain: "x", Block: 64}).stats("v", .01, 0, 0)
}

// TestGates walks down the order of the gates: each row meets the condition
// of its gate and of gates below, and the earlier one decides.
func TestGates(t *testing.T) {
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	live := context.Background()

	short := policy.Declared{MinimumPrefixTokens: 1000, AffinityRouting: ptr(false), MinimumMatchedTokens: 64}
	shortChain := short
	shortChain.RequireChain = ptr(true)
	demanding := policy.Declared{RequireChain: ptr(true)}
	patient := policy.Declared{MinimumPrefixTokens: 1000}
	strict := policy.Declared{EnableTenantHot: ptr(false), MinimumPrefixTokens: 1000}
	noAffinity := policy.Declared{AffinityRouting: ptr(false), MinimumMatchedTokens: 300}
	mismatched := with(chain("abcd", 64), func(r *lookup.Request) { r.BlockTokenCounts = r.BlockTokenCounts[1:] })

	type answer struct {
		reason lookup.Reason
		scores string
		gates  []lookup.Gate
		echo   bool
	}
	for name, tc := range map[string]struct {
		ctx     context.Context
		policy  policy.Declared
		request lookup.Request
		want    answer
	}{
		"0 reserved tenant before deadline": {
			cancelled, short, with(chain("abcd", 64), func(r *lookup.Request) { r.Tenant = policy.ReservedTenant }),
			answer{reason: lookup.NoHint},
		},
		"3 short prompt before deadline": {
			cancelled, short, chain("abcd", 64),
			answer{reason: lookup.NoHint, gates: []lookup.Gate{lookup.GateMinPrefix}},
		},
		"3 short exact prompt before deadline": {
			cancelled, short, exact('d', 256),
			answer{reason: lookup.NoHint, gates: []lookup.Gate{lookup.GateMinPrefix}},
		},
		"3 a nameless short prompt too": {
			cancelled, short, with(chain("abcd", 64), func(r *lookup.Request) { r.Model = "" }),
			answer{reason: lookup.NoHint, gates: []lookup.Gate{lookup.GateMinPrefix}},
		},
		"3 short prompt with the chain it must have": {
			cancelled, shortChain, chain("abcd", 64),
			answer{reason: lookup.NoHint, gates: []lookup.Gate{lookup.GateMinPrefix}},
		},
		"3 a missing chain lets the deadline decide": {
			cancelled, shortChain, exact('d', 256), answer{reason: lookup.Timeout},
		},
		"3 malformed input lets the deadline decide": {
			cancelled, short, mismatched, answer{reason: lookup.Timeout},
		},
		"3 text lets the deadline decide": {
			cancelled, short, with(in(testScope), func(r *lookup.Request) { r.Prompt = "hi" }),
			answer{reason: lookup.Timeout},
		},
		"3 long enough lets the deadline decide": {
			cancelled, short, chain("abcd", 250), answer{reason: lookup.Timeout},
		},
		"3 short token ids before deadline": {
			cancelled, short, with(in(testScope), func(r *lookup.Request) { r.TokenIDs = make([]uint32, 999) }),
			answer{reason: lookup.NoHint, gates: []lookup.Gate{lookup.GateMinPrefix}},
		},
		"3 with affinity a short prompt is no reason": {
			cancelled, patient, chain("abcd", 64), answer{reason: lookup.Timeout},
		},
		"4 deadline before required chain": {
			cancelled, demanding, exact('d', 256), answer{reason: lookup.Timeout},
		},
		"5 required chain before malformed": {
			live, demanding, mismatched, answer{reason: lookup.PolicyRequiresChain},
		},
		"5 required chain before a prefix match": {
			live, demanding, exact('d', 256), answer{reason: lookup.PolicyRequiresChain},
		},
		"5 token ids do not satisfy it": {
			live, demanding, with(in(testScope), func(r *lookup.Request) { r.TokenIDs = make([]uint32, 999) }),
			answer{reason: lookup.PolicyRequiresChain},
		},
		"5 chain satisfies it": {
			live, demanding, chain("abcd", 64), answer{reason: lookup.PrefixMatch, scores: "w", echo: true},
		},
		"5 a hand-made policy asks for a chain and ignores it": {
			live, policy.Declared{RequireChain: ptr(true), EnableChainMatching: ptr(false)},
			with(chain("abcd", 64), func(r *lookup.Request) { r.PrefixHash = hash('d') }),
			answer{reason: lookup.PrefixMatch, scores: "w", echo: true},
		},
		"7 malformed before a diagnosis": {
			live, policy.Declared{}, with(mismatched, func(r *lookup.Request) { r.Tenant = "nobody" }),
			answer{reason: lookup.NoHint},
		},
		"7 malformed gets no affinity": {
			live, policy.Declared{}, mismatched, answer{reason: lookup.NoHint},
		},
		"9 prefix match before tenant hot": {
			live, policy.Declared{}, exact('d', 256), answer{reason: lookup.PrefixMatch, scores: "w", echo: true},
		},
		"9 tenant hot before affinity": {
			live, policy.Declared{}, exact('q', 64), answer{reason: lookup.TenantHot, scores: "w", echo: true},
		},
		"9 a chain gets no tenant hot": {
			live, policy.Declared{}, chain("qr", 64), answer{reason: lookup.AffinityHint, scores: "w", echo: true},
		},
		"9 a nameless request finds nothing": {
			live, policy.Declared{}, with(exact('d', 256), func(r *lookup.Request) { r.Scheme = "" }),
			answer{reason: lookup.NoHint, echo: true},
		},
		"9 diagnosis before affinity": {
			live, policy.Declared{}, with(exact('d', 256), func(r *lookup.Request) { r.Scheme = "sglang" }),
			answer{reason: lookup.UnknownHashScheme, echo: true},
		},
		"9 diagnosis although the prompt is short": {
			live, patient, with(exact('d', 256), func(r *lookup.Request) { r.Model = "other" }),
			answer{reason: lookup.UnknownModel, echo: true},
		},
		"11 tenant hot switched off is final": {
			live, policy.Declared{EnableTenantHot: ptr(false)}, exact('q', 64),
			answer{reason: lookup.NoHint, echo: true, gates: []lookup.Gate{lookup.GateTenantHotDisabled}},
		},
		"11 tenant hot switched off before a short prompt": {
			live, strict, exact('q', 64),
			answer{reason: lookup.NoHint, echo: true, gates: []lookup.Gate{lookup.GateTenantHotDisabled}},
		},
		"12 a short prompt's match becomes affinity": {
			live, patient, chain("abcd", 64),
			answer{reason: lookup.AffinityHint, scores: "v", echo: true, gates: []lookup.Gate{lookup.GateMinPrefix}},
		},
		"12 a short prompt's hot replica becomes affinity": {
			live, patient, exact('q', 64),
			answer{reason: lookup.AffinityHint, scores: "v", echo: true, gates: []lookup.Gate{lookup.GateMinPrefix}},
		},
		"13 too little matched becomes affinity": {
			live, policy.Declared{MinimumMatchedTokens: 300}, chain("abcd", 64),
			answer{reason: lookup.AffinityHint, scores: "v", echo: true, gates: []lookup.Gate{lookup.GateMatchedFloor}},
		},
		"13 without affinity too little matched is no hint": {
			live, noAffinity, chain("abcd", 64),
			answer{reason: lookup.NoHint, echo: true, gates: []lookup.Gate{lookup.GateMatchedFloor}},
		},
		"13 before 14": {
			live, policy.Declared{MinimumMatchedTokens: 300, RoutingFloorScore: ptr(float32(1e6))}, chain("abcd", 64),
			answer{reason: lookup.AffinityHint, scores: "v", echo: true, gates: []lookup.Gate{lookup.GateMatchedFloor}},
		},
		"14 a low score becomes affinity": {
			live, policy.Declared{RoutingFloorScore: ptr(float32(1e6))}, chain("abcd", 64),
			answer{reason: lookup.AffinityHint, scores: "v", echo: true, gates: []lookup.Gate{lookup.GateScoreFloor}},
		},
		"14 the floor itself passes": {
			live, policy.Declared{RoutingFloorScore: ptr(float32(128))}, chain("abcd", 64),
			answer{reason: lookup.PrefixMatch, scores: "w", echo: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := busy().policy(tc.policy).askContext(tc.ctx, tc.request)
			if got.Reason != tc.want.reason || names(got.Scores) != tc.want.scores {
				t.Errorf("answer %s %q, want %s %q", got.Reason, names(got.Scores), tc.want.reason, tc.want.scores)
			}
			var gates lookup.Gates
			for _, gate := range tc.want.gates {
				gates |= 1 << gate
			}
			if got.Gates != gates {
				t.Errorf("gates %b, want %v", got.Gates, tc.want.gates)
			}
			if got.Asked && !tc.want.echo {
				t.Errorf("the index was asked")
			}
		})
	}
}

// TestEcho: the adapter is echoed once the index has been asked in time.
func TestEcho(t *testing.T) {
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	withAdapter := func(r lookup.Request) lookup.Request { r.Adapter = "lora"; return r }
	for name, tc := range map[string]struct {
		ctx     context.Context
		request lookup.Request
		want    string
	}{
		"an answer from the index":   {context.Background(), withAdapter(chain("abcd", 64)), "lora"},
		"a nameless request":         {context.Background(), withAdapter(with(chain("a", 64), func(r *lookup.Request) { r.Model = "" })), "lora"},
		"a timeout":                  {cancelled, withAdapter(chain("abcd", 64)), ""},
		"malformed input":            {context.Background(), withAdapter(with(chain("a", 64), func(r *lookup.Request) { r.BlockTokenCounts = nil })), ""},
		"the reserved tenant":        {context.Background(), withAdapter(with(chain("a", 64), func(r *lookup.Request) { r.Tenant = policy.ReservedTenant })), ""},
		"a tenant nobody heard of":   {context.Background(), withAdapter(with(chain("a", 64), func(r *lookup.Request) { r.Tenant = "nobody" })), "lora"},
		"the base model has no name": {context.Background(), chain("abcd", 64), ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := busy().askContext(tc.ctx, tc.request).Adapter; got != tc.want {
				t.Errorf("adapter %q, want %q", got, tc.want)
			}
		})
	}
}

// TestDeadlineInside moves the clock past the budget at every reading in turn:
// the answer is whole or a timeout, never a mixture.
func TestDeadlineInside(t *testing.T) {
	var late int
	for jumpAt := range 40 {
		readings := 0
		f := newFleet(func(o *lookup.Options) {
			o.Now = func() time.Time {
				if readings++; readings > jumpAt {
					return testNow.Add(time.Second)
				}
				return testNow
			}
		})
		f.hold("w", holding{Chain: "abcd", Block: 64}).policy(policy.Declared{LookupTimeoutMillis: 500})
		got := f.ask(chain("abcd", 64))
		switch got.Reason {
		case lookup.PrefixMatch:
			if names(got.Scores) != "w" {
				t.Errorf("jump at reading %d: scores %q", jumpAt, names(got.Scores))
			}
		case lookup.Timeout:
			if len(got.Scores) > 0 {
				t.Errorf("jump at reading %d: a timeout with scores", jumpAt)
			}
			if got.Asked {
				late++
			}
		default:
			t.Errorf("jump at reading %d: %s", jumpAt, got.Reason)
		}
	}
	if late == 0 {
		t.Error("no timeout after the index was asked")
	}
}

func TestDiagnosis(t *testing.T) {
	grace := func(o *lookup.Options) { o.DiagnosticsGrace = time.Minute }
	adapters := func(o *lookup.Options) { o.DiagnoseAdapter = true }
	held := func(change ...func(*lookup.Options)) *fleet {
		return newFleet(change...).hold("w", holding{Chain: "abcd", Block: 64})
	}
	ask := func(tenant, model, scheme, adapter string) lookup.Request {
		request := chain("xy", 64)
		request.Tenant, request.Model, request.Scheme, request.Adapter = tenant, model, scheme, adapter
		return request
	}
	for name, tc := range map[string]struct {
		fleet   *fleet
		request lookup.Request
		want    lookup.Reason
	}{
		"an empty index explains nothing":         {newFleet(), ask("t", "m", "s", ""), lookup.NoHint},
		"unknown tenant":                          {held(), ask("t", "x", "x", ""), lookup.UnknownTenant},
		"unknown model":                           {held(), ask("team", "x", "x", ""), lookup.UnknownModel},
		"unknown scheme":                          {held(), ask("team", "m", "x", ""), lookup.UnknownHashScheme},
		"known scope":                             {held(), ask("team", "m", "vllm", ""), lookup.AffinityHint},
		"unknown adapter":                         {held(), ask("team", "m", "vllm", "l"), lookup.NoHint},
		"unknown adapter, diagnosed":              {held(adapters), ask("team", "m", "vllm", "l"), lookup.UnknownAdapter},
		"an empty tenant is no unknown one":       {held(), ask("", "m", "vllm", ""), lookup.NoHint},
		"an empty model is no unknown one":        {held(), ask("team", "", "vllm", ""), lookup.NoHint},
		"an empty scheme is no unknown one":       {held(), ask("team", "m", "", ""), lookup.NoHint},
		"shortly after start nothing is unknown":  {held(grace), ask("t", "m", "s", ""), lookup.NoHint},
		"a tenant with stats alone is unknown":    {held().hold("w", holding{Scope: scopeOf("other"), Chain: "a", Block: 1}).stats("w", .9, 0, 0), ask("none", "m", "s", ""), lookup.UnknownTenant},
		"the reserved tenant's keys do not count": {newFleet().hold("p", holding{Scope: scopeOf(policy.ReservedTenant), Chain: "a", Block: 16}), ask("t", "m", "s", ""), lookup.NoHint},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.fleet.ask(tc.request); got.Reason != tc.want {
				t.Errorf("reason %s, want %s", got.Reason, tc.want)
			}
		})
	}

	f := held(grace)
	f.now = f.now.Add(time.Minute)
	if got := f.ask(ask("t", "m", "s", "")); got.Reason != lookup.UnknownTenant {
		t.Errorf("after the grace period: %s, want %s", got.Reason, lookup.UnknownTenant)
	}
}

func scopeOf(tenant string) index.Scope {
	scope := testScope
	scope.Tenant = tenant
	return scope
}
