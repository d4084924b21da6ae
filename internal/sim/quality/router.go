// SPDX-License-Identifier: Apache-2.0

package quality

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/lookup"
	"github.com/inferencecache/inference-cache/internal/publisher"
	"github.com/inferencecache/inference-cache/internal/routing"
	"github.com/inferencecache/inference-cache/internal/sim/oracle"
	"github.com/inferencecache/inference-cache/internal/sim/wire"
	"github.com/inferencecache/inference-cache/pkg/fingerprint"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

const (
	tenant = "local"
	model  = "sim"
	scheme = "vllm"
)

const (
	// heartbeatMillis is how often sessions vouch for their blocks.
	heartbeatMillis = 1000
	// maintainMillis is how often the index is tidied.
	maintainMillis = 60_000
)

// epoch is the wall time at which virtual time starts.
var epoch = time.Unix(1_700_000_000, 0)

// router is the product without its wires: publisher sessions, index, lookup
// and routing, in virtual time.
type router struct {
	options   Options
	blockSize int
	now       time.Time // of the current decision
	scope     index.Scope
	index     *index.Index
	decider   *lookup.Decider
	gateways  []*routing.Fleet
	turn      int // number of arrivals so far
	replicas  []replicaFeed
	delayed   []publication // in order of time
	heartbeat int64         // Unix milliseconds of the last one
	maintain  int64         // likewise
	guards    map[*oracle.Arrival]*routing.Guard
	decision  lookup.Decision
	keys      []uint64
	counts    []int32

	reasons map[string]int
	origins map[string]int
	// Tokens of held prefixes that were not used because the index did not
	// know them, or although it did.
	unknownTokens, declinedTokens int
}

// replicaFeed is one engine's event stream.
type replicaFeed struct {
	id       string
	session  *publisher.Session
	encoder  wire.Encoder
	sequence uint64
}

// publication is a batch on its way to the index.
type publication struct {
	at      time.Duration // when it arrives
	replica int
	events  []wire.Event
}

func newRouter(options Options) (*router, error) {
	shape, err := wire.ParseShape("vllm-0.24")
	if err != nil {
		return nil, err
	}
	r := &router{
		options: options, blockSize: options.Fleet.Scheduler.BlockSize, now: epoch,
		scope:   index.Scope{Tenant: tenant, Model: model, Scheme: scheme},
		index:   index.New(index.Config{}),
		guards:  make(map[*oracle.Arrival]*routing.Guard),
		reasons: make(map[string]int), origins: make(map[string]int),
	}
	for number := range options.Gateways {
		fleet, err := newGateway(options, number)
		if err != nil {
			return nil, err
		}
		r.gateways = append(r.gateways, fleet)
	}
	r.decider = lookup.New(lookup.Options{
		Index: r.index, Now: func() time.Time { return r.now },
		BlockSize: func(index.Scope) int { return r.blockSize },
	})
	for number := range options.Fleet.Replicas {
		feed := replicaFeed{
			id:      replicaID(number),
			session: publisher.NewSession(publisher.SessionConfig{Scheme: scheme}),
			encoder: wire.Encoder{Shape: shape},
		}
		feed.session.Connected(epoch)
		r.replicas = append(r.replicas, feed)
		r.index.SessionUp(r.scope, feed.id, epoch.UnixMilli())
	}
	return r, nil
}

func replicaID(number int) string { return "engine-" + strconv.Itoa(number) }

// newGateway returns the view of one gateway, which knows the load of its own
// requests only.
func newGateway(options Options, number int) (*routing.Fleet, error) {
	policy, err := routing.NewPolicy(options.Policy, routing.PolicyOptions{})
	if err != nil {
		return nil, err
	}
	fleet := routing.NewFleet(routing.Options{
		Policy: policy, Rand: rand.New(rand.NewPCG(options.Seed, uint64(number))),
		PrefillRate: options.Fleet.Timing.PrefillTokensPerSecond,
	})
	for replica := range options.Fleet.Replicas {
		id := replicaID(replica)
		fleet.Put(routing.Replica{ID: id})
		fleet.SetReady(id, true)
		fleet.SetServes(id, routing.Serves{model: nil})
	}
	return fleet, nil
}

// choose is the router's oracle.Policy.
func (r *router) choose(fleet *oracle.Fleet, arrival *oracle.Arrival) int {
	r.arrive(arrival.At)
	r.now = epoch.Add(arrival.At)
	r.beat()
	request := &routing.Request{
		Now: r.now, Model: model, PromptTokens: len(arrival.Prompt), Hint: r.ask(arrival), Streamed: true,
	}
	if len(r.keys) > 0 {
		request.Chain = routing.Chain{Keys: slices.Clone(r.keys), KeyTokens: r.blockSize}
	}
	gateway := r.gateways[r.turn%len(r.gateways)]
	r.turn++
	decision, guard := gateway.Decide(request)
	r.guards[arrival] = guard
	r.reasons[request.Hint.Reason]++
	r.origins[string(decision.Origin)]++
	for number := range r.replicas {
		if r.replicas[number].id == decision.Replica {
			r.account(fleet, arrival, request.Hint, number)
			return number
		}
	}
	panic(fmt.Sprintf("no replica was eligible: %+v", decision))
}

// account adds up what the choice leaves unused of the longest prefix any
// replica really holds.
func (r *router) account(fleet *oracle.Fleet, arrival *oracle.Arrival, hint routing.Hint, chosen int) {
	held, known := 0, 0
	for number := range r.replicas {
		held = max(held, fleet.Held(number, arrival))
	}
	for _, score := range hint.Scores {
		known = max(known, min(score.MatchedTokens, (len(arrival.Prompt)-1)/r.blockSize*r.blockSize))
	}
	lost := held - fleet.Held(chosen, arrival)
	unknown := min(lost, max(held-known, 0))
	r.unknownTokens += unknown
	r.declinedTokens += lost - unknown
}

// ask looks a prompt up as the gateway does.
func (r *router) ask(arrival *oracle.Arrival) routing.Hint {
	r.keys = fingerprint.Append(r.keys[:0], fingerprint.SaltParent(arrival.Identity.Salt), arrival.Prompt, r.blockSize)
	hint := routing.Hint{BlockSize: r.blockSize, RequestBlocks: len(r.keys)}
	if len(r.keys) == 0 {
		return hint
	}
	r.counts = r.counts[:0]
	for range r.keys {
		r.counts = append(r.counts, int32(r.blockSize))
	}
	r.decider.Decide(context.Background(), &lookup.Request{
		Tenant: tenant, Model: model, Scheme: scheme, Adapter: arrival.Identity.Adapter,
		BlockHashes: fingerprint.Wire(r.keys), BlockTokenCounts: r.counts,
	}, &r.decision)
	hint.Reason = string(r.decision.Reason)
	for _, score := range r.decision.Scores {
		hint.Scores = append(hint.Scores, routing.Score{
			Replica: score.Replica, MatchedTokens: int(score.MatchedTokens), Score: score.Score,
		})
	}
	return hint
}

// beat lets every session vouch for its blocks.
func (r *router) beat() {
	now := r.now.UnixMilli()
	if now-r.heartbeat < heartbeatMillis {
		return
	}
	r.heartbeat = now
	for i := range r.replicas {
		r.index.Heartbeat(r.scope, r.replicas[i].id, now)
	}
	if now-r.maintain < maintainMillis {
		return
	}
	r.maintain = now
	for r.index.Maintain(now) {
		continue
	}
}

// Published implements oracle.Listener.
func (r *router) Published(now time.Duration, replica int, events []wire.Event) {
	r.delayed = append(r.delayed, publication{now + r.options.EventDelay, replica, events})
}

// FirstToken implements oracle.Listener.
func (r *router) FirstToken(now time.Duration, arrival *oracle.Arrival) {
	r.guards[arrival].FirstByte(epoch.Add(now))
}

// Finished implements oracle.Listener.
func (r *router) Finished(now time.Duration, arrival *oracle.Arrival) {
	r.guards[arrival].End(epoch.Add(now), routing.Succeeded)
	delete(r.guards, arrival)
}

// arrive applies all batches that have arrived by now.
func (r *router) arrive(now time.Duration) {
	done := 0
	for ; done < len(r.delayed) && r.delayed[done].at <= now; done++ {
		batch := r.delayed[done]
		feed := &r.replicas[batch.replica]
		at := epoch.Add(batch.at)
		payload := feed.encoder.Append(nil, float64(at.UnixMicro())/1e6, batch.events)
		step := feed.session.Live(feed.sequence, payload, at)
		feed.sequence++
		for _, delta := range step.Deltas {
			r.apply(feed.id, delta, at.UnixMilli())
		}
	}
	r.delayed = r.delayed[done:]
}

// apply hands one delta to the index.
func (r *router) apply(replica string, delta *pb.SyncDelta, nowMillis int64) {
	batch := &index.Batch{
		Scope: r.scope, Replica: replica,
		AtMillis: min(delta.GetTimestampUs()/1000, nowMillis), NowMillis: nowMillis,
	}
	for _, op := range delta.GetOps() {
		switch {
		case op.GetStored() != nil:
			run := op.GetStored()
			batch.Ops = append(batch.Ops, index.Op{
				Kind: index.OpStore, Adapter: run.GetAdapterId(), Tier: index.TierT1,
				Keys: index.Keys{Short: run.GetKeys()},
				Tokens: index.Tokens{
					Counts: run.GetTokenCounts(), First: run.GetFirstTokenCount(), Step: run.GetBlockTokenCount(),
				},
			})
		case op.GetRemoved() != nil:
			batch.Ops = append(batch.Ops, index.Op{
				Kind: index.OpRemove, Adapter: op.GetRemoved().GetAdapterId(),
				Keys: index.Keys{Short: op.GetRemoved().GetKeys()},
			})
		case op.GetCleared() != nil:
			batch.Ops = append(batch.Ops, index.Op{Kind: index.OpClear})
		}
	}
	r.index.Apply(batch)
}
