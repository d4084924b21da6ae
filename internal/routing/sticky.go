// SPDX-License-Identifier: Apache-2.0

package routing

import "time"

// pins remembers on which replica the requests of a sticky key belong. It
// forgets a key after a time without use, and the one used longest ago when it
// is full.
type pins struct {
	ttl   time.Duration
	limit int

	byKey map[pinKey]*pin
	// newest and oldest end the list in order of use.
	newest, oldest *pin
}

// pinKey keeps the roles of one request apart.
type pinKey struct {
	key  uint64
	role Role
}

type pin struct {
	pinKey
	slot uint32
	used time.Time
	// inflight are requests of the key on slot.
	inflight     int
	newer, older *pin
}

func newPins(ttl time.Duration, limit int) *pins {
	return &pins{ttl: ttl, limit: limit, byKey: map[pinKey]*pin{}}
}

// find returns the pin of a key; expired says that there was one.
func (p *pins) find(now time.Time, key pinKey) (found *pin, expired bool) {
	found = p.byKey[key]
	if found == nil {
		return nil, false
	}
	if now.Sub(found.used) > p.ttl && found.inflight == 0 {
		p.drop(found)
		return nil, true
	}
	return found, false
}

// set notes that a request of the key goes to slot, and says whether that is
// new.
func (p *pins) set(now time.Time, key pinKey, slot uint32) (at *pin, fresh bool) {
	at = p.byKey[key]
	switch {
	case at == nil:
		if len(p.byKey) >= p.limit {
			p.drop(p.oldest)
		}
		at, fresh = &pin{pinKey: key, slot: slot}, true
		p.byKey[key] = at
	case at.slot != slot:
		// Requests under way elsewhere keep the old pin.
		p.drop(at)
		at, fresh = &pin{pinKey: key, slot: slot}, true
		p.byKey[key] = at
	default:
		p.unlink(at)
	}
	at.used = now
	at.older = p.newest
	if p.newest != nil {
		p.newest.newer = at
	} else {
		p.oldest = at
	}
	p.newest = at
	return at, fresh
}

// drop forgets a pin, unless that happened before.
func (p *pins) drop(at *pin) {
	if p.byKey[at.pinKey] != at {
		return
	}
	delete(p.byKey, at.pinKey)
	p.unlink(at)
}

func (p *pins) unlink(at *pin) {
	if at.newer != nil {
		at.newer.older = at.older
	} else {
		p.newest = at.older
	}
	if at.older != nil {
		at.older.newer = at.newer
	} else {
		p.oldest = at.newer
	}
	at.newer, at.older = nil, nil
}

// stuckLocked returns the eligible replica a request is pinned to, or -1, and
// what to call the choice: of the pin, or of the policy in its place.
func (f *Fleet) stuckLocked(r *Request) (position int, origin Origin) {
	at, expired := f.pins.find(r.Now, pinKey{r.Sticky, r.Role})
	switch {
	case expired:
		return -1, OriginStickyStale
	case at == nil:
		return -1, OriginStickyNew
	}
	for _, i := range f.eligible {
		if f.ordered[i].slot != at.slot {
			continue
		}
		if f.considered[i].Saturated || at.inflight >= f.options.StickyInflight {
			return -1, OriginStickyRespill
		}
		return i, OriginStickyHit
	}
	return -1, OriginStickyStale
}

// pinLocked notes where a request with a sticky key goes.
func (f *Fleet) pinLocked(g *Guard, r *Request) {
	if r.Sticky == 0 {
		return
	}
	g.pin, g.pinned = f.pins.set(r.Now, pinKey{r.Sticky, r.Role}, g.member.slot)
	g.pin.inflight++
}

// unpinLocked takes a request from its pin. A pin that led to a failure, or
// that no request ever proved right, is dropped.
func (f *Fleet) unpinLocked(g *Guard, outcome Outcome) {
	if g.pin == nil {
		return
	}
	g.pin.inflight--
	if !g.answered && (outcome == Failed || outcome == Ignored && g.pinned) {
		f.pins.drop(g.pin)
	}
	g.pin = nil
}
