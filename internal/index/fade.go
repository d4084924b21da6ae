// SPDX-License-Identifier: Apache-2.0

package index

import (
	"math"
	"sync/atomic"
)

// fading lets LFU counts halve with time without touching them: a credit of
// half-life e weighs 2^e, so that the order of counts stays what it is. A count
// is stored as the binary logarithm of its weight, as a fixed-point number with
// fadeBits behind the point, plus one before it so that 0 stands for none. The
// index knows a count above 300 only roughly: further credits vanish in
// rounding. Without a half-life counts are plain numbers.
type fading struct {
	halfLife int64 // milliseconds, 0 = counts never halve
	// start is the time of the first credit, 0 = none; half-lives count from
	// there.
	start atomic.Int64
}

const fadeBits = 8

// epoch returns the half-lives up to a time.
func (f *fading) epoch(now int64) int64 {
	if f.halfLife <= 0 {
		return 0
	}
	return max(now-f.start.Load(), 0) / f.halfLife
}

// credited returns the half-life of a credit.
func (f *fading) credited(now int64) int64 {
	if f.halfLife > 0 {
		f.start.CompareAndSwap(0, now)
	}
	return f.epoch(now)
}

// next returns when the running half-life ends.
func (f *fading) next(now int64) int64 {
	if f.halfLife <= 0 {
		return math.MaxInt64
	}
	return f.start.Load() + (f.epoch(now)+1)*f.halfLife
}

// one is the count of a single credit in a half-life, and the least that is not
// forgotten in it.
func one(epoch int64) uint32 { return uint32(min((epoch+1)<<fadeBits, maxCredits)) }

// add returns a count with one more credit.
func (f *fading) add(count uint32, epoch int64) uint32 {
	if f.halfLife <= 0 {
		return min(count+1, maxCredits)
	}
	least := one(epoch)
	if count < least {
		return least
	}
	const unit = 1 << fadeBits
	grown := math.Log2(1 + math.Exp2(-float64(count-least)/unit))
	return min(count+uint32(math.Round(grown*unit)), maxCredits)
}

// fadeBy sees to it that counts are looked at by a time.
func (s *scope) fadeBy(millis int64) {
	for {
		at := s.fadeAt.Load()
		if at <= millis || s.fadeAt.CompareAndSwap(at, millis) {
			return
		}
	}
}

// fade gives what has halved to nothing its place among the uncounted in the
// order of the cap. It looks at each set once a half-life. The write lock is
// held.
func (s *scope) fade(now int64) {
	f := &s.x.fading
	if s.fadeAt.Load() > now || f.halfLife <= 0 {
		return
	}
	s.fadeAt.Store(math.MaxInt64)
	least, counted := one(f.epoch(now)), false
	for _, p := range s.parts {
		if !p.lfu {
			continue
		}
		p.faded = least
		for _, id := range p.evict.all(&p.sets) {
			r := p.record(id)
			if r.flags()&flagCounted != 0 {
				p.requeue(&p.evict, id, p.ranks(r).evict)
				counted = true
			}
		}
		s.x.evictor.offer(p)
	}
	if counted {
		s.fadeBy(f.next(now))
	}
}
