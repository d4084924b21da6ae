// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Bounds of a record. Totals are published whatever the bounds cut off.
const (
	MaxSelections = 16
	MaxCandidates = 32
	MaxGates      = 32
	MaxScores     = 64
	MaxEngineIDs  = 32

	MaxRootIDBytes   = 128
	MaxCallerIDBytes = 128
	MaxEngineIDBytes = 192
	MaxReplicaBytes  = 256
	MaxTextBytes     = 256
)

// Cut shortens text to at most limit bytes, at the boundary of a character.
func Cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	end := limit
	for end > limit-utf8.UTFMax && end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return strings.Clone(text[:end])
}

// first orders what is kept of a list that is too long: the chosen replica,
// then the one with the best overlap, then the rest.
func (c *Choice) first(replica, best Text) int {
	switch replica {
	case "":
		return 2
	case c.Replica:
		return 0
	case best:
		return 1
	default:
		return 2
	}
}

// overlapOf orders candidates; an unknown overlap is below none.
func overlapOf(c *Candidate) int {
	if !c.OverlapBlocks.Known {
		return -1
	}
	return c.OverlapBlocks.Value
}

// bestReplica returns the candidate with the best overlap; earlier ones win.
func bestReplica(candidates []Candidate) Text {
	best, overlap := Text(""), 0
	for i := range candidates {
		if o := overlapOf(&candidates[i]); o > overlap {
			best, overlap = candidates[i].Replica, o
		}
	}
	return best
}

// bound cuts the lists of a closed selection and says which were too long.
func (c *Choice) bound() (cut Truncated) {
	best := bestReplica(c.Candidates)
	c.CandidatesTotal = max(c.CandidatesTotal, len(c.Candidates))
	if len(c.Candidates) > MaxCandidates {
		slices.SortStableFunc(c.Candidates, func(a, b Candidate) int {
			return cmp.Or(cmp.Compare(c.first(a.Replica, best), c.first(b.Replica, best)),
				cmp.Compare(overlapOf(&b), overlapOf(&a)))
		})
		c.Candidates = c.Candidates[:MaxCandidates:MaxCandidates]
	}
	if len(c.Gates) > MaxGates {
		slices.SortStableFunc(c.Gates, func(a, b Gate) int {
			return cmp.Or(cmp.Compare(c.first(a.Replica, best), c.first(b.Replica, best)), cmp.Compare(rank(a.Pass), rank(b.Pass)))
		})
		c.Gates, cut.Gates = c.Gates[:MaxGates:MaxGates], true
	}
	if len(c.Scores) > MaxScores {
		slices.SortStableFunc(c.Scores, func(a, b Score) int {
			return cmp.Compare(c.first(a.Replica, best), c.first(b.Replica, best))
		})
		c.Scores, cut.Scores = c.Scores[:MaxScores:MaxScores], true
	}
	cut.Candidates = c.CandidatesTotal > len(c.Candidates)
	c.CandidatesComplete = !cut.Candidates
	c.boundTexts()
	return cut
}

// rank puts failed gates before passed ones.
func rank(pass bool) int {
	if pass {
		return 1
	}
	return 0
}

func (c *Choice) boundTexts() {
	for _, text := range []*string{&c.Policy, &c.Origin, &c.LoadSource, &c.EligibilityScope, &c.TieBreak} {
		*text = Cut(*text, MaxTextBytes)
	}
	c.DelegatedTo = cutText(c.DelegatedTo, MaxTextBytes)
	c.Replica = cutText(c.Replica, MaxReplicaBytes)
	if p := c.Prediction; p != nil {
		for _, text := range []*string{&p.Source, &p.Branch, &p.HashScheme, &p.Adapter} {
			*text = Cut(*text, MaxTextBytes)
		}
		p.ReasonCode, p.Note, p.Tier = cutText(p.ReasonCode, MaxTextBytes), cutText(p.Note, MaxTextBytes), cutText(p.Tier, MaxTextBytes)
	}
	for i := range c.Candidates {
		c.Candidates[i].Replica = cutText(c.Candidates[i].Replica, MaxReplicaBytes)
		c.Candidates[i].CacheEpoch = cutText(c.Candidates[i].CacheEpoch, MaxTextBytes)
	}
	for i := range c.Gates {
		c.Gates[i].Replica = cutText(c.Gates[i].Replica, MaxReplicaBytes)
	}
	for i := range c.Scores {
		c.Scores[i].Replica = cutText(c.Scores[i].Replica, MaxReplicaBytes)
	}
}

func cutText(text Text, limit int) Text { return Text(Cut(string(text), limit)) }

// boundIDs returns the ids to record and whether some are left out.
func boundIDs(ids []EngineID) (kept []EngineID, cut bool) {
	cut = len(ids) > MaxEngineIDs
	kept = append(make([]EngineID, 0, min(len(ids), MaxEngineIDs)), ids[:min(len(ids), MaxEngineIDs)]...)
	for i := range kept {
		kept[i].ID = Cut(kept[i].ID, MaxEngineIDBytes)
		kept[i].Parent = Cut(kept[i].Parent, MaxEngineIDBytes)
	}
	return kept, cut
}
