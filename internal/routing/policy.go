// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// Policy chooses among eligible replicas. Choose runs under the fleet's lock:
// it must not block, and must not keep the selection. A policy may have a
// memory of its own, so each fleet needs its own instance.
type Policy interface {
	Name() string
	Choose(*Selection) Choice
}

// Choice is a policy's answer. Index is a position from 0 to
// Selection.Len()-1.
type Choice struct {
	Index    int
	Origin   Origin
	Branch   Branch
	Source   Source
	TieBreak TieBreak
	// GivenUpTokens are computed again for the sake of an even load.
	GivenUpTokens int
	// Passed is the holder that a spill gave up, if it was not saturated.
	Passed PassedOver
}

// Selection is what a policy sees: at least one eligible replica, sorted by
// id.
type Selection struct {
	Request *Request
	Rand    *rand.Rand
	// SparableTokens bounds Choice.GivenUpTokens.
	SparableTokens int

	meanRequests float64
	someYoung    bool
	scratch      []int
	candidates   []Candidate
	eligible     []int
}

// Len returns the number of eligible replicas.
func (s *Selection) Len() int { return len(s.eligible) }

// At returns eligible replica i.
func (s *Selection) At(i int) *Candidate { return &s.candidates[s.eligible[i]] }

// PolicyOptions configure the policies. The zero value works.
type PolicyOptions struct {
	// ToleratedTTFT as in Options. Default 2 s.
	ToleratedTTFT time.Duration
	// StickyMargin scales how much longer a request may wait for the replica
	// that holds its prefix. Default 1.
	StickyMargin float64
	// Fallback names the policy for requests without a usable hint:
	// approx (own placements, then least_load) or any other policy but hint.
	// Default approx.
	Fallback string
}

// Names of the policies.
const (
	PolicyHint           = "hint"
	PolicyApprox         = "approx"
	PolicyRoundRobin     = "round_robin"
	PolicyRandom         = "random"
	PolicyLeastLoad      = "least_load"
	PolicyPowerOfTwo     = "power_of_two"
	PolicyConsistentHash = "consistent_hash"
	PolicyPrefixHash     = "prefix_hash"
)

// PolicyNames lists the names NewPolicy knows.
func PolicyNames() []string {
	return []string{PolicyHint, PolicyApprox, PolicyRoundRobin, PolicyRandom, PolicyLeastLoad, PolicyPowerOfTwo,
		PolicyConsistentHash, PolicyPrefixHash}
}

// NewPolicy returns a new instance of the named policy. An empty name is hint.
func NewPolicy(name string, options PolicyOptions) (Policy, error) {
	switch name {
	case "", PolicyHint:
		if _, err := newMissPolicy(options.Fallback); err != nil {
			return nil, fmt.Errorf("fallback policy: %w", err)
		}
		return newHint(options), nil
	case PolicyApprox:
		options.Fallback = PolicyApprox
		return approx{newHint(options)}, nil
	default:
		return newFallback(name)
	}
}

// newMissPolicy returns the policy for prompts nobody holds. Where least_load
// would leave it to chance, the replica that was given least lately gets them:
// early placements decide where later requests go.
func newMissPolicy(name string) (Policy, error) {
	if name == "" || name == PolicyApprox || name == PolicyLeastLoad {
		return leastGiven{}, nil
	}
	return newFallback(name)
}

func newFallback(name string) (Policy, error) {
	switch name {
	case PolicyRoundRobin:
		return &roundRobin{}, nil
	case PolicyRandom:
		return random{}, nil
	case PolicyLeastLoad, "":
		return leastLoad{}, nil
	case PolicyPowerOfTwo:
		return powerOfTwo{}, nil
	case PolicyConsistentHash:
		return &ring{name: name, blocks: 1, bySticky: true}, nil
	case PolicyPrefixHash:
		return &ring{name: name, blocks: prefixHashBlocks}, nil
	default:
		return nil, fmt.Errorf("unknown policy %q: expected one of %s", name, strings.Join(PolicyNames(), ", "))
	}
}

// byPolicy is a choice that rests on no cache evidence.
func byPolicy(index int, tie TieBreak) Choice {
	return Choice{Index: index, Origin: OriginPolicy, Branch: BranchNone, Source: SourceNone, TieBreak: tie}
}

type roundRobin struct{ next uint64 }

func (*roundRobin) Name() string { return PolicyRoundRobin }

func (p *roundRobin) Choose(s *Selection) Choice {
	index := int(p.next % uint64(s.Len()))
	p.next++
	return byPolicy(index, TieNone)
}

type random struct{}

func (random) Name() string { return PolicyRandom }

func (random) Choose(s *Selection) Choice {
	return byPolicy(s.Rand.IntN(s.Len()), TieRandom)
}

type leastLoad struct{}

func (leastLoad) Name() string { return PolicyLeastLoad }

func (leastLoad) Choose(s *Selection) Choice {
	index, tie := s.leastWait(func(*Candidate) bool { return true })
	return byPolicy(index, tie)
}

type leastGiven struct{}

func (leastGiven) Name() string { return PolicyLeastLoad }

func (leastGiven) Choose(s *Selection) Choice {
	equals := s.leastGiven()
	if len(equals) == 1 {
		return byPolicy(equals[0], TieLoad)
	}
	return byPolicy(equals[s.Rand.IntN(len(equals))], TieRandom)
}

type powerOfTwo struct{}

func (powerOfTwo) Name() string { return PolicyPowerOfTwo }

func (powerOfTwo) Choose(s *Selection) Choice {
	if s.Len() == 1 {
		return byPolicy(0, TieNone)
	}
	first := s.Rand.IntN(s.Len())
	second := s.Rand.IntN(s.Len() - 1)
	if second >= first {
		second++
	}
	if s.At(second).WaitSeconds < s.At(first).WaitSeconds {
		first = second
	}
	return byPolicy(first, TieRandom)
}

// tieSeconds is the difference in waiting time that counts as none.
const tieSeconds = 0.001

// leastWait returns a replica with the least wait among those that admit
// accepts, uniformly among ties, or -1 if it accepts none.
func (s *Selection) leastWait(admit func(*Candidate) bool) (int, TieBreak) {
	least, found := 0.0, false
	for i := range s.eligible {
		if c := s.At(i); admit(c) && (!found || c.WaitSeconds < least) {
			least, found = c.WaitSeconds, true
		}
	}
	if !found {
		return -1, TieNone
	}
	chosen, ties := -1, 0
	for i := range s.eligible {
		c := s.At(i)
		if !admit(c) || c.WaitSeconds > least+tieSeconds {
			continue
		}
		ties++
		if s.Rand.IntN(ties) == 0 {
			chosen = i
		}
	}
	if ties > 1 {
		return chosen, TieRandom
	}
	return chosen, TieNone
}

// leastGiven returns the replicas that were given the fewest requests lately
// among those with the least wait. The slice is valid until the next call.
func (s *Selection) leastGiven() []int {
	admitted := s.minWait() + tieSeconds
	equals, fewest := s.scratch[:0], 0.0
	for i := range s.eligible {
		c := s.At(i)
		switch {
		case c.WaitSeconds > admitted || len(equals) > 0 && c.Requests > fewest:
			continue
		case len(equals) > 0 && c.Requests < fewest:
			equals = equals[:0]
		}
		equals, fewest = append(equals, i), c.Requests
	}
	s.scratch = equals
	return equals
}

// minWait returns the least wait of all eligible replicas.
func (s *Selection) minWait() float64 {
	least := s.At(0).WaitSeconds
	for i := 1; i < s.Len(); i++ {
		least = min(least, s.At(i).WaitSeconds)
	}
	return least
}
