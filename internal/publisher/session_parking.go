// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"slices"

	"github.com/inferencecache/inference-cache/internal/kvevents"
)

// parkingLot holds stores whose parent is unknown, oldest first, up to a
// number of blocks.
type parkingLot struct {
	maxBlocks, blocks, runs int
	byParent                map[uint64][]*parkedRun
	byHash                  map[uint64][]parkedBlock
	queue                   []*parkedRun // with some that are done
}

type parkedRun struct {
	storedRun
	left int // blocks not removed meanwhile
	done bool
}

type parkedBlock struct {
	run   *parkedRun
	index int
}

func newParkingLot(maxBlocks int) parkingLot {
	return parkingLot{
		maxBlocks: maxBlocks,
		byParent:  map[uint64][]*parkedRun{}, byHash: map[uint64][]parkedBlock{},
	}
}

func (l *parkingLot) events() int { return l.runs }

func (l *parkingLot) add(r *storedRun) {
	run := &parkedRun{storedRun: *r, left: len(r.hashes)}
	run.hashes, run.contents = slices.Clone(r.hashes), slices.Clone(r.contents)
	run.gone = make([]bool, len(r.hashes))
	l.byParent[r.parent] = append(l.byParent[r.parent], run)
	for i, hash := range run.hashes {
		l.byHash[hash] = append(l.byHash[hash], parkedBlock{run, i})
	}
	l.queue = append(l.queue, run)
	l.blocks += len(run.hashes)
	l.runs++
}

// oldest returns the run that waits longest, nil when there is none.
func (l *parkingLot) oldest() *parkedRun {
	for len(l.queue) > 0 && l.queue[0].done {
		l.queue[0] = nil
		l.queue = l.queue[1:]
	}
	if len(l.queue) == 0 {
		return nil
	}
	return l.queue[0]
}

func (l *parkingLot) remove(run *parkedRun) {
	run.done = true
	l.blocks -= len(run.hashes)
	l.runs--
	without(l.byParent, run.parent, func(r *parkedRun) bool { return r == run })
	for _, hash := range run.hashes {
		without(l.byHash, hash, func(b parkedBlock) bool { return b.run == run })
	}
	if len(l.queue) > 2*l.runs+64 {
		l.queue = slices.DeleteFunc(l.queue, func(r *parkedRun) bool { return r.done })
	}
}

func without[T any](lists map[uint64][]T, at uint64, match func(T) bool) {
	if rest := slices.DeleteFunc(lists[at], match); len(rest) > 0 {
		lists[at] = rest
	} else {
		delete(lists, at)
	}
}

// park keeps a run until its parent comes. The oldest make room for it.
func (s *Session) park(r *storedRun) outcome {
	if len(r.hashes) > s.parked.maxBlocks {
		return skip(kvevents.ReasonUnknownParent)
	}
	for s.parked.blocks+len(r.hashes) > s.parked.maxBlocks {
		s.parked.remove(s.parked.oldest())
		s.tally.skipped[kvevents.ReasonUnknownParent]++
	}
	s.parked.add(r)
	return outcome{verb: outcomePark, why: string(kvevents.ReasonUnknownParent)}
}

// unpark chains the runs that waited for one of these hashes, then those that
// waited for them, in order.
func (s *Session) unpark(hashes []uint64) {
	if s.parked.runs == 0 {
		return
	}
	arrived := slices.Clone(hashes)
	for len(arrived) > 0 {
		waiting := slices.Clone(s.parked.byParent[arrived[0]])
		arrived = arrived[1:]
		for _, run := range waiting {
			result := s.chain(&run.storedRun)
			if result.verb == outcomePark {
				continue
			}
			s.parked.remove(run)
			s.tally.count(result)
			if result.added() {
				arrived = append(arrived, run.hashes...)
			}
		}
	}
}

// cancelParked takes a removed block out of the runs that wait, so that it is
// not taken for a holding later.
func (s *Session) cancelParked(hash uint64, e *kvevents.Event) (known bool) {
	if s.parked.runs == 0 {
		return false
	}
	for _, block := range slices.Clone(s.parked.byHash[hash]) {
		run := block.run
		if run.gone[block.index] || run.tier != e.Tier || e.HasGroup && run.group != groupOf(e) {
			continue
		}
		known = true
		run.gone[block.index] = true
		if run.left--; run.left == 0 {
			s.parked.remove(run)
			s.tally.noOps++
		}
		if s.config.Copies == CopiesEach {
			break
		}
	}
	return known
}

// dropParked gives up on everything that waits.
func (s *Session) dropParked() {
	if s.parked.runs == 0 {
		return
	}
	s.tally.skipped[kvevents.ReasonUnknownParent] += uint64(s.parked.runs)
	s.parked = newParkingLot(s.config.ParkedBlocks)
}
