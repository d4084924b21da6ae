// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/routing"
)

// errHedged ends the attempt that another one overtook.
var errHedged = errors.New("another attempt was faster")

// What became of attempts that hedge another one.
const (
	hedgeWon      = "won"
	hedgeLost     = "lost"
	hedgeNoBudget = "no_budget"
)

var hedgeResults = []string{hedgeWon, hedgeLost, hedgeNoBudget}

// ParseHedgeAfter reads the percentile of the time to the first byte after
// which a second attempt is made: p50 to p99; empty or off is 0, never.
func ParseHedgeAfter(text string) (int, error) {
	if text == "" || text == "off" {
		return 0, nil
	}
	digits, ok := strings.CutPrefix(text, "p")
	percentile, err := strconv.Atoi(digits)
	if !ok || err != nil || percentile < 50 || percentile > 99 {
		return 0, fmt.Errorf("%.32q: expected off or a percentile from p50 to p99", text)
	}
	return percentile, nil
}

const (
	// latencySamples is how many of the latest times are remembered, and
	// minLatencySamples how many it takes to judge.
	latencySamples    = 512
	minLatencySamples = 50
)

// latencies remembers the latest times to the first byte. It is safe for
// concurrent use.
type latencies struct {
	mu   sync.Mutex
	ring []time.Duration
	next int
	// sorted is a copy in order, made when first needed after staleAfter
	// changes.
	sorted  []time.Duration
	changes int
}

// staleAfter is how many new times a sorted copy may lack.
const staleAfter = 32

func (l *latencies) note(took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changes++
	if len(l.ring) < latencySamples {
		l.ring = append(l.ring, took)
		return
	}
	l.ring[l.next] = took
	l.next = (l.next + 1) % latencySamples
}

// percentile returns 0 while too little is known.
func (l *latencies) percentile(p int) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.ring) < minLatencySamples {
		return 0
	}
	if l.sorted == nil || l.changes >= staleAfter {
		l.sorted, l.changes = append(l.sorted[:0], l.ring...), 0
		slices.Sort(l.sorted)
	}
	return l.sorted[(len(l.sorted)-1)*p/100]
}

// latenciesOf returns the times of requests like this one: the first byte of
// an answer that is not streamed comes only at its end.
func (x *exchange) latenciesOf() *latencies {
	if x.fields.stream {
		return &x.gateway.streamedTimes
	}
	return &x.gateway.otherTimes
}

// runHedged makes the first attempt, and a second one at another replica if
// the answer is slow to begin. The first answer wins.
func (x *exchange) runHedged(ctx context.Context, first *attempt, request *routing.Request) *attempt {
	percentile := x.gateway.live.Load().hedgePercentile
	after := time.Duration(0)
	if percentile > 0 && x.route.generates {
		after = x.latenciesOf().percentile(percentile)
	}
	if after <= 0 {
		x.run(first)
		return first
	}
	done := make(chan *attempt, 2)
	go func() { x.run(first); done <- first }()
	timer := time.NewTimer(after)
	defer timer.Stop()
	select {
	case <-done:
		return first
	case <-timer.C:
	}
	second := x.hedge(ctx, first, request)
	if second == nil {
		return <-done
	}
	go func() { x.run(second); done <- second }()
	return x.settle(ctx, first, second, done)
}

// hedge prepares a second attempt, or returns nil if there must be none.
func (x *exchange) hedge(ctx context.Context, first *attempt, request *routing.Request) *attempt {
	other := *request
	id, _ := first.guard.Replica()
	other.Exclude = append(slices.Clone(request.Exclude), id)
	if len(x.gateway.fleet.Eligible(nil, &other)) == 0 {
		return nil
	}
	if !x.gateway.budget.takeRetry(time.Now()) {
		x.gateway.metrics.hedges.WithLabelValues(hedgeNoBudget).Inc()
		return nil
	}
	guard := x.decideOnce(&other)
	if guard == nil {
		x.decision = first.decision
		return nil
	}
	return x.newAttempt(ctx, guard)
}

// settle waits for the first of two attempts that gives an answer, and ends
// the other one.
func (x *exchange) settle(ctx context.Context, first, second *attempt, done <-chan *attempt) *attempt {
	winner := <-done
	loser := first
	if winner == first {
		loser = second
	}
	if winner.kind != "" {
		x.noteFailure(ctx, winner)
		x.traceFailure(ctx, winner, true, 0)
		x.discard(winner)
		winner = <-done
	} else {
		loser.cancel(errHedged)
		<-done // it returns at once
		loser.guard.End(time.Now(), routing.Ignored)
		x.traceFailure(ctx, loser, false, 0)
		x.discard(loser)
	}
	result := hedgeLost
	if winner == second {
		result = hedgeWon
	}
	x.gateway.metrics.hedges.WithLabelValues(result).Inc()
	x.decision = winner.decision
	return winner
}
