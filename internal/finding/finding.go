// SPDX-License-Identifier: Apache-2.0

// Package finding keeps what a running process knows to be wrong: a short list
// for people, each entry with what to do about it.
package finding

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Code names a kind of finding.
type Code string

// Codes.
const (
	// ParityFailed: an engine's blocks do not appear under our keys.
	ParityFailed Code = "parity_failed"
	// CountMismatch: engines count other numbers of prompt tokens.
	CountMismatch Code = "parity_count"
	// EventsMissing: blocks of one replica, or of a whole model, do not reach
	// the index.
	EventsMissing Code = "events_missing"
	// BlockSizeMismatch: sources disagree about the block size.
	BlockSizeMismatch Code = "block_size_mismatch"
	// BlockSizeUnknown: nobody tells the block size.
	BlockSizeUnknown Code = "block_size_unknown"
	// TokenizerDown: the tokenizer keeps failing.
	TokenizerDown Code = "tokenizer_unavailable"
	// ReplicaDishonest: an engine has less than half of what the index claims.
	ReplicaDishonest Code = "replica_dishonest"
)

// Codes lists all codes.
func Codes() []Code {
	return []Code{ParityFailed, CountMismatch, EventsMissing, BlockSizeMismatch, BlockSizeUnknown, TokenizerDown, ReplicaDishonest}
}

// Finding is one thing that is wrong. No member holds data of requests.
type Finding struct {
	Code Code `json:"code"`
	// What is wrong, Where (a model, a replica), and the Action to take.
	What   string `json:"what"`
	Where  string `json:"where"`
	Action string `json:"action"`
	// Since is when it was first seen, Seen when last; Count is how often.
	Since time.Time `json:"since"`
	Seen  time.Time `json:"seen"`
	Count int64     `json:"count"`
}

// maxOpen bounds the open findings of a List.
const maxOpen = 256

// List holds the open findings, one for each code and place. The zero value is
// ready to use, and safe for concurrent use.
type List struct {
	mu   sync.Mutex
	open map[key]Finding
}

type key struct {
	code  Code
	where string
}

// Raise opens a finding or notes that it is still there, and says whether it
// is new. Beyond a bound new ones are dropped.
func (l *List) Raise(f Finding, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := key{f.Code, f.Where}
	known, again := l.open[k]
	if !again && len(l.open) >= maxOpen {
		return false
	}
	if l.open == nil {
		l.open = map[key]Finding{}
	}
	f.Since, f.Seen, f.Count = now, now, known.Count+1
	if again {
		f.Since = known.Since
	}
	l.open[k] = f
	return !again
}

// Clear closes a finding and says whether it was open.
func (l *List) Clear(code Code, where string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := key{code, where}
	_, open := l.open[k]
	delete(l.open, k)
	return open
}

// Open returns the open findings by code and place. It is never nil.
func (l *List) Open() []Finding {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]Finding, 0, len(l.open))
	for _, f := range l.open {
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Code, b.Code), cmp.Compare(a.Where, b.Where))
	})
	return out
}

// Count returns the number of open findings by code; all codes are there.
func (l *List) Count() map[Code]int {
	counts := map[Code]int{}
	for _, code := range Codes() {
		counts[code] = 0
	}
	for _, f := range l.Open() {
		counts[f.Code]++
	}
	return counts
}
