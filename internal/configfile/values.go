// SPDX-License-Identifier: Apache-2.0

package configfile

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// ByteSize is a number of bytes, written as 1073741824, 512MiB, 2GiB or 1GB.
type ByteSize int64

var byteUnits = []struct {
	suffix string
	bytes  float64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1}, {"", 1},
}

// ParseByteSize reads a size. The error names the forms it takes.
func ParseByteSize(text string) (ByteSize, error) {
	trimmed := strings.TrimSpace(text)
	for _, unit := range byteUnits {
		number, ok := strings.CutSuffix(trimmed, unit.suffix)
		if !ok {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err != nil || value < 0 || !(value*unit.bytes < math.MaxInt64) {
			break
		}
		return ByteSize(value * unit.bytes), nil
	}
	return 0, fmt.Errorf("%q is no size: expected bytes such as 1073741824, 512MiB or 2GiB", text)
}

// UnmarshalYAML implements yaml.NodeUnmarshaler.
func (b *ByteSize) UnmarshalYAML(node ast.Node) error {
	size, err := ParseByteSize(scalar(node))
	if err != nil {
		return valueError(node, err)
	}
	*b = size
	return nil
}

// Duration is a time.Duration written as 5ms, 30s or 10m.
type Duration time.Duration

// UnmarshalYAML implements yaml.NodeUnmarshaler.
func (d *Duration) UnmarshalYAML(node ast.Node) error {
	duration, err := time.ParseDuration(scalar(node))
	if err != nil {
		return valueError(node, fmt.Errorf("%q is no duration: expected a number with a unit such as 5ms, 30s or 10m", scalar(node)))
	}
	*d = Duration(duration)
	return nil
}

// Count is a whole number.
type Count int64

// UnmarshalYAML implements yaml.NodeUnmarshaler.
func (c *Count) UnmarshalYAML(node ast.Node) error {
	number, err := strconv.ParseInt(strings.ReplaceAll(scalar(node), "_", ""), 10, 64)
	if err != nil {
		return valueError(node, fmt.Errorf("%q: expected a whole number", scalar(node)))
	}
	*c = Count(number)
	return nil
}

func scalar(node ast.Node) string { return node.GetToken().Value }

// valueError places a bad value; Parse adds the file's name.
func valueError(node ast.Node, err error) error {
	position := node.GetToken().Position
	return &Error{Line: position.Line, Column: position.Column, Problem: err.Error()}
}
