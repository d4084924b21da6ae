// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"sync"

	"github.com/inferencecache/inference-cache/internal/controlclient"
)

// Rows remembers which replicas the last poll found in the index. It is safe
// for concurrent use; a nil Rows knows nothing.
type Rows struct {
	mu       sync.Mutex
	polled   bool
	byTenant map[string]map[string]bool
}

// Set takes what a poll found. Each replica stands under its own id and, of an
// engine of several ranks, under its pod's name.
func (r *Rows) Set(snapshot *controlclient.Snapshot) {
	next := make(map[string]map[string]bool)
	for _, row := range snapshot.Replicas {
		if next[row.Tenant] == nil {
			next[row.Tenant] = make(map[string]bool)
		}
		pod, _, _ := strings.Cut(row.ReplicaID, "#")
		next[row.Tenant][row.ReplicaID], next[row.Tenant][pod] = true, true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.polled, r.byTenant = true, next
}

// of returns the ids in a namespace, which must not be changed: nil before the
// first poll.
func (r *Rows) of(namespace string) map[string]bool {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.polled && r.byTenant[namespace] == nil {
		return map[string]bool{}
	}
	return r.byTenant[namespace]
}
