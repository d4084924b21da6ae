// SPDX-License-Identifier: Apache-2.0

package auth

import "strings"

// everyName in a list stands for all names.
const everyName = "*"

// Names is a set of names; its zero value is empty. It is immutable.
type Names struct {
	all   bool
	names map[string]struct{}
}

// NewNames returns the set of some names, in which "*" stands for all names.
func NewNames(names ...string) Names {
	var n Names
	for _, name := range names {
		switch name = strings.TrimSpace(name); name {
		case "":
		case everyName:
			n.all = true
		default:
			if n.names == nil {
				n.names = make(map[string]struct{})
			}
			n.names[name] = struct{}{}
		}
	}
	return n
}

// ParseNames reads a comma-separated list for NewNames.
func ParseNames(list string) Names { return NewNames(strings.Split(list, ",")...) }

// oneName returns the set of a name, which is taken as it is.
func oneName(name string) Names { return Names{names: map[string]struct{}{name: {}}} }

// Has reports whether name is in the set.
func (n Names) Has(name string) bool {
	if n.all {
		return true
	}
	_, ok := n.names[name]
	return ok
}

// Empty reports whether no name is in the set.
func (n Names) Empty() bool { return !n.all && len(n.names) == 0 }

// plus returns the union of two sets.
func (n Names) plus(other Names) Names {
	sum := Names{all: n.all || other.all, names: make(map[string]struct{}, len(n.names)+len(other.names))}
	for _, set := range []Names{n, other} {
		for name := range set.names {
			sum.names[name] = struct{}{}
		}
	}
	return sum
}
