// SPDX-License-Identifier: Apache-2.0

package index

import (
	"sync"
	"testing"
)

// TestGateKeepsReadersFromSeeingHalfAChange: two numbers change together.
func TestGateKeepsReadersFromSeeingHalfAChange(t *testing.T) {
	for name, try := range map[string]bool{"with tries": true, "without tries": false} {
		t.Run(name, func(t *testing.T) {
			const rounds, writers, readers = 2_000, 2, 3
			g := gate{try: try}
			var a, b int
			var all sync.WaitGroup
			for range writers {
				all.Go(func() {
					for range rounds {
						g.Lock()
						a++
						b++
						g.Unlock()
					}
				})
			}
			for range readers {
				all.Go(func() {
					for range rounds {
						g.RLock()
						if a != b {
							t.Errorf("saw %d and %d", a, b)
						}
						g.RUnlock()
					}
				})
			}
			all.Wait()
			if a != writers*rounds {
				t.Errorf("%d changes, want %d", a, writers*rounds)
			}
		})
	}
}

func TestGateWaitsForWhoHoldsItLong(t *testing.T) {
	g := gate{try: true}
	g.RLock()
	done := make(chan int, 2)
	order := 0
	go func() {
		g.Lock()
		order++
		done <- order
		g.Unlock()
	}()
	for range 10 * writeTries { // let the writer use up its tries, or not
		if g.mu.TryRLock() {
			g.mu.RUnlock()
		}
	}
	order = 1
	g.RUnlock()
	if got := <-done; got != 2 {
		t.Errorf("the writer got in before the reader was through")
	}
}
