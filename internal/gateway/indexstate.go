// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"strings"
	"sync"

	"github.com/inferencecache/inference-cache/internal/routing"
)

// blindAfter is the number of lookups in a row that the index answers with
// unknown keys before it counts as blind for a model.
const blindAfter = 20

// sight tells for which models the index sees nothing although prompts keep
// coming: publishers are silent or use other keys. It is safe for concurrent
// use and bounded by the models of the replicas.
type sight struct {
	mu sync.Mutex
	// unknown counts answers in a row, blind are the models beyond blindAfter
	// and without a match since.
	unknown map[modelKey]int
	blind   map[modelKey]bool
}

type modelKey struct{ tenant, model string }

func newSight() *sight { return &sight{unknown: map[modelKey]int{}, blind: map[modelKey]bool{}} }

// note takes an answer and says whether the index is blind for the model, and
// whether that just began.
func (s *sight) note(key modelKey, reason string) (blind, began bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !strings.HasPrefix(reason, "UNKNOWN_") {
		delete(s.unknown, key)
		if reason == routing.ReasonPrefixMatch {
			delete(s.blind, key)
		}
		return s.blind[key], false
	}
	s.unknown[key] = min(s.unknown[key]+1, blindAfter)
	if s.unknown[key] < blindAfter || s.blind[key] {
		return s.blind[key], false
	}
	s.blind[key] = true
	return true, true
}

// blindModels counts the models the index is blind for.
func (s *sight) blindModels() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.blind)
}
