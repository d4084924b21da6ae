// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/inferencecache/inference-cache/internal/breaker"
	"github.com/inferencecache/inference-cache/internal/defaults"
	"github.com/inferencecache/inference-cache/internal/jsonscan"
)

// Endpoint is an engine that can tokenize.
type Endpoint struct {
	// URL is the engine's base URL, without a slash at the end.
	URL string
	// Runtime is the engine's name: vllm, sglang, ...
	Runtime string
}

// EngineOptions configure an Engine. Only Endpoints is required.
type EngineOptions struct {
	// Endpoints returns ready engines that serve the model, best first. The
	// slice is the caller's to change.
	Endpoints func(model string) []Endpoint
	// Transport sends the calls. Default http.DefaultTransport.
	Transport http.RoundTripper
	// Timeout bounds one call. Default 100 ms.
	Timeout time.Duration
	// MaxConcurrent bounds calls under way. Default 64.
	MaxConcurrent int
	// MaxPromptBytes bounds the input of a call. Default 1 MiB.
	MaxPromptBytes int
	// CacheEntries and CacheBytes bound the cache of results. Defaults 10,000
	// and 64 MiB.
	CacheEntries, CacheBytes int
	// Breaker stops calls while they fail. Default: 3 failures open it for
	// 5 s, 1 success closes it.
	Breaker breaker.Settings
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// maxAnswerBytes bounds an engine's answer; a token takes at most 12 bytes.
const maxAnswerBytes = 32 << 20

// Engine tokenizes by asking the engines' own tokenizer. It is safe for
// concurrent use.
type Engine struct {
	options EngineOptions
	slots   chan struct{}
	cache   *otter.Cache[[sha256.Size]byte, []uint32]

	mu      sync.Mutex
	breaker *breaker.Breaker
	// shunned endpoints failed recently; they are asked only if no other is
	// left.
	shunned map[string]time.Time
}

var _ Tokenizer = (*Engine)(nil)

// NewEngine returns an Engine.
func NewEngine(options EngineOptions) (*Engine, error) {
	if options.Endpoints == nil {
		return nil, errors.New("new engine tokenizer: no endpoints")
	}
	defaults.Positive(&options.Timeout, 100*time.Millisecond)
	defaults.Positive(&options.MaxConcurrent, 64)
	defaults.Positive(&options.MaxPromptBytes, 1<<20)
	defaults.Positive(&options.CacheEntries, 10_000)
	defaults.Positive(&options.CacheBytes, 64<<20)
	defaults.Positive(&options.Breaker.Failures, 3)
	defaults.Positive(&options.Breaker.OpenFor, 5*time.Second)
	defaults.Positive(&options.Breaker.Successes, 1)
	if options.Transport == nil {
		options.Transport = http.DefaultTransport
	}
	if options.Now == nil {
		options.Now = time.Now
	}
	// A floor under each entry's weight makes the weight bound the number of
	// entries as well.
	floor := options.CacheBytes / options.CacheEntries
	cache, err := otter.New(&otter.Options[[sha256.Size]byte, []uint32]{
		MaximumWeight: uint64(options.CacheBytes),
		Weigher: func(_ [sha256.Size]byte, tokens []uint32) uint32 {
			return uint32(max(4*len(tokens), floor))
		},
	})
	if err != nil {
		return nil, fmt.Errorf("new engine tokenizer: %w", err)
	}
	return &Engine{
		options: options,
		slots:   make(chan struct{}, options.MaxConcurrent),
		cache:   cache,
		breaker: breaker.New(options.Breaker),
		shunned: map[string]time.Time{},
	}, nil
}

// BreakerState reports on the breaker.
func (e *Engine) BreakerState() breaker.State {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.breaker.State(e.options.Now())
}

// Tokenize implements Tokenizer.
func (e *Engine) Tokenize(ctx context.Context, prompt *Prompt) (Result, error) {
	result, ok, err := prompt.Direct()
	if ok || err != nil {
		return result, err
	}
	if prompt.Bytes() > e.options.MaxPromptBytes {
		return Result{}, &Error{Reason: ReasonTooLarge}
	}
	fields, batch, err := prompt.callFields()
	if err != nil {
		return Result{}, err
	}
	key := prompt.cacheKey(&fields)
	if tokens, ok := e.cache.GetIfPresent(key); ok {
		return Result{Tokens: tokens, Source: SourceCache, Batch: batch}, nil
	}
	tokens, err := e.ask(ctx, prompt, &fields)
	if err != nil {
		return Result{}, err
	}
	e.cache.Set(key, tokens)
	return Result{Tokens: tokens, Source: SourceEngine, Batch: batch}, nil
}

// callFields returns the members that a /tokenize call needs.
func (p *Prompt) callFields() (fields fieldValues, batch bool, err error) {
	fields = p.fields
	if p.Chat {
		fields[fieldPrompt] = nil
		if len(fields[fieldMessages]) == 0 {
			return fields, false, unsupported()
		}
		return fields, false, nil
	}
	fields[fieldMessages] = nil
	fields[fieldPrompt], batch, err = p.firstPrompt()
	return fields, batch, err
}

// callBody returns the body of a /tokenize call.
func (p *Prompt) callBody(fields *fieldValues) ([]byte, error) {
	model, err := json.Marshal(p.Model)
	if err != nil {
		return nil, unsupported()
	}
	body := append(make([]byte, 0, p.Bytes()+256), `{"model":`...)
	body = append(body, model...)
	for i, field := range fields {
		if len(field) == 0 {
			continue
		}
		body = append(body, ',', '"')
		body = append(body, templateFields[i]...)
		body = append(body, '"', ':')
		body = append(body, field...)
	}
	return append(body, '}'), nil
}

// cacheKey hashes everything that decides the ids, each part after its length.
func (p *Prompt) cacheKey(fields *fieldValues) [sha256.Size]byte {
	hash := sha256.New()
	part := func(value []byte) {
		var length [8]byte
		binary.LittleEndian.PutUint64(length[:], uint64(len(value)))
		hash.Write(length[:])
		hash.Write(value)
	}
	part([]byte(p.Revision))
	part([]byte(p.Partition))
	part([]byte(p.Model))
	for _, field := range fields {
		part(field)
	}
	return [sha256.Size]byte(hash.Sum(nil))
}

// ask makes one call within the limits and tells the breaker.
func (e *Engine) ask(ctx context.Context, prompt *Prompt, fields *fieldValues) ([]uint32, error) {
	endpoints := e.options.Endpoints(prompt.Model)
	if len(endpoints) == 0 {
		return nil, &Error{Reason: ReasonUnavailable}
	}
	if prompt.Chat {
		endpoints = slices.DeleteFunc(endpoints, func(e Endpoint) bool { return !takesMessages(e.Runtime) })
		if len(endpoints) == 0 {
			return nil, unsupported()
		}
	}
	endpoint, trial, ok := e.admit(endpoints)
	if !ok {
		return nil, &Error{Reason: ReasonBreakerOpen}
	}
	outcome := Reason("")
	defer func() { e.conclude(endpoints, endpoint, trial, outcome) }()
	select {
	case e.slots <- struct{}{}:
		defer func() { <-e.slots }()
	default:
		outcome = ReasonBusy
		return nil, &Error{Reason: ReasonBusy}
	}
	body, err := prompt.callBody(fields)
	if err != nil {
		outcome = ReasonUnsupported
		return nil, err
	}
	callCtx, cancel := context.WithTimeout(ctx, e.options.Timeout)
	defer cancel()
	tokens, err := e.call(callCtx, endpoint, body)
	if err == nil {
		return tokens, nil
	}
	switch {
	case ctx.Err() != nil:
		outcome = ReasonCancelled
	case callCtx.Err() != nil:
		outcome = ReasonTimeout
	default:
		outcome = ReasonFailed
		var classified *Error
		if errors.As(err, &classified) {
			outcome = classified.Reason
		}
	}
	return nil, &Error{Reason: outcome, Err: err}
}

// takesMessages says whether a runtime's /tokenize applies the chat template.
func takesMessages(runtime string) bool { return runtime != "sglang" }

// admit picks an endpoint, unless the breaker is open.
func (e *Engine) admit(endpoints []Endpoint) (endpoint Endpoint, trial, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.options.Now()
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
	now := e.options.Now()
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
		e.shunned[endpoint.URL] = now.Add(e.options.Breaker.OpenFor)
		if _, left := e.soundLocked(endpoints, now); left && known {
			e.breaker.Ignore(trial)
		} else {
			e.breaker.Failure(trial, now)
		}
	default:
		e.breaker.Ignore(trial)
	}
}

func (e *Engine) call(ctx context.Context, endpoint Endpoint, body []byte) ([]uint32, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint.URL+"/tokenize", bytes.NewReader(body))
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
		return nil, &Error{Reason: ReasonMalformed, Err: errors.New("answer too long")}
	}
	return DecodeAnswer(answer)
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
		err = errors.New("no member tokens")
	}
	if err != nil {
		return nil, &Error{Reason: ReasonMalformed, Err: err}
	}
	return tokens, nil
}
