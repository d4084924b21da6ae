// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/inferencecache/inference-cache/internal/jsonscan"
)

// Endpoint is an engine that can tokenize.
type Endpoint struct {
	// URL is the engine's base URL, without a slash at the end.
	URL string
	// Runtime is the engine's name: vllm, sglang, ...
	Runtime string
}

// Form is what an Engine asks endpoints for.
type Form uint8

// Forms. FormTokenize asks /tokenize, FormRender the render endpoints beside
// the completions, which tell about images too.
const (
	FormTokenize Form = iota
	FormRender
)

// EngineOptions configure an Engine. Only Endpoints is required.
type EngineOptions struct {
	Limits
	// Endpoints returns ready engines that serve the model, best first. The
	// slice is the caller's to change.
	Endpoints func(model string) []Endpoint
	// Form of the calls; default FormTokenize.
	Form Form
	// Renderer applies chat templates for engines whose /tokenize takes none;
	// default none, such chats have no ids.
	Renderer Renderer
	// Transport sends the calls. Default http.DefaultTransport.
	Transport http.RoundTripper
}

// Renderer turns a chat into the text its engine tokenizes.
type Renderer interface {
	Render(ctx context.Context, prompt *Prompt) (string, error)
}

// maxAnswerBytes bounds an engine's answer; a token takes at most 12 bytes.
const maxAnswerBytes = 32 << 20

// Engine tokenizes by asking the engines' own tokenizer. It is safe for
// concurrent use.
type Engine struct {
	*guarded
	options EngineOptions

	// shunned endpoints failed recently; they are asked only if no other is
	// left. Guarded by mu.
	shunned map[string]time.Time
}

var _ Tokenizer = (*Engine)(nil)

// NewEngine returns an Engine.
func NewEngine(options EngineOptions) (*Engine, error) {
	if options.Endpoints == nil {
		return nil, errors.New("new engine tokenizer: no endpoints")
	}
	if options.Transport == nil {
		options.Transport = http.DefaultTransport
	}
	g, err := newGuarded(options.Limits)
	if err != nil {
		return nil, fmt.Errorf("new engine tokenizer: %w", err)
	}
	return &Engine{guarded: g, options: options, shunned: map[string]time.Time{}}, nil
}

// Tokenize implements Tokenizer.
func (e *Engine) Tokenize(ctx context.Context, prompt *Prompt) (Result, error) {
	result, ok, err := prompt.Direct()
	if ok || err != nil {
		return result, err
	}
	if prompt.Bytes() > e.limits.MaxPromptBytes {
		return Result{}, &Error{Reason: ReasonTooLarge}
	}
	if e.options.Form == FormTokenize && prompt.holdsMore() {
		return Result{}, unsupported()
	}
	fields, batch, err := prompt.callFields()
	if err != nil {
		return Result{}, err
	}
	result, err = e.cached(ctx, prompt.cacheKey(&fields, e.limits.Now()), func(ctx context.Context) (Result, error) {
		return e.ask(ctx, prompt, &fields)
	})
	result.Batch = batch
	return result, err
}

// ask makes one call within the limits and tells the breaker.
func (e *Engine) ask(ctx context.Context, prompt *Prompt, fields *fieldValues) (Result, error) {
	endpoints := e.options.Endpoints(prompt.Model)
	if len(endpoints) == 0 {
		return Result{}, &Error{Reason: ReasonUnavailable}
	}
	endpoints = slices.DeleteFunc(endpoints, func(endpoint Endpoint) bool { return !e.takes(prompt, endpoint) })
	if len(endpoints) == 0 {
		return Result{}, unsupported()
	}
	endpoint, trial, ok := e.admit(endpoints)
	if !ok {
		return Result{}, &Error{Reason: ReasonBreakerOpen}
	}
	outcome := Reason("")
	defer func() { e.conclude(endpoints, endpoint, trial, outcome) }()
	if !e.enter() {
		outcome = ReasonBusy
		return Result{}, &Error{Reason: ReasonBusy}
	}
	defer e.leave()
	callCtx, cancel := context.WithTimeout(ctx, e.limits.Timeout)
	defer cancel()
	result, err := e.call(callCtx, endpoint, prompt, fields)
	if err == nil {
		result.Source = SourceEngine
		return result, nil
	}
	outcome = reasonOf(ctx, callCtx, err)
	return Result{}, &Error{Reason: outcome, Err: err}
}

// takes says whether an endpoint can be asked for the ids of a prompt.
func (e *Engine) takes(prompt *Prompt, endpoint Endpoint) bool {
	switch {
	case e.options.Form == FormRender:
		return endpoint.Runtime != sglang
	case prompt.Chat:
		return endpoint.Runtime != sglang || e.options.Renderer != nil
	default:
		return true
	}
}

// sglang is the runtime whose /tokenize takes no messages.
const sglang = "sglang"

// admit picks an endpoint, unless the breaker is open.
func (e *Engine) admit(endpoints []Endpoint) (endpoint Endpoint, trial, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.limits.Now()
	if !e.breaker.Permits(now) {
		return Endpoint{}, false, false
	}
	endpoint, found := e.soundLocked(endpoints, now)
	if !found {
		endpoint = endpoints[0]
	}
	return endpoint, e.breaker.Start(now), true
}

// soundLocked returns the best endpoint that is not shunned.
func (e *Engine) soundLocked(endpoints []Endpoint, now time.Time) (Endpoint, bool) {
	for _, endpoint := range endpoints {
		if !now.Before(e.shunned[endpoint.URL]) {
			return endpoint, true
		}
	}
	return Endpoint{}, false
}

// conclude learns from a call. Calls that fail together on one endpoint count
// once while another is sound: one engine's death must not blind the fleet.
func (e *Engine) conclude(endpoints []Endpoint, endpoint Endpoint, trial bool, outcome Reason) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.limits.Now()
	switch outcome {
	case "", ReasonRejected:
		e.breaker.Success(trial)
		delete(e.shunned, endpoint.URL)
	case ReasonTimeout, ReasonFailed, ReasonMalformed:
		for url, until := range e.shunned {
			if now.After(until) {
				delete(e.shunned, url)
			}
		}
		_, known := e.shunned[endpoint.URL]
		e.shunned[endpoint.URL] = now.Add(e.limits.Breaker.OpenFor)
		if _, left := e.soundLocked(endpoints, now); left && known {
			e.breaker.Ignore(trial)
		} else {
			e.breaker.Failure(trial, now)
		}
	default:
		e.breaker.Ignore(trial)
	}
}

func (e *Engine) call(ctx context.Context, endpoint Endpoint, prompt *Prompt, fields *fieldValues) (Result, error) {
	path, body, err := e.request(ctx, endpoint, prompt, fields)
	if err != nil {
		return Result{}, err
	}
	answer, err := e.post(ctx, endpoint.URL+path, body)
	if err != nil {
		return Result{}, err
	}
	if e.options.Form == FormTokenize {
		tokens, err := DecodeAnswer(answer)
		return Result{Tokens: tokens}, err
	}
	result, err := decodeRendered(answer)
	if err == nil && len(result.Features) == 0 && prompt.holdsMore() {
		return Result{}, unsupported() // it does not tell images apart
	}
	return result, err
}

// request returns the path and body of a call.
func (e *Engine) request(ctx context.Context, endpoint Endpoint, prompt *Prompt, fields *fieldValues) (string, []byte, error) {
	switch {
	case e.options.Form == FormRender && prompt.Chat:
		body, err := prompt.callBody(fields)
		return "/v1/chat/completions/render", body, err
	case e.options.Form == FormRender:
		body, err := prompt.callBody(fields)
		return "/v1/completions/render", body, err
	case prompt.Chat && endpoint.Runtime == sglang:
		text, err := e.options.Renderer.Render(ctx, prompt)
		if err != nil {
			return "", nil, err
		}
		body, err := json.Marshal(struct {
			Model            string `json:"model"`
			Prompt           string `json:"prompt"`
			AddSpecialTokens bool   `json:"add_special_tokens"`
		}{prompt.Model, text, false})
		return "/tokenize", body, err
	default:
		mergeArguments(fields)
		body, err := prompt.callBody(fields)
		return "/tokenize", body, err
	}
}

func (e *Engine) post(ctx context.Context, url string, body []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("invalid endpoint URL")
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := e.options.Transport.RoundTrip(request)
	if err != nil {
		return nil, fmt.Errorf("call the engine: %w", err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read the engine's answer: %w", err)
	}
	switch {
	case response.StatusCode == http.StatusBadRequest, response.StatusCode == http.StatusUnprocessableEntity:
		return nil, &Error{Reason: ReasonRejected, Err: fmt.Errorf("status %d", response.StatusCode)}
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("status %d", response.StatusCode)
	case len(answer) > maxAnswerBytes:
		return nil, malformed(errors.New("answer too long"))
	}
	return answer, nil
}

// DecodeAnswer reads the token ids of a /tokenize answer.
func DecodeAnswer(answer []byte) ([]uint32, error) {
	var tokens []uint32
	found := false
	err := jsonscan.Object(answer, func(key, value []byte) (err error) {
		if string(key) == "tokens" {
			found = true
			tokens, err = jsonscan.Uint32s(tokens[:0], value)
		}
		return err
	})
	if err == nil && !found {
		err = errNoIDs
	}
	if err != nil {
		return nil, malformed(err)
	}
	return tokens, nil
}

var (
	errNoIDs    = errors.New("no token ids")
	errFeatures = errors.New("features do not fit the token ids")
)

func malformed(err error) error { return &Error{Reason: ReasonMalformed, Err: err} }
