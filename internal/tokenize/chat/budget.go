// SPDX-License-Identifier: Apache-2.0

package chat

import (
	"context"
	"errors"

	"github.com/ardanlabs/jinja"
)

// Names of the functions that instrument weaves into a template.
const (
	hookPrefix = "ic_"
	hookOut    = "ic_out"
	hookLoop   = "ic_loop"
	hookSet    = "ic_set"
	hookPut    = "ic_put"
	hookCall   = "ic_call"
	hookReturn = "ic_return"
	hookJSON   = "ic_tojson"
	hookString = "ic_string"
	hookIgnore = "ic_"
)

// budget bounds one rendering.
type budget struct {
	ctx     context.Context
	options *Options
	steps   int
	written int
	depth   int
	// spaces are the namespaces of this rendering: the only values that a
	// template could put into themselves.
	spaces map[*jinja.Dict]bool
	// cause is why the rendering was ended.
	cause error
}

// errEnded unwinds the rendering; cause says why.
var errEnded = errors.New("ended")

func (b *budget) end(cause error) error {
	if b.cause == nil {
		b.cause = cause
	}
	return errEnded
}

// step takes n steps.
func (b *budget) step(n int) error {
	b.steps += n
	switch {
	case b.ctx.Err() != nil:
		return b.end(b.ctx.Err())
	case b.steps > b.options.MaxSteps:
		return b.end(ErrBudget)
	default:
		return nil
	}
}

// functions returns what templates may call.
func (b *budget) functions() map[string]jinja.Value {
	functions := map[string]func(args []jinja.Value, named map[string]jinja.Value) (jinja.Value, error){
		hookOut:    b.out,
		hookLoop:   b.loop,
		hookSet:    b.set,
		hookPut:    b.put,
		hookCall:   b.call,
		hookReturn: b.leave,
		hookJSON:   b.toJSON,
		hookString: b.toString,
		"range":    b.rangeOf,
		"namespace": func(_ []jinja.Value, named map[string]jinja.Value) (jinja.Value, error) {
			return b.namespace(named), nil
		},
		"raise_exception": func([]jinja.Value, map[string]jinja.Value) (jinja.Value, error) {
			return jinja.Undefined(), b.end(ErrRefused)
		},
		"strftime_now": func(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
			if len(args) != 1 || !args[0].IsString() {
				return jinja.Undefined(), b.end(ErrRender)
			}
			text, ok := strftime(args[0].AsString(), b.options.Now())
			if !ok {
				return jinja.Undefined(), b.end(ErrRender)
			}
			return jinja.NewString(text), nil
		},
	}
	values := make(map[string]jinja.Value, len(functions)+16)
	for name, function := range functions {
		values[name] = jinja.NewCallable(name, function)
	}
	return values
}

// only returns the single argument of a hook.
func (b *budget) only(args []jinja.Value) (jinja.Value, error) {
	if len(args) != 1 {
		return jinja.Undefined(), b.end(ErrRender)
	}
	return args[0], nil
}

// toString is the filter string.
func (b *budget) toString(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	value, err := b.only(args)
	if err != nil {
		return value, err
	}
	text, err := b.printed(value)
	return jinja.NewString(text), err
}

// out counts and prints what a template writes.
func (b *budget) out(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	value, err := b.only(args)
	if err == nil {
		err = b.step(1)
	}
	if err != nil {
		return jinja.Undefined(), err
	}
	text, err := b.printed(value)
	if b.written += len(text); err == nil && b.written > b.options.MaxOutputBytes {
		err = b.end(ErrBudget)
	}
	return jinja.NewString(text), err
}

func (b *budget) loop(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	value, err := b.only(args)
	if err != nil {
		return value, err
	}
	rounds := 1
	switch {
	case value.IsList():
		rounds += value.AsList().Len()
	case value.IsDict():
		rounds += value.AsDict().Len()
	case value.IsString():
		rounds += len(value.AsString())
	}
	return value, b.step(rounds)
}

func (b *budget) set(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	value, err := b.only(args)
	if err == nil {
		err = b.step(1)
	}
	switch {
	case err != nil:
		return jinja.Undefined(), err
	case value.IsString() && len(value.AsString()) > b.options.MaxOutputBytes,
		value.IsList() && value.AsList().Len() > b.options.MaxSteps:
		return jinja.Undefined(), b.end(ErrBudget)
	default:
		return value, nil
	}
}

// put is set for members of namespaces. It keeps a namespace from coming to
// hold itself.
func (b *budget) put(args []jinja.Value, named map[string]jinja.Value) (jinja.Value, error) {
	value, err := b.set(args, named)
	if err == nil && b.holdsSpace(value, 0) {
		return jinja.Undefined(), b.end(ErrRender)
	}
	return value, err
}

// holdsSpace says whether a value is or holds a namespace.
func (b *budget) holdsSpace(value jinja.Value, depth int) bool {
	switch {
	case depth > maxDepth:
		return true
	case value.IsList():
		for _, item := range value.AsList().Items {
			if b.holdsSpace(item, depth+1) {
				return true
			}
		}
	case value.IsDict():
		if b.spaces[value.AsDict()] {
			return true
		}
		for _, item := range value.AsDict().Data {
			if b.holdsSpace(item, depth+1) {
				return true
			}
		}
	}
	return false
}

func (b *budget) namespace(named map[string]jinja.Value) jinja.Value {
	space := jinja.NewDict()
	for name, value := range named {
		space.AsDict().Set(name, value)
	}
	b.spaces[space.AsDict()] = true
	return space
}

func (b *budget) call([]jinja.Value, map[string]jinja.Value) (jinja.Value, error) {
	if b.depth++; b.depth > maxMacroDepth {
		return jinja.Undefined(), b.end(ErrBudget)
	}
	return jinja.None(), b.step(1)
}

func (b *budget) leave([]jinja.Value, map[string]jinja.Value) (jinja.Value, error) {
	b.depth--
	return jinja.None(), nil
}

func (b *budget) rangeOf(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	bounds := [3]int64{0, 0, 1}
	for i, arg := range args {
		if !arg.IsInt() || i == len(bounds) {
			return jinja.Undefined(), b.end(ErrRender)
		}
		bounds[i] = arg.AsInt()
	}
	if len(args) == 1 {
		bounds[0], bounds[1] = 0, bounds[0]
	}
	start, stop, step := bounds[0], bounds[1], bounds[2]
	if len(args) == 0 || step == 0 {
		return jinja.Undefined(), b.end(ErrRender)
	}
	const far = 1 << 40 // keeps the sums below from overflowing
	if min(start, stop, step) < -far || max(start, stop, step) > far {
		return jinja.Undefined(), b.end(ErrBudget)
	}
	var items []jinja.Value
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if err := b.step(1); err != nil {
			return jinja.Undefined(), err
		}
		items = append(items, jinja.NewInt(i))
	}
	return jinja.NewList(items), nil
}
