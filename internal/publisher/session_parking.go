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

func (l *parkingLot) add(r *storedRun) {
	run := &parkedRun{storedRun: *r, left: len(r.hashes)}
	run.hashes, run.contents = slices.Clone(r.hashes), slices.Clone(r.contents)
	run.gone = make([]bool, len(r.hashes))
	l.putBack(run)
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

// waiting takes the runs that wait for a parent out of their list; the caller
// puts back or removes each.
func (l *parkingLot) waiting(parent uint64) []*parkedRun {
	runs := l.byParent[parent]
	delete(l.byParent, parent)
	return runs
}

func (l *parkingLot) putBack(run *parkedRun) {
	l.byParent[run.parent] = append(l.byParent[run.parent], run)
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

// without takes what matches out of a list. The oldest go first as a rule, so
// the front is cheap.
func without[T any](lists map[uint64][]T, at uint64, match func(T) bool) {
	list := lists[at]
	for len(list) > 0 && match(list[0]) {
		list = list[1:]
	}
	if i := slices.IndexFunc(list, match); i > 0 {
		list = slices.DeleteFunc(list, match)
	}
	if len(list) > 0 {
		lists[at] = list
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
		waiting := s.parked.waiting(arrived[0])
		arrived = arrived[1:]
		for _, run := range waiting {
			result := s.chain(&run.storedRun)
			if result.verb == outcomePark {
				s.parked.putBack(run)
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
