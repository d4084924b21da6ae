// SPDX-License-Identifier: Apache-2.0

// Package chat renders chat templates: it turns the messages and tools of a
// request into the text that an engine tokenizes.
package chat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ardanlabs/jinja"
)

// Template renders variables to text. It obeys ctx. Errors never hold values of
// variables.
type Template interface {
	Render(ctx context.Context, variables []Variable) (string, error)
}

// Variable is a named JSON value. The order of its members is kept.
type Variable struct {
	Name  string
	Value json.RawMessage
}

// Errors of templates. ErrTemplate: cannot be compiled. ErrRefused: the template
// itself rejects the request. ErrBudget: it takes too many steps or writes too
// much. ErrRender: any other failure.
var (
	ErrTemplate = errors.New("unusable chat template")
	ErrRefused  = errors.New("the chat template refuses the request")
	ErrBudget   = errors.New("the chat template takes too long or writes too much")
	ErrRender   = errors.New("the chat template cannot be rendered")
)

// Options of a template. The zero value works.
type Options struct {
	// MaxOutputBytes bounds the text, and each text assigned on the way;
	// default 8 MiB.
	MaxOutputBytes int
	// MaxSteps bounds loop rounds and calls of macros; default 1,000,000.
	MaxSteps int
	// Now is what strftime_now tells; default time.Now.
	Now func() time.Time
}

const (
	maxTemplateBytes = 256 << 10
	maxMacroDepth    = 100
)

// Compile prepares a Jinja template. Errors are ErrTemplate.
func Compile(source string, options Options) (Template, error) {
	if options.MaxOutputBytes <= 0 {
		options.MaxOutputBytes = 8 << 20
	}
	if options.MaxSteps <= 0 {
		options.MaxSteps = 1_000_000
	}
	if options.Now == nil {
		options.Now = time.Now
	}
	watched, err := instrument(source)
	if err != nil {
		return nil, err
	}
	compiled, err := compile(watched)
	if err != nil {
		return nil, err
	}
	return &template{compiled: compiled, options: options}, nil
}

func compile(source string) (compiled *jinja.Template, err error) {
	defer func() {
		if recover() != nil {
			err = fmt.Errorf("%w: it cannot be parsed", ErrTemplate)
		}
	}()
	compiled, err = jinja.Compile(source)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTemplate, err)
	}
	return compiled, nil
}

type template struct {
	compiled *jinja.Template
	options  Options
}

var _ Template = (*template)(nil)

// Render implements Template.
func (t *template) Render(ctx context.Context, variables []Variable) (text string, err error) {
	b := &budget{ctx: ctx, options: &t.options, spaces: map[*jinja.Dict]bool{}}
	values := b.functions()
	for _, variable := range variables {
		value, err := decode(variable.Value)
		if err != nil {
			return "", fmt.Errorf("%w: variable %s: %w", ErrRender, variable.Name, err)
		}
		values[variable.Name] = value
	}
	defer func() {
		if recover() != nil {
			text, err = "", fmt.Errorf("%w: it panicked", ErrRender)
		}
	}()
	text, err = t.compiled.RenderValues(values)
	switch {
	case b.cause != nil:
		return "", b.cause
	case err != nil:
		return "", ErrRender // the library's words may quote the request
	default:
		return text, nil
	}
}
