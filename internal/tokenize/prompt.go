// SPDX-License-Identifier: Apache-2.0

// Package tokenize turns requests into the token ids their engine will see.
// Tokenizers never decide about a request: every error only means that it is
// routed without knowing its prefix.
package tokenize

import (
	"bytes"
	"context"
	"errors"

	"github.com/inferencecache/inference-cache/internal/jsonscan"
)

// Tokenizer returns the token ids of a prompt. It may block up to a bound of
// its own; errors are of type *Error. Results are shared and must not be
// changed.
type Tokenizer interface {
	Tokenize(ctx context.Context, prompt *Prompt) (Result, error)
}

// Source says where token ids came from.
type Source string

// Sources.
const (
	SourceEngine Source = "engine"
	SourceLocal  Source = "local"
	SourceCache  Source = "cache"
	SourceClient Source = "client"
)

// Result is a tokenized prompt.
type Result struct {
	Tokens []uint32
	Source Source
	// Features are the parts that are no text, in order.
	Features []Feature
	// Batch is set when the request holds several prompts; Tokens are those
	// of the first.
	Batch bool
}

// Reason classifies errors, for metrics and traces.
type Reason string

// Reasons. Rejected means that the engine refused the prompt.
const (
	ReasonTimeout     Reason = "timeout"
	ReasonBreakerOpen Reason = "breaker_open"
	ReasonBusy        Reason = "busy"
	ReasonTooLarge    Reason = "too_large"
	ReasonUnsupported Reason = "unsupported"
	ReasonUnavailable Reason = "unavailable"
	ReasonFailed      Reason = "failed"
	ReasonRejected    Reason = "rejected"
	ReasonMalformed   Reason = "malformed"
	ReasonCancelled   Reason = "cancelled"
)

// Reasons lists all reasons.
func Reasons() []Reason {
	return []Reason{ReasonTimeout, ReasonBreakerOpen, ReasonBusy, ReasonTooLarge, ReasonUnsupported,
		ReasonUnavailable, ReasonFailed, ReasonRejected, ReasonMalformed, ReasonCancelled}
}

// Error says why a prompt has no token ids. It never holds prompt text.
type Error struct {
	Reason Reason
	Err    error
}

func (e *Error) Error() string {
	if e.Err == nil {
		return "tokenize: " + string(e.Reason)
	}
	return "tokenize: " + string(e.Reason) + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

func unsupported() error { return &Error{Reason: ReasonUnsupported} }

// classify returns the reason an error carries.
func classify(err error) (Reason, bool) {
	var classified *Error
	if errors.As(err, &classified) {
		return classified.Reason, true
	}
	return "", false
}

// templateFields are the members that decide a prompt's token ids, in the
// order in which they are sent and hashed.
var templateFields = [...]string{
	"messages", "prompt", "tools", "tool_choice", "response_format", "documents",
	"chat_template", "chat_template_kwargs", "add_generation_prompt",
	"continue_final_message", "add_special_tokens", "mm_processor_kwargs", "reasoning_effort",
}

// fieldValues are raw members, parallel to templateFields; nil is absent.
type fieldValues [len(templateFields)][]byte

const (
	fieldMessages = iota
	fieldPrompt
	fieldTools
	fieldToolChoice
	fieldResponseFormat
	fieldDocuments
	fieldChatTemplate
	fieldTemplateArguments
	fieldAddGenerationPrompt
	fieldContinueFinalMessage
	fieldAddSpecialTokens
	fieldProcessorArguments
	fieldReasoningEffort
)

// Prompt is the part of a request that decides its token ids.
type Prompt struct {
	// Chat tells a chat completion from a plain one.
	Chat bool
	// Model is the name the client asked for, Base its base model; equal but
	// for adapters.
	Model, Base string
	// Runtime is the kind of engine that serves the model: vllm, sglang, ...
	Runtime string
	// Revision changes when the model's tokenizer or template may have.
	Revision string
	// Partition separates callers that must not learn from each other's
	// cached results.
	Partition string

	fields   fieldValues
	inputIDs []byte
	// opaque is set when a member changes the ids in a way only the engine
	// knows.
	opaque bool
}

// Add takes a member of the request's body. Irrelevant members are ignored,
// and the last of repeated members counts. The prompt keeps value.
func (p *Prompt) Add(key, value []byte) {
	null := bytes.Equal(value, []byte("null"))
	if null {
		value = nil
	}
	switch string(key) {
	case "input_ids":
		p.inputIDs = value
		return
	case "truncate_prompt_tokens", "prompt_embeds":
		p.opaque = p.opaque || !null
		return
	}
	for i, name := range templateFields {
		if string(key) == name {
			p.fields[i] = value
			return
		}
	}
}

// Bytes returns the size of the template-relevant members.
func (p *Prompt) Bytes() int {
	total := len(p.inputIDs)
	for _, field := range p.fields {
		total += len(field)
	}
	return total
}

// Direct returns the token ids the client sent itself. False means that the
// prompt is text.
func (p *Prompt) Direct() (Result, bool, error) {
	if p.opaque {
		return Result{}, false, unsupported()
	}
	if p.Chat {
		if len(p.inputIDs) == 0 {
			return Result{}, false, nil
		}
		return clientIDs(p.inputIDs, false)
	}
	first, batch, err := p.firstPrompt()
	if err != nil || len(first) == 0 || first[0] != '[' {
		return Result{}, false, err
	}
	return clientIDs(first, batch)
}

func clientIDs(raw []byte, batch bool) (Result, bool, error) {
	tokens, err := jsonscan.Uint32s(nil, raw)
	if err != nil {
		return Result{}, false, unsupported()
	}
	return Result{Tokens: tokens, Source: SourceClient, Batch: batch}, true, nil
}

// firstPrompt returns the raw first prompt of a plain completion: a string, or
// an array of token ids.
func (p *Prompt) firstPrompt() (first []byte, batch bool, err error) {
	raw := p.fields[fieldPrompt]
	if len(raw) == 0 {
		return nil, false, unsupported()
	}
	if raw[0] != '[' {
		return raw, false, nil
	}
	elements := 0
	err = jsonscan.Array(raw, func(value []byte) error {
		if elements == 0 {
			first = value
		}
		elements++
		if first[0] != '"' && first[0] != '[' {
			return errIDs
		}
		return nil
	})
	switch {
	case errors.Is(err, errIDs):
		return raw, false, nil
	case err != nil || elements == 0:
		return nil, false, unsupported()
	default:
		return first, elements > 1, nil
	}
}

// errIDs ends the scan of an array that holds ids, not prompts.
var errIDs = errors.New("array of ids")

// ClientIDs is the Tokenizer that knows only ids sent by the client.
type ClientIDs struct{}

// Tokenize implements Tokenizer.
func (ClientIDs) Tokenize(_ context.Context, prompt *Prompt) (Result, error) {
	result, ok, err := prompt.Direct()
	if err == nil && !ok {
		err = unsupported()
	}
	return result, err
}
