// SPDX-License-Identifier: Apache-2.0

package routing_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/routing"
)

// engines simulates replicas that compute prompts one after another and then
// answer for a while. Load is given back to the fleet that sent the request.
type engines struct {
	busyUntil map[string]time.Time
	holds     map[string]bool
	open      []running
	inflight  map[string]int
}

type running struct {
	guard       *routing.Guard
	replica     string
	first, done time.Time
}

func newEngines() *engines {
	return &engines{busyUntil: map[string]time.Time{}, holds: map[string]bool{}, inflight: map[string]int{}}
}

// advance ends what is over by now.
func (e *engines) advance(now time.Time) {
	e.open = slices.DeleteFunc(e.open, func(r running) bool {
		if !r.first.After(now) {
			r.guard.FirstByte(r.first)
			e.holds[r.replica] = true
		}
		if r.done.After(now) {
			return false
		}
		r.guard.End(r.done, routing.Succeeded)
		e.inflight[r.replica]--
		return true
	})
}

// send dispatches a prompt of which shared tokens may be cached, and returns
// the time to its first token.
func (e *engines) send(fleet *routing.Fleet, now time.Time, shared, prompt int, answer time.Duration) time.Duration {
	e.advance(now)
	hint := routing.Hint{Reason: routing.ReasonAffinityHint, BlockSize: 16}
	if len(e.holds) > 0 {
		hint = match()
		for i := range 64 {
			if id := fmt.Sprintf("r%d", i); e.holds[id] {
				hint.Scores = append(hint.Scores, routing.Score{Replica: id, MatchedTokens: shared})
			}
		}
	}
	if shared == 0 {
		hint = routing.Hint{Reason: "NO_HINT"}
	}
	decision, guard := fleet.Decide(&routing.Request{Now: now, Model: model, PromptTokens: prompt, Streamed: true, Hint: hint})
	id := decision.Replica
	uncached := prompt
	if e.holds[id] {
		uncached -= shared
	}
	begin := now
	if e.busyUntil[id].After(now) {
		begin = e.busyUntil[id]
	}
	first := begin.Add(time.Duration(float64(uncached) / 8000 * float64(time.Second)))
	e.busyUntil[id] = first
	e.inflight[id]++
	e.open = append(e.open, running{guard: guard, replica: id, first: first, done: first.Add(answer)})
	return first.Sub(now)
}

// spread returns the largest over the mean number of requests in flight.
func (e *engines) spread(replicas int) float64 {
	total, most := 0, 0
	for _, n := range e.inflight {
		total, most = total+n, max(most, n)
	}
	return float64(most*replicas) / float64(max(total, 1))
}

func percentile(values []time.Duration, p float64) time.Duration {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[int(p*float64(len(sorted)-1))]
}

func TestGW01ASharedPrefixDoesNotOverloadOneReplica(t *testing.T) {
	run := func(name string) (worst float64, p99 time.Duration) {
		fleet, sim := newFleet(t, 8, routing.Options{Policy: policy(t, name)}), newEngines()
		var times []time.Duration
		const warmUp, requests = 300, 1500
		for i := range warmUp + requests {
			took := sim.send(fleet, start.Add(time.Duration(i)*15*time.Millisecond), 2000, 2500, 2*time.Second)
			if i < warmUp {
				continue
			}
			times = append(times, took)
			worst = max(worst, sim.spread(8))
		}
		return worst, percentile(times, 0.99)
	}
	worst, p99 := run(routing.PolicyHint)
	if worst > 2 {
		t.Errorf("a replica had %.2f times the mean in flight", worst)
	}
	if _, limit := run(routing.PolicyLeastLoad); p99 > limit {
		t.Errorf("99 %% have a first token after %v, by load alone after %v", p99, limit)
	}
}

func TestGW02SeveralGatewaysDoNotHerd(t *testing.T) {
	sim, random := newEngines(), rand.New(rand.NewPCG(1, 1))
	var fleets []*routing.Fleet
	for i := range uint64(3) {
		fleets = append(fleets, newFleet(t, 8, routing.Options{Rand: rand.New(rand.NewPCG(2, i))}))
	}
	worst := 0.0
	for i := range 2000 {
		sim.send(fleets[random.IntN(3)], start.Add(time.Duration(i)*10*time.Millisecond), 2000, 2500, 2*time.Second)
		if i >= 500 {
			worst = max(worst, sim.spread(8))
		}
	}
	if worst > 2 {
		t.Errorf("a replica had %.2f times the mean in flight", worst)
	}
}

func TestGW06WithoutReuseHintsCostNothing(t *testing.T) {
	for _, percent := range []int{0, 26} {
		t.Run(fmt.Sprint(percent, " % sharing"), func(t *testing.T) {
			mean := func(name string) time.Duration {
				fleet, sim := newFleet(t, 8, routing.Options{Policy: policy(t, name)}), newEngines()
				random, total := rand.New(rand.NewPCG(3, 3)), time.Duration(0)
				for i := range 2000 {
					now := start.Add(time.Duration(float64(i)*40*(0.5+random.Float64())) * time.Millisecond)
					shared := 0
					if random.IntN(100) < percent {
						shared = 1000
					}
					total += sim.send(fleet, now, shared, 1500, time.Second)
				}
				return total / 2000
			}
			got, limit := mean(routing.PolicyHint), min(mean(routing.PolicyRoundRobin), mean(routing.PolicyLeastLoad))
			if float64(got) > 1.05*float64(limit) {
				t.Errorf("mean time to the first token %v, want at most 1.05 times %v", got, limit)
			}
		})
	}
}

func TestGW07AShortSharedPrefixBeforeLongTextIsFollowed(t *testing.T) {
	fleet := newFleet(t, 8, routing.Options{})
	decision, _ := fleet.Decide(&routing.Request{
		Now: start, Model: model, PromptTokens: 4300, Hint: match(routing.Score{Replica: "r5", MatchedTokens: 288})})
	if decision.Replica != "r5" {
		t.Errorf("replica %s, want the holder", decision.Replica)
	}
	own := newFleet(t, 8, routing.Options{Policy: policy(t, routing.PolicyApprox)})
	first, _ := own.Decide(&routing.Request{Now: start, Model: model, PromptTokens: 300, Chain: chain(1, 18), Streamed: true})
	later := chain(2, 268)
	copy(later.Keys, chain(1, 18).Keys)
	next := own.Preview(&routing.Request{Now: start.Add(time.Minute), Model: model, PromptTokens: 4300, Chain: later})
	if next.Replica != first.Replica || next.Prediction.Source != routing.SourceApprox {
		t.Errorf("went to %s by %s, want %s by own placements", next.Replica, next.Prediction.Source, first.Replica)
	}
}

func TestGW14ANewReplicaGetsItsShareOfMisses(t *testing.T) {
	fleet, sim := newFleet(t, 4, routing.Options{}), newEngines()
	now := start
	send := func(requests int) (newcomer int) {
		for range requests {
			now = now.Add(50 * time.Millisecond)
			sim.advance(now)
			before := sim.inflight["r4"]
			sim.send(fleet, now, 0, 1000, time.Second)
			newcomer += sim.inflight["r4"] - before
		}
		return newcomer
	}
	send(600)
	fleet.Put(routing.Replica{ID: "r4"})
	fleet.SetServes("r4", routing.Serves{model: nil})
	fleet.SetReady("r4", true)
	if got := send(600); got < 600/5*8/10 {
		t.Errorf("the new replica got %d of 600 misses within 30 s, want about %d", got, 600/5)
	}
}
