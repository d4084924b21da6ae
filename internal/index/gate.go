// SPDX-License-Identifier: Apache-2.0

package index

import (
	"runtime"
	"sync"
)

// gate is a lock for readers and a writer that hold it for microseconds. Waking
// a thread takes far longer, and while a writer that waits is woken no reader
// gets in, so both sides try for a while before they lie down.
type gate struct {
	mu  sync.RWMutex
	try bool
}

// Tries of both sides: some ten microseconds. A try of the writer costs more.
const (
	readTries  = 4_000
	writeTries = 500
)

// open makes the gate ready. With one processor trying gets nowhere.
func (g *gate) open() { g.try = runtime.GOMAXPROCS(0) > 1 }

func (g *gate) Lock() {
	for i := 0; g.try && i < writeTries; i++ {
		if g.mu.TryLock() {
			return
		}
	}
	g.mu.Lock()
}

func (g *gate) Unlock() { g.mu.Unlock() }

func (g *gate) RLock() {
	for i := 0; g.try && i < readTries; i++ {
		if g.mu.TryRLock() {
			return
		}
	}
	g.mu.RLock()
}

func (g *gate) RUnlock() { g.mu.RUnlock() }
