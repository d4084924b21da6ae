// SPDX-License-Identifier: Apache-2.0

package template

import (
	"errors"

	"github.com/inferencecache/inference-cache/internal/policy"
)

// ErrNotFound marks a reference to a template nobody delivered.
var ErrNotFound = errors.New("no such template")

// Set is a set of templates by reference. It never changes.
type Set struct {
	byRef map[string]compiled
}

type compiled struct {
	template *Template
	err      error
}

// NewSet compiles templates; of those with equal references a later one wins.
// Templates that cannot be used stay in the set with their fault.
func NewSet(lists ...[]policy.Template) *Set {
	s := &Set{byRef: make(map[string]compiled)}
	for _, list := range lists {
		for _, source := range list {
			template, err := Compile(source)
			s.byRef[source.Namespace+"/"+source.Name] = compiled{template, err}
		}
	}
	return s
}

// Len returns how many templates there are.
func (s *Set) Len() int { return len(s.byRef) }

// Find returns the template of a reference "namespace/name". The error is
// ErrNotFound, or what makes the template unusable.
func (s *Set) Find(ref string) (*Template, error) {
	found, ok := s.byRef[ref]
	if !ok {
		return nil, ErrNotFound
	}
	return found.template, found.err
}

// EachFault calls f with each template that cannot be used.
func (s *Set) EachFault(f func(ref string, err error)) {
	for ref, c := range s.byRef {
		if c.err != nil {
			f(ref, c.err)
		}
	}
}
