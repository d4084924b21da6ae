// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"slices"
	"sync"
)

// ringSize is the number of records kept in memory.
const ringSize = 1024

// ring keeps the latest records. It is safe for concurrent use; records do not
// change once they are in it.
type ring struct {
	mu      sync.Mutex
	records [ringSize]*Record
	next    int
}

func (g *ring) add(r *Record) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.records[g.next%ringSize] = r
	g.next++
}

// snapshot returns the records, oldest first.
func (g *ring) snapshot() []*Record {
	g.mu.Lock()
	defer g.mu.Unlock()
	records := make([]*Record, 0, min(g.next, ringSize))
	for i := max(0, g.next-ringSize); i < g.next; i++ {
		records = append(records, g.records[i%ringSize])
	}
	return records
}

// Requests returns the latest requests of which records are in memory, the
// latest last, at most limit of them. With a root id only its requests count.
// The records of a request are in the order they were made; the oldest request
// may have lost some.
func (r *Recorder) Requests(limit int, rootID string) [][]*Record {
	if r == nil {
		return nil
	}
	records := r.ring.snapshot()
	at := map[uint64]int{}
	var requests [][]*Record
	for _, record := range slices.Backward(records) {
		if rootID != "" && record.RootID != rootID {
			continue
		}
		i, known := at[record.request]
		if !known {
			if len(requests) == limit {
				continue
			}
			i = len(requests)
			at[record.request] = i
			requests = append(requests, nil)
		}
		requests[i] = append(requests[i], record)
	}
	slices.Reverse(requests)
	for _, group := range requests {
		slices.Reverse(group)
	}
	return requests
}
