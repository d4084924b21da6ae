// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"slices"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/pkg/fingerprint"
)

// barred reports whether the request excludes a replica.
func (e *evaluation) barred(replica string) bool {
	_, among := slices.BinarySearch(e.request.Among, replica)
	return !among
}

// serving returns how many replicas serve the scope, as far as the request
// admits them.
func (e *evaluation) serving() int {
	if e.request.Among == nil {
		return e.view.Serving()
	}
	e.listCandidates(false, false)
	return len(e.candidates)
}

// keepAmong drops matches of replicas that the request excludes.
func (e *evaluation) keepAmong() {
	if e.request.Among != nil {
		e.matches = slices.DeleteFunc(e.matches, func(m index.Match) bool { return e.barred(m.Replica) })
	}
}

// listCandidates fills e.candidates.
func (e *evaluation) listCandidates(inPartition, forAffinity bool) {
	e.candidates = e.view.Candidates(e.candidates[:0], inPartition, forAffinity)
	if e.request.Among != nil {
		e.candidates = slices.DeleteFunc(e.candidates, func(c index.Candidate) bool { return e.barred(c.Replica) })
	}
}

// noteDeepest copies the last key that the best replica matched.
func (e *evaluation) noteDeepest() {
	last := int(e.out.Scores[0].MatchedBlocks) - 1
	if e.input.keys.Long != nil {
		e.out.DeepestKey = append(e.out.DeepestKey, e.input.keys.Long[last]...)
	} else {
		e.out.DeepestKey = fingerprint.AppendWire(e.out.DeepestKey, e.input.keys.Short[last])
	}
}
