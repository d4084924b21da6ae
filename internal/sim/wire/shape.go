// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"slices"
	"strings"
)

// Shape is the event form of a range of engine versions.
type Shape struct {
	name string
	// fields counts a stored event's elements after its tag (arrays), or is 0
	// for maps.
	fields       int
	removed      int  // a removed event's elements after its tag (arrays)
	noRank       bool // the batch has no third element
	signed       bool // hashes are signed integers
	firstBytes   bool // hashes are the first 8 bytes of the digest, not the last
	perBlock     bool // one stored event a block
	metadata     bool // a map with the salt ends a stored event
	sglang       bool // no adapter, extra keys or groups
	groupDetails bool // maps: extra_keys, group_idx and kind
}

// Shapes by the first version that sends them.
var shapes = []Shape{
	{name: "vllm-0.9.0", fields: 5, removed: 1, noRank: true, signed: true},
	{name: "vllm-0.9.1", fields: 5, removed: 1, signed: true},
	{name: "vllm-0.10", fields: 6, removed: 2},
	{name: "vllm-0.14", fields: 7, removed: 2},
	{name: "vllm-0.17", fields: 8, removed: 2},
	{name: "vllm-0.20", fields: 9, removed: 3},
	{name: "vllm-0.22", fields: 11, removed: 3},
	{name: "vllm-0.24", groupDetails: true},
	{name: "sglang-0.5.9", fields: 6, removed: 2, signed: true, firstBytes: true, perBlock: true, sglang: true},
	{name: "sglang-0.5.18", fields: 6, removed: 2, signed: true, firstBytes: true, perBlock: true, metadata: true, sglang: true},
	{name: "sglang-map", signed: true, firstBytes: true, metadata: true, sglang: true},
	{name: "tensorrt-llm", signed: true, firstBytes: true},
}

// ShapeNames lists the names ParseShape knows.
func ShapeNames() []string {
	names := make([]string, len(shapes))
	for i, shape := range shapes {
		names[i] = shape.name
	}
	return names
}

// ParseShape returns the shape with a name.
func ParseShape(name string) (Shape, error) {
	i := slices.IndexFunc(shapes, func(s Shape) bool { return s.name == name })
	if i < 0 {
		return Shape{}, fmt.Errorf("event shape %q: expected one of %s", name, strings.Join(ShapeNames(), ", "))
	}
	return shapes[i], nil
}

// Name returns the name that ParseShape takes.
func (s Shape) Name() string { return s.name }

// ShowsAdapters tells whether events in this shape name the adapter.
func (s Shape) ShowsAdapters() bool { return s.fields >= 7 || s.fields == 0 && !s.sglang }

// ShowsSalts tells whether events in this shape carry the cache salt.
func (s Shape) ShowsSalts() bool { return s.metadata || s.fields >= 8 || s.groupDetails }
