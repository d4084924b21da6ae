// SPDX-License-Identifier: Apache-2.0

package server

import (
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// otherLabel stands for every name beyond a bound.
const otherLabel = "__other__"

const maxLabelBytes = 128

// labels bounds the values of one label. A name keeps its label once it has
// one.
type labels struct {
	max, maxUnknown int

	mu       sync.RWMutex
	admitted map[string]struct{} // guarded by mu
	unknown  int                 // admitted while unknown, guarded by mu
}

func newLabels(maxNames, maxUnknown int) *labels {
	return &labels{max: maxNames, maxUnknown: maxUnknown, admitted: make(map[string]struct{})}
}

// of returns the label of a name. known says that the name is more than a
// caller's claim.
func (l *labels) of(name string, known bool) string {
	if name == "" {
		return ""
	}
	l.mu.RLock()
	_, ok := l.admitted[name]
	full := len(l.admitted) >= l.max || !known && l.unknown >= l.maxUnknown
	l.mu.RUnlock()
	switch {
	case ok:
		return name
	case full || len(name) > maxLabelBytes || !printable(name):
		return otherLabel
	}
	return l.admit(name, known)
}

func (l *labels) admit(name string, known bool) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.admitted[name]; ok {
		return name
	}
	if len(l.admitted) >= l.max || !known && l.unknown >= l.maxUnknown {
		return otherLabel
	}
	if !known {
		l.unknown++
	}
	name = strings.Clone(name)
	l.admitted[name] = struct{}{}
	return name
}

func printable(name string) bool {
	if !utf8.ValidString(name) {
		return false
	}
	for _, r := range name {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}
