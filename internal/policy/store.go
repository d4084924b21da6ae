// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"sync"
	"sync/atomic"
	"time"
)

// Store holds the view in force. Readers never wait; a replacement swaps
// policies and quotas in one step.
type Store struct {
	serverTTL time.Duration
	current   atomic.Pointer[View]

	mu         sync.Mutex
	snapshot   *Snapshot     // guarded by mu
	extensions *ExtensionSet // guarded by mu
	enforce    func(*View)   // guarded by mu
}

// NewStore returns a store without policies. serverTTL of 0 or below means
// DefaultTTL.
func NewStore(serverTTL time.Duration) *Store {
	s := &Store{serverTTL: serverTTL, snapshot: new(Snapshot), extensions: new(ExtensionSet), enforce: func(*View) {}}
	s.current.Store(NewView(serverTTL, s.snapshot, s.extensions))
	return s
}

// View returns the view in force. Take it once per decision.
func (s *Store) View() *View { return s.current.Load() }

// Enforce calls f with the view in force and from now on with each new one, in
// order and before Replace returns. f must not call Enforce or Replace.
func (s *Store) Enforce(f func(*View)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.enforce = f
	f(s.View())
}

// Replace puts a snapshot in force in place of the one before, and returns the
// views before and after. The store keeps the snapshot.
func (s *Store) Replace(snapshot *Snapshot) (before, after *View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.snapshot = snapshot
	return s.swapLocked()
}

// ReplaceExtensions does the same with extensions.
func (s *Store) ReplaceExtensions(extensions *ExtensionSet) (before, after *View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.extensions = extensions
	return s.swapLocked()
}

func (s *Store) swapLocked() (before, after *View) {
	after = NewView(s.serverTTL, s.snapshot, s.extensions)
	before = s.current.Swap(after)
	s.enforce(after)
	return before, after
}
