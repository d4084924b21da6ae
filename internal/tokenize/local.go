// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"context"
	"errors"
	"fmt"

	"github.com/inferencecache/inference-cache/internal/jsonscan"
	"github.com/inferencecache/inference-cache/internal/tokenize/bpe"
	"github.com/inferencecache/inference-cache/internal/tokenize/chat"
)

// LocalOptions configure a Local. Only Models is required.
type LocalOptions struct {
	Limits
	// Models holds the tokenizers.
	Models *Models
}

// Local tokenizes in this process. It is safe for concurrent use.
type Local struct {
	*guarded
	models *Models
}

var _ Tokenizer = (*Local)(nil)

// NewLocal returns a Local.
func NewLocal(options LocalOptions) (*Local, error) {
	if options.Models == nil {
		return nil, errors.New("new local tokenizer: no models")
	}
	g, err := newGuarded(options.Limits)
	if err != nil {
		return nil, fmt.Errorf("new local tokenizer: %w", err)
	}
	return &Local{guarded: g, models: options.Models}, nil
}

// Tokenize implements Tokenizer.
func (l *Local) Tokenize(ctx context.Context, prompt *Prompt) (Result, error) {
	result, ok, err := prompt.Direct()
	if ok || err != nil {
		return result, err
	}
	if prompt.Bytes() > l.limits.MaxPromptBytes {
		return Result{}, &Error{Reason: ReasonTooLarge}
	}
	fields, batch, err := prompt.callFields()
	if err != nil {
		return Result{}, err
	}
	model := l.models.of(prompt)
	if model == nil {
		return Result{}, &Error{Reason: ReasonUnavailable}
	}
	result, err = l.cached(ctx, prompt.cacheKey(&fields, l.limits.Now()), func(ctx context.Context) (Result, error) {
		return l.work(ctx, model, prompt, &fields)
	})
	result.Batch = batch
	return result, err
}

// work encodes one prompt within the limits and tells the breaker.
func (l *Local) work(ctx context.Context, model *Model, prompt *Prompt, fields *fieldValues) (Result, error) {
	trial, ok := l.admitOne()
	if !ok {
		return Result{}, &Error{Reason: ReasonBreakerOpen}
	}
	outcome := ReasonFailed // what a panic leaves behind
	defer func() { l.concludeOne(trial, outcome) }()
	if !l.enter() {
		outcome = ReasonBusy
		return Result{}, &Error{Reason: ReasonBusy}
	}
	defer l.leave()
	callCtx, cancel := context.WithTimeout(ctx, l.limits.Timeout)
	defer cancel()
	tokens, err := model.encode(callCtx, prompt, fields)
	if err == nil {
		outcome = ""
		return Result{Tokens: tokens, Source: SourceLocal}, nil
	}
	outcome = reasonOf(ctx, callCtx, err)
	return Result{}, &Error{Reason: outcome, Err: err}
}

func (g *guarded) admitOne() (trial, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.limits.Now()
	if !g.breaker.Permits(now) {
		return false, false
	}
	return g.breaker.Start(now), true
}

// concludeOne learns from work. What a request cannot have says nothing about
// the next one.
func (g *guarded) concludeOne(trial bool, outcome Reason) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch outcome {
	case "", ReasonRejected, ReasonUnsupported:
		g.breaker.Success(trial)
	case ReasonTimeout, ReasonFailed:
		g.breaker.Failure(trial, g.limits.Now())
	default:
		g.breaker.Ignore(trial)
	}
}

// encode returns the ids of a prompt.
func (m *Model) encode(ctx context.Context, prompt *Prompt, fields *fieldValues) ([]uint32, error) {
	if prompt.Chat {
		text, err := m.render(ctx, prompt, fields)
		if err != nil {
			return nil, err
		}
		special := string(fields[fieldAddSpecialTokens]) == "true"
		return m.tokens(ctx, text, special)
	}
	text, ok := jsonscan.String(fields[fieldPrompt])
	if !ok {
		return nil, unsupported()
	}
	special := string(fields[fieldAddSpecialTokens]) != "false"
	return m.tokens(ctx, text, special)
}

func (m *Model) tokens(ctx context.Context, text string, special bool) ([]uint32, error) {
	tokens, err := m.tokenizer.Encode(ctx, text, special)
	if errors.Is(err, bpe.ErrInput) {
		return nil, &Error{Reason: ReasonRejected, Err: err}
	}
	return tokens, err
}

// render applies the chat template.
func (m *Model) render(ctx context.Context, prompt *Prompt, fields *fieldValues) (string, error) {
	switch {
	case m.conversation == nil, len(fields[fieldChatTemplate]) > 0, prompt.holdsMore(),
		string(fields[fieldContinueFinalMessage]) == "true":
		return "", unsupported()
	}
	dialect := chat.VLLM
	if prompt.Runtime == sglang {
		dialect = chat.SGLang
	}
	text, err := m.conversation.Render(ctx, dialect, &chat.Request{
		Messages: fields[fieldMessages], Tools: fields[fieldTools], Documents: fields[fieldDocuments],
		TemplateArguments: fields[fieldTemplateArguments], ReasoningEffort: fields[fieldReasoningEffort],
		AddGenerationPrompt: fields[fieldAddGenerationPrompt],
	})
	switch {
	case errors.Is(err, chat.ErrUnsupported), errors.Is(err, chat.ErrRender):
		return "", &Error{Reason: ReasonUnsupported, Err: err}
	case errors.Is(err, chat.ErrRefused):
		return "", &Error{Reason: ReasonRejected, Err: err}
	case errors.Is(err, chat.ErrBudget):
		return "", &Error{Reason: ReasonTooLarge, Err: err}
	default:
		return text, err
	}
}
