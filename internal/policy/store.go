// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"sync/atomic"
	"time"
)

// Store holds the view in force. Readers never wait; a swap replaces policies
// and quotas in one step.
type Store struct {
	serverTTL time.Duration
	current   atomic.Pointer[View]
}

// NewStore returns a store without policies. serverTTL of 0 or below means
// DefaultTTL.
func NewStore(serverTTL time.Duration) *Store {
	store := &Store{serverTTL: serverTTL}
	store.Replace(nil, nil)
	return store
}

// View returns the view in force. Take it once per decision.
func (s *Store) View() *View { return s.current.Load() }

// Replace puts a full new set in force and returns it. Whatever is absent
// reverts to the defaults.
func (s *Store) Replace(policies []Declared, quotas []Quota) *View {
	view := NewView(s.serverTTL, policies, quotas)
	s.current.Store(view)
	return view
}
