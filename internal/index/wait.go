// SPDX-License-Identifier: Apache-2.0

package index

import (
	"math/rand/v2"
	"time"
)

// WaitSide says who waited for a lock of the index.
type WaitSide uint8

// Sides. A reader waits for a commit; a writer for another writer of its
// scope, then for the readers before each commit.
const (
	WaitRead WaitSide = iota
	WaitWrite
)

// waitSample is one in how many waits Config.ObserveWait is told of; a power
// of two.
const waitSample = 64

// waitBegin returns the time at which a wait that is looked at begins, zero for
// the others.
func (x *Index) waitBegin() (begin time.Time) {
	if x.cfg.ObserveWait != nil && rand.Uint32()%waitSample == 0 {
		begin = time.Now()
	}
	return begin
}

// waited ends a wait.
func (x *Index) waited(side WaitSide, begin time.Time) {
	if !begin.IsZero() {
		x.cfg.ObserveWait(side, time.Since(begin))
	}
}
