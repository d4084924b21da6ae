// SPDX-License-Identifier: Apache-2.0

package routing

import "time"

const (
	// outlierWindow is cut into outlierBuckets pieces.
	outlierWindow  = 30 * time.Second
	outlierBuckets = 6
	// outlierRequests is the smallest sample a replica is judged by.
	outlierRequests = 10
	// A replica is an outlier when its failures exceed this share of its
	// requests and this multiple of the share of the others.
	outlierShare    = 0.1
	outlierMultiple = 3
	// ejectedFor is how long an outlier gets no requests.
	ejectedFor = 30 * time.Second
)

// record counts the outcomes of a replica's latest requests.
type record struct {
	buckets [outlierBuckets]struct {
		number        int64
		total, failed int
	}
}

func (o *record) note(now time.Time, failed bool) {
	number := now.UnixNano() / int64(outlierWindow/outlierBuckets)
	b := &o.buckets[number%outlierBuckets]
	if b.number != number {
		b.number, b.total, b.failed = number, 0, 0
	}
	b.total++
	if failed {
		b.failed++
	}
}

func (o *record) sum(now time.Time) (total, failed int) {
	oldest := now.UnixNano()/int64(outlierWindow/outlierBuckets) - outlierBuckets
	for i := range o.buckets {
		if b := &o.buckets[i]; b.number > oldest {
			total, failed = total+b.total, failed+b.failed
		}
	}
	return total, failed
}

// judgeLocked ejects a replica that fails far more often than the others, but
// never more than half of the fleet. It says whether it did.
func (f *Fleet) judgeLocked(m *member, now time.Time) bool {
	total, failed := m.record.sum(now)
	share := float64(failed) / float64(max(total, 1))
	if total < outlierRequests || share <= outlierShare || !f.isMemberLocked(m) {
		return false
	}
	others, othersFailed, ejected := 0, 0, 1
	for _, other := range f.ordered {
		if other == m {
			continue
		}
		if now.Before(other.ejectedUntil) {
			ejected++
		}
		t, n := other.record.sum(now)
		others, othersFailed = others+t, othersFailed+n
	}
	if 2*ejected > len(f.ordered) || others < outlierRequests || share <= outlierMultiple*float64(othersFailed)/float64(max(others, 1)) {
		return false
	}
	m.ejectedUntil = now.Add(ejectedFor)
	m.breaker.Trip(m.ejectedUntil)
	m.record = record{}
	return true
}

// isMemberLocked says whether the fleet still has the replica.
func (f *Fleet) isMemberLocked(m *member) bool { return f.bySlot[m.slot] == m }
