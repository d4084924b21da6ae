// SPDX-License-Identifier: Apache-2.0

package admission

import "slices"

// maxCost bounds what one request costs in the queue, in tokens, so that a
// huge one does not wait for as many rounds.
const maxCost = 1 << 16

// caller is the state of one caller; its gate's mutex guards it.
type caller struct {
	name     string
	inflight int
	tokens   allowance
	// queue are requests that wait; deficit are the tokens they may use.
	queue   []*waiter
	deficit int
}

func (c *caller) room(limit int) bool { return limit <= 0 || c.inflight < limit }

func (c *caller) idle() bool { return c.inflight == 0 && len(c.queue) == 0 }

// waiter is a request on its way through the gate.
type waiter struct {
	caller *caller
	// limit is that of its caller's requests under way.
	limit        int
	tokens, cost int
	// decided is closed once over, after which ticket and err do not change.
	decided chan struct{}
	over    bool
	ticket  *Ticket
	err     error
}

func (w *waiter) admitted() bool {
	select {
	case <-w.decided:
		return true
	default:
		return false
	}
}

// admitLocked lets in whoever has the turn while there is room.
func (g *Gate) admitLocked() {
	blocked := 0 // callers in a row that may not send more
	for g.roomLocked() && len(g.ring) > 0 && blocked < len(g.ring) {
		g.next %= len(g.ring)
		c := g.ring[g.next]
		w := c.queue[0]
		if !c.room(w.limit) {
			blocked++
			g.next++
			continue
		}
		blocked = 0
		if c.deficit < w.cost {
			c.deficit += g.settings.Quantum
			if c.deficit < w.cost {
				g.next++
				continue
			}
		}
		c.deficit -= w.cost
		g.removeLocked(w)
		g.admitOneLocked(w)
		if len(c.queue) > 0 && c.deficit < c.queue[0].cost {
			g.next++
		}
	}
}

// removeLocked takes a request out of the queue.
func (g *Gate) removeLocked(w *waiter) {
	c := w.caller
	c.queue = slices.DeleteFunc(c.queue, func(other *waiter) bool { return other == w })
	g.waiting--
	if len(c.queue) > 0 {
		return
	}
	at := slices.Index(g.ring, c)
	g.ring = slices.Delete(g.ring, at, at+1)
	if at < g.next {
		g.next--
	}
}
