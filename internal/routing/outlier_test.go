// SPDX-License-Identifier: Apache-2.0

package routing_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/breaker"
	"github.com/inferencecache/inference-cache/internal/routing"
)

// serve ends 20 requests on each replica, as long as it takes any: the given
// number of them failed, spread evenly so that no breaker sees many in a row.
func serve(fleet *routing.Fleet, now time.Time, failed ...int) {
	for i := range 20 {
		for replica, n := range failed {
			_, guard := fleet.Decide(&routing.Request{Now: now, Model: model, Target: fmt.Sprint("r", replica), Streamed: true})
			if guard == nil {
				continue
			}
			outcome := routing.Succeeded
			if n > 0 && i%(20/n) == 20/n-1 {
				outcome = routing.Failed
			}
			guard.End(now, outcome)
		}
	}
}

func ejected(fleet *routing.Fleet, now time.Time) (ids []string) {
	for _, state := range fleet.States(now) {
		if state.Breaker == breaker.Open {
			ids = append(ids, state.ID)
		}
	}
	return ids
}

func TestOutlierEjection(t *testing.T) {
	cases := map[string]struct {
		others int // failures of each other replica, of 20 requests
		failed int // failures of r0, of 20 requests
		want   bool
	}{
		"far above the others":             {others: 0, failed: 4, want: true},
		"just as bad as the others":        {others: 5, failed: 5},
		"above the others, but not thrice": {others: 3, failed: 5},
		"at most a tenth":                  {others: 0, failed: 1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			fleet := newFleet(t, 4, routing.Options{})
			serve(fleet, start, tc.failed, tc.others, tc.others, tc.others)
			got := ejected(fleet, start)
			if tc.want != (len(got) == 1 && got[0] == "r0") || !tc.want && len(got) > 0 {
				t.Errorf("ejected %v, want r0: %v", got, tc.want)
			}
			if got := ejected(fleet, start.Add(30*time.Second)); len(got) > 0 {
				t.Errorf("%v are still out after 30 s", got)
			}
		})
	}
}

// TestOutlierEjectionKeepsHalfTheFleet checks that failures everywhere, one
// replica after the other, leave enough to serve.
func TestOutlierEjectionKeepsHalfTheFleet(t *testing.T) {
	for _, size := range []int{1, 2, 5} {
		t.Run(fmt.Sprint(size, " replicas"), func(t *testing.T) {
			fleet := newFleet(t, size, routing.Options{})
			for range 20 {
				serve(fleet, start, make([]int, size)...)
			}
			for i := range size {
				for range 400 {
					_, guard := fleet.Decide(&routing.Request{Now: start, Model: model, Target: fmt.Sprint("r", i), Streamed: true})
					if guard == nil {
						break
					}
					guard.End(start, routing.Failed)
					serveIfOpen(fleet, fmt.Sprint("r", i))
				}
			}
			if got := ejected(fleet, start); len(got) != size/2 {
				t.Errorf("%v are out, want %d", got, size/2)
			}
		})
	}
}

// serveIfOpen keeps the breaker from opening by failures in a row.
func serveIfOpen(fleet *routing.Fleet, id string) {
	if _, guard := fleet.Decide(&routing.Request{Now: start, Model: model, Target: id, Streamed: true}); guard != nil {
		guard.End(start, routing.Succeeded)
	}
}

// TestAnOutlierIsForgotten checks that its placements and old failures do not
// outlive its ejection.
func TestAnOutlierIsForgotten(t *testing.T) {
	fleet := newFleet(t, 2, routing.Options{})
	request := novel(start, 1)
	request.Target = "r0"
	_, guard := fleet.Decide(request)
	guard.FirstByte(start)
	guard.End(start, routing.Succeeded)
	serve(fleet, start, 5, 0)
	if len(ejected(fleet, start)) != 1 {
		t.Fatal("r0 is not out")
	}
	later := start.Add(30 * time.Second)
	if got := fleet.Preview(novel(later, 1)); got.Prediction.Source != routing.SourceNone {
		t.Errorf("placements on the outlier are remembered: %s", got.Prediction.Source)
	}
	serve(fleet, later, 0, 0)
	if got := ejected(fleet, later); len(got) != 0 {
		t.Errorf("%v are out for what they did before", got)
	}
}
