// SPDX-License-Identifier: Apache-2.0

package lookup_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/lookup"
	"github.com/inferencecache/inference-cache/internal/policy"
)

// fact is one membership: the oracle's state is a flat list of them.
type fact struct {
	scope            index.Scope
	adapter, replica string
	key              byte
	tokens           int32
	tier             index.Tier
	age              time.Duration
}

type row struct {
	tenant, model, replica string
	hitRate, pressure      float32
	age                    time.Duration
}

// oracle answers from lists, one literal step after the other.
type oracle struct {
	facts  []fact
	rows   []row
	policy policy.Declared
}

type answer struct {
	reason lookup.Reason
	scores []lookup.Score // Replica, Score, MatchedTokens, HitProbability, Tier only
}

func (o *oracle) decide(r *lookup.Request, cancelled bool) answer {
	p := o.policy
	affinity := p.AffinityRouting == nil || *p.AffinityRouting
	chains := p.EnableChainMatching == nil || *p.EnableChainMatching
	requireChain := p.RequireChain != nil && *p.RequireChain
	tenantHot := p.EnableTenantHot == nil || *p.EnableTenantHot
	if r.Tenant == policy.ReservedTenant {
		return answer{reason: lookup.NoHint}
	}
	ownChain := len(r.BlockHashes) > 0 && len(r.BlockHashes) == len(r.BlockTokenCounts)
	chain, exact, tokens, ok := o.resolve(r, chains)
	if p.MinimumPrefixTokens > 0 && !affinity && (!requireChain || ownChain) && ok && tokens < int64(p.MinimumPrefixTokens) {
		return answer{reason: lookup.NoHint}
	}
	if cancelled {
		return answer{reason: lookup.Timeout}
	}
	if requireChain && !ownChain {
		return answer{reason: lookup.PolicyRequiresChain}
	}
	if !ok {
		return answer{reason: lookup.NoHint}
	}
	found := o.look(r, chain, exact)
	if found.reason == lookup.TenantHot && !tenantHot {
		return answer{reason: lookup.NoHint}
	}
	hint := found.reason == lookup.PrefixMatch || found.reason == lookup.TenantHot
	if affinity && hint && tokens < int64(p.MinimumPrefixTokens) {
		found = answer{}
	}
	if found.reason == lookup.PrefixMatch {
		found.scores = slices.DeleteFunc(found.scores, func(s lookup.Score) bool {
			return s.MatchedTokens < p.MinimumMatchedTokens
		})
		if len(found.scores) == 0 || found.scores[0].Score < *p.RoutingFloorScore {
			found = answer{}
		}
	}
	if found.reason == "" {
		return o.fallBack(r, chain, exact, affinity)
	}
	return found
}

// resolve returns the chain, the exact key, the length of the prompt and
// whether the input can be looked up.
func (o *oracle) resolve(r *lookup.Request, chains bool) (chain [][]byte, exact []byte, tokens int64, ok bool) {
	hasArrays := len(r.BlockHashes)+len(r.BlockTokenCounts) > 0
	switch {
	case chains && hasArrays:
		if len(r.BlockHashes) != len(r.BlockTokenCounts) {
			return nil, nil, 0, false
		}
		for i, count := range r.BlockTokenCounts {
			if count < 0 || len(r.BlockHashes[i]) == 0 || len(r.BlockHashes[i]) > 64 {
				return nil, nil, 0, false
			}
			tokens += int64(count)
		}
		return r.BlockHashes, nil, tokens, tokens <= math.MaxInt32
	case !chains && hasArrays && len(r.PrefixHash) == 0:
		return nil, nil, 0, false
	}
	return nil, r.PrefixHash, max(int64(r.PrefixTokens), 0), true
}

func (o *oracle) look(r *lookup.Request, chain [][]byte, exact []byte) answer {
	if r.Tenant == "" || r.Model == "" || r.Scheme == "" {
		return answer{}
	}
	serving := o.serving(r, "")
	scores := o.match(r, chain, exact)
	if len(scores) > 0 {
		for i := range scores {
			matching := len(scores)
			if chain != nil {
				matching = 0
				for _, s := range scores {
					if s.MatchedTokens >= scores[i].MatchedTokens {
						matching++
					}
				}
			}
			power := 1 - float64(matching)/float64(len(serving))
			if len(serving) <= 1 {
				power = 1
			} else if matching >= len(serving) {
				power = 0
			}
			if power != 1 {
				scores[i].Score *= float32(power)
			}
		}
		return answer{lookup.PrefixMatch, ordered(scores)}
	}
	if chain == nil {
		if hot := o.hot(r); len(hot) > 0 {
			return answer{lookup.TenantHot, ordered(hot)}
		}
	}
	return answer{reason: o.classify(r)}
}

// match scores without distinguishing power.
func (o *oracle) match(r *lookup.Request, chain [][]byte, exact []byte) (scores []lookup.Score) {
	for _, replica := range o.serving(r, "") {
		oldest, tier, matched := time.Duration(-1), index.Tier(0), int64(0)
		if chain == nil {
			if f, ok := o.held(r, replica, exact); ok {
				oldest, tier, matched = f.age, f.tier, int64(f.tokens)
			}
		}
		for i, key := range chain {
			f, ok := o.held(r, replica, key)
			if !ok || i > 0 && string(key) == string(chain[i-1]) {
				break
			}
			oldest, tier = max(oldest, f.age), max(tier, f.tier)
			matched += int64(r.BlockTokenCounts[i])
		}
		if oldest < 0 || chain != nil && matched <= 0 {
			continue
		}
		freshness := float32(1 - float64(oldest)/float64(30*time.Minute))
		pressure := float32(0)
		for _, w := range o.rows {
			if w.tenant == r.Tenant && w.model == r.Model && w.replica == replica && w.age < 30*time.Minute {
				pressure = w.pressure
			}
		}
		score := float32(matched) * freshness
		score *= 1 - pressure
		score *= bias(r, freshness)
		scores = append(scores, lookup.Score{
			Replica: replica, Score: score, MatchedTokens: int32(matched), HitProbability: freshness, Tier: tier,
		})
	}
	return scores
}

func bias(r *lookup.Request, freshness float32) float32 {
	if r.TTFTMillis > 0 && r.TTFTMillis < 200 {
		return 1 + freshness
	}
	return 1
}

func (o *oracle) hot(r *lookup.Request) (scores []lookup.Score) {
	for _, replica := range o.serving(r, r.Adapter) {
		for _, w := range o.rows {
			if w.tenant != r.Tenant || w.model != r.Model || w.replica != replica || w.age >= 5*time.Minute || w.hitRate < 0.1 {
				continue
			}
			recency := 1 - float32(w.age)/float32(5*time.Minute)
			score := w.hitRate * recency
			score *= 1 - w.pressure
			score *= bias(r, recency)
			scores = append(scores, lookup.Score{Replica: replica, Score: score, HitProbability: w.hitRate})
		}
	}
	return scores
}

func (o *oracle) classify(r *lookup.Request) lookup.Reason {
	counted := slices.DeleteFunc(slices.Clone(o.facts), func(f fact) bool { return f.scope.Tenant == policy.ReservedTenant })
	if len(counted) == 0 {
		return ""
	}
	for _, level := range []struct {
		reason lookup.Reason
		same   func(fact) bool
	}{
		{lookup.UnknownTenant, func(f fact) bool { return f.scope.Tenant == r.Tenant }},
		{lookup.UnknownModel, func(f fact) bool { return f.scope.Tenant == r.Tenant && f.scope.Model == r.Model }},
		{lookup.UnknownHashScheme, func(f fact) bool { return f.scope == scopeOfRequest(r) }},
	} {
		if !slices.ContainsFunc(counted, level.same) {
			return level.reason
		}
	}
	return ""
}

func (o *oracle) fallBack(r *lookup.Request, chain [][]byte, exact []byte, affinity bool) answer {
	var seed []byte
	for _, key := range chain {
		seed = append(binary.BigEndian.AppendUint32(seed, uint32(len(key))), key...)
	}
	if chain == nil {
		seed = exact
	}
	candidates := o.serving(r, r.Adapter)
	named := r.Tenant != "" && r.Model != "" && r.Scheme != ""
	if !affinity || !named || len(r.BlockHashes) != len(r.BlockTokenCounts) || len(seed) == 0 || len(candidates) == 0 {
		return answer{reason: lookup.NoHint}
	}
	sum := sha256.Sum256(seed)
	pick := binary.BigEndian.Uint64(sum[:8]) % uint64(len(candidates))
	return answer{lookup.AffinityHint, []lookup.Score{{Replica: candidates[pick]}}}
}

func scopeOfRequest(r *lookup.Request) index.Scope {
	return index.Scope{Tenant: r.Tenant, Model: r.Model, Scheme: r.Scheme}
}

// serving returns the sorted replicas that hold a key of the scope, of one
// adapter unless that is "".
func (o *oracle) serving(r *lookup.Request, adapter string) (replicas []string) {
	for _, f := range o.facts {
		if f.scope == scopeOfRequest(r) && (adapter == "" || f.adapter == adapter) && !slices.Contains(replicas, f.replica) {
			replicas = append(replicas, f.replica)
		}
	}
	slices.Sort(replicas)
	return replicas
}

func (o *oracle) held(r *lookup.Request, replica string, key []byte) (fact, bool) {
	for _, f := range o.facts {
		if f.scope == scopeOfRequest(r) && f.adapter == r.Adapter && f.replica == replica && string(hash(f.key)) == string(key) {
			return f, true
		}
	}
	return fact{}, false
}

func ordered(scores []lookup.Score) []lookup.Score {
	slices.SortFunc(scores, func(a, b lookup.Score) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), strings.Compare(a.Replica, b.Replica))
	})
	return scores
}

// drawing of random states and requests.

func drawScope(t *rapid.T) index.Scope {
	pick := func(label string, names ...string) string { return rapid.SampledFrom(names).Draw(t, label) }
	return index.Scope{
		Tenant: pick("tenant", "t", "t", "t", "t", "t", "t", "t", "u", policy.ReservedTenant),
		Model:  pick("model", "m", "m", "m", "m", "m", "m", "n"),
		Scheme: pick("scheme", "s", "s", "s", "s", "s", "s", "z"),
	}
}

func drawOracle(t *rapid.T) *oracle {
	optional := func(label string) *bool {
		return rapid.SampledFrom([]*bool{nil, ptr(true), ptr(false)}).Draw(t, label)
	}
	o := &oracle{policy: policy.Declared{
		MinimumPrefixTokens:  rapid.SampledFrom([]int32{0, 0, 0, 64, 1000}).Draw(t, "minimum prefix"),
		MinimumMatchedTokens: rapid.SampledFrom([]int32{0, 0, 64, 130}).Draw(t, "minimum matched"),
		RoutingFloorScore:    ptr(rapid.SampledFrom([]float32{0, 0, .1, 20}).Draw(t, "score floor")),
		EnableChainMatching:  optional("chains"),
		RequireChain:         optional("require chain"),
		EnableTenantHot:      optional("tenant hot"),
		AffinityRouting:      optional("affinity"),
	}}
	ages := []time.Duration{0, time.Minute, 4 * time.Minute, 29 * time.Minute}
	for range rapid.IntRange(0, 40).Draw(t, "facts") {
		f := fact{
			scope:   drawScope(t),
			adapter: rapid.SampledFrom([]string{"", "", "l"}).Draw(t, "adapter"),
			replica: rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "replica"),
			key:     rapid.SampledFrom([]byte("vvvwwxyz")).Draw(t, "key"),
			tokens:  rapid.SampledFrom([]int32{0, 16, 64, 200}).Draw(t, "tokens"),
			tier:    index.Tier(rapid.IntRange(1, 4).Draw(t, "tier")),
			age:     rapid.SampledFrom(ages).Draw(t, "age"),
		}
		same := func(g fact) bool {
			return g.scope == f.scope && g.adapter == f.adapter && g.replica == f.replica && g.key == f.key
		}
		if !slices.ContainsFunc(o.facts, same) {
			o.facts = append(o.facts, f)
		}
	}
	for _, replica := range []string{"a", "b", "c"} {
		if rapid.Bool().Draw(t, "has stats") {
			o.rows = append(o.rows, row{
				tenant: "t", model: "m", replica: replica,
				hitRate:  rapid.SampledFrom([]float32{0, .1, .5, 1}).Draw(t, "hit rate"),
				pressure: rapid.SampledFrom([]float32{0, .25, 1}).Draw(t, "pressure"),
				age:      rapid.SampledFrom(append(ages, 5*time.Minute)).Draw(t, "stats age"),
			})
		}
	}
	return o
}

// fleet puts the oracle's state into a real index.
func (o *oracle) fleet() *fleet {
	f := newFleet()
	var declared []policy.Declared
	for _, tenant := range []string{"t", "u", ""} {
		p := o.policy
		p.Namespace = tenant
		declared = append(declared, p)
	}
	f.policies.Replace(&policy.Snapshot{Policies: declared})
	for _, fact := range o.facts {
		f.hold(fact.replica, holding{
			Scope: fact.scope, Adapter: fact.adapter, Chain: string(fact.key), Block: fact.tokens, Tier: fact.tier, Age: fact.age,
		})
	}
	for _, r := range o.rows {
		at := f.now.Add(-r.age).UnixMilli()
		f.index.SetStats(r.tenant, r.model, r.replica, index.Stats{
			HitRate: r.hitRate, Pressure: r.pressure, LivenessMillis: at, ReportedMillis: at,
		})
	}
	return f
}

func drawRequest(t *rapid.T) lookup.Request {
	r := in(drawScope(t))
	r.Adapter = rapid.SampledFrom([]string{"", "", "l"}).Draw(t, "adapter")
	r.TTFTMillis = rapid.SampledFrom([]int32{0, 199, 200}).Draw(t, "ttft")
	if rapid.IntRange(0, 15).Draw(t, "nameless") == 0 {
		r.Model = ""
	}
	if rapid.Bool().Draw(t, "has chain") {
		ordered := rapid.IntRange(0, 3).Draw(t, "shuffled") < 3
		for i := range rapid.IntRange(0, 4).Draw(t, "blocks") {
			block := "vwxyz"[i]
			if !ordered {
				block = rapid.SampledFrom([]byte("vwxyz")).Draw(t, "block")
			}
			r.BlockHashes = append(r.BlockHashes, hash(block))
			r.BlockTokenCounts = append(r.BlockTokenCounts, rapid.SampledFrom([]int32{64, 64, 64, 0, 16}).Draw(t, "count"))
		}
		switch rapid.IntRange(0, 12).Draw(t, "damage") {
		case 0:
			r.BlockTokenCounts = append(r.BlockTokenCounts, 1)
		case 1:
			r.BlockHashes, r.BlockTokenCounts = append(r.BlockHashes, nil), append(r.BlockTokenCounts, 1)
		case 2:
			r.BlockHashes, r.BlockTokenCounts = append(r.BlockHashes, hash('v')), append(r.BlockTokenCounts, -1)
		}
	}
	if rapid.Bool().Draw(t, "has prefix") {
		r.PrefixHash = hash(rapid.SampledFrom([]byte("vwxyzq")).Draw(t, "prefix"))
		r.PrefixTokens = rapid.SampledFrom([]int32{0, 64, 2000}).Draw(t, "prefix tokens")
	}
	return r
}

// question is one state and what is asked of it.
type question struct {
	oracle   *oracle
	requests []lookup.Request
	late     []bool // the caller had given up on the request of this place
}

func drawQuestion(t *rapid.T) question {
	q := question{oracle: drawOracle(t)}
	for range 5 {
		q.requests = append(q.requests, drawRequest(t))
		q.late = append(q.late, rapid.IntRange(0, 20).Draw(t, "late") == 0)
	}
	return q
}

func TestDecideAgainstOracle(t *testing.T) {
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	rapid.Check(t, func(t *rapid.T) {
		q := drawQuestion(t)
		f := q.oracle.fleet()
		for i, request := range q.requests {
			ctx := context.Background()
			if q.late[i] {
				ctx = cancelled
			}
			want := q.oracle.decide(&request, q.late[i])
			got := f.askContext(ctx, request)
			var scores []lookup.Score
			for _, s := range got.Scores {
				scores = append(scores, lookup.Score{
					Replica: s.Replica, Score: s.Score, MatchedTokens: s.MatchedTokens, HitProbability: s.HitProbability, Tier: s.Tier,
				})
			}
			if got.Reason != want.reason || !slices.Equal(scores, want.scores) {
				t.Fatalf("request %+v\nanswer %s %+v\nwant   %s %+v", request, got.Reason, scores, want.reason, want.scores)
			}
		}
	})
}

// The questions drawn are worth asking: fixed seeds reach every reason.
func TestOracleQuestionsReachEveryReason(t *testing.T) {
	seen := make(map[lookup.Reason]int)
	questions := rapid.Custom(drawQuestion)
	for seed := range 1000 {
		q := questions.Example(seed)
		for i := range q.requests {
			seen[q.oracle.decide(&q.requests[i], q.late[i]).reason]++
		}
	}
	for _, reason := range lookup.Reasons() {
		if seen[reason] == 0 && reason != lookup.UnknownAdapter {
			t.Errorf("no question is answered %s", reason)
		}
	}
	t.Log(seen)
}
