// SPDX-License-Identifier: Apache-2.0

package gateway

import "testing"

func TestSight(t *testing.T) {
	key := modelKey{"tenant", "model"}
	cases := map[string]struct {
		answers []string
		want    bool
	}{
		"never asked":                      {nil, false},
		"too few to tell":                  {repeat("UNKNOWN_MODEL", blindAfter-1), false},
		"always unknown":                   {repeat("UNKNOWN_TENANT", blindAfter), true},
		"a known key in between":           {append(repeat("UNKNOWN_MODEL", blindAfter-1), "NO_HINT", "UNKNOWN_MODEL"), false},
		"no hint does not restore sight":   {append(repeat("UNKNOWN_MODEL", blindAfter), "NO_HINT"), true},
		"one match does":                   {append(repeat("UNKNOWN_MODEL", blindAfter), "PREFIX_MATCH"), false},
		"answers of an index that sees it": {repeat("AFFINITY_HINT", 2*blindAfter), false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s, began := newSight(), 0
			for _, answer := range tc.answers {
				if _, now := s.note(key, answer); now {
					began++
				}
			}
			if got := s.blindModels() == 1; got != tc.want || began > 1 {
				t.Errorf("blind %v after it began %d times, want %v", got, began, tc.want)
			}
		})
	}
}

func repeat(answer string, n int) []string {
	answers := make([]string, n)
	for i := range answers {
		answers[i] = answer
	}
	return answers
}
