// SPDX-License-Identifier: Apache-2.0

package index

import (
	"sync"
	"sync/atomic"
)

// byteCount is the index's own account of its memory.
type byteCount struct {
	table, arena, names, stats atomic.Int64

	// The memory bound. Freed room is used again but not at once given back,
	// so bytes above the bound turn into a bound of memberships: what fits,
	// lowered whenever bytes grew further.
	mu    sync.Mutex
	fits  int64 // 0 = no bound
	bytes int64 // when fits was set
}

// add changes the account.
func (b *byteCount) add(d Bytes) {
	if d.Table != 0 {
		b.table.Add(d.Table)
	}
	if d.Arena != 0 {
		b.arena.Add(d.Arena)
	}
	if d.Names != 0 {
		b.names.Add(d.Names)
	}
	if d.Stats != 0 {
		b.stats.Add(d.Stats)
	}
}

func (b *byteCount) load() Bytes {
	return Bytes{Table: b.table.Load(), Arena: b.arena.Load(), Names: b.names.Load(), Stats: b.stats.Load()}
}

// excess returns how many of the memberships are too many for a bound.
func (b *byteCount) excess(bound, memberships int64) int64 {
	used := b.load().Total()
	bound -= bound / 16 // memory grows by pieces
	b.mu.Lock()
	defer b.mu.Unlock()
	if used <= bound {
		b.fits, b.bytes = 0, 0
		return 0
	}
	if b.fits == 0 || used > b.bytes {
		over := float64(used-bound) / float64(used)
		b.fits = memberships - int64(float64(memberships)*max(over, 1.0/64)) - 1
		b.bytes = used
	}
	return memberships - b.fits
}

// settled brings the account of a partition up to date and returns the change.
func (p *partition) settled() Bytes {
	now, was := p.bytes(), p.accounted
	p.accounted = now
	return Bytes{
		Table: now.Table - was.Table, Arena: now.Arena - was.Arena,
		Names: now.Names - was.Names, Stats: now.Stats - was.Stats,
	}
}

func (p *partition) settle() {
	p.trim()
	p.scope.x.bytes.add(p.settled())
}

// trim gives the memory of an empty partition back.
func (p *partition) trim() {
	if p.sets.live > 0 || p.sets.next == 0 {
		return
	}
	x := p.scope.x
	short, long := p.short, p.long
	p.scope.exclusive("clear", func() {
		p.sets, p.names = arena{}, arena{}
		p.short, p.long = newTable(&x.slabs), newTable(&x.slabs)
	})
	short.release()
	long.release()
	p.intern.release()
	p.logs, p.intern, p.owners = arena{}, newTable(&x.slabs), nil
	p.newQueues(p.fresh.idle)
	p.trims++
}
