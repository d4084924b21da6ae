// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/inferencecache/inference-cache/internal/breaker"
	"github.com/inferencecache/inference-cache/internal/finding"
	"github.com/inferencecache/inference-cache/internal/routing"
	"github.com/inferencecache/inference-cache/internal/tokenize"
)

// TokenizerMode says where token ids come from.
type TokenizerMode string

// Tokenizer modes.
const (
	// TokenizeByRender asks the render endpoints of engines, or of a service.
	TokenizeByRender TokenizerMode = "render"
	// TokenizeByEngine asks the engines' /tokenize.
	TokenizeByEngine TokenizerMode = "engine"
	// TokenizeLocally uses the files of models.
	TokenizeLocally TokenizerMode = "local"
	// TokenizeClientIDs uses ids that clients send and no others.
	TokenizeClientIDs TokenizerMode = "ids"
	// TokenizeNone routes without prefix keys.
	TokenizeNone TokenizerMode = "none"
)

// TokenizerOptions say how prompts become token ids, beside the mode. The zero
// value works.
type TokenizerOptions struct {
	// Folders hold a model's tokenizer.json and chat template, as DIR or
	// MODEL=DIR. TokenizeLocally needs them; TokenizeByEngine uses the
	// templates for SGLang. Default none.
	Folders []string
	// RenderURL is a render service for TokenizeByRender; default the engines
	// themselves.
	RenderURL string
	// MaxBytes is the largest prompt that is tokenized; default 1 MiB. Longer
	// ones are compared as text.
	MaxBytes int
}

// breakered is a tokenizer with a breaker.
type breakered interface {
	tokenize.Tokenizer
	BreakerState() breaker.State
}

func (o *TokenizerOptions) validate(mode TokenizerMode) error {
	switch mode {
	case TokenizeByRender, TokenizeByEngine, TokenizeClientIDs, TokenizeNone:
	case TokenizeLocally:
		if len(o.Folders) == 0 {
			return errors.New("tokenizer local: no folder of a model is given")
		}
	default:
		return fmt.Errorf("tokenizer %q: expected render, engine, local, ids or none", mode)
	}
	if len(o.Folders) > 0 && mode != TokenizeLocally && mode != TokenizeByEngine {
		return fmt.Errorf("folders of models: the tokenizer is %s, expected local or engine", mode)
	}
	if o.RenderURL == "" {
		return nil
	}
	if mode != TokenizeByRender {
		return fmt.Errorf("render URL: the tokenizer is %s, expected render", mode)
	}
	if _, err := parseBaseURL(o.RenderURL); err != nil {
		return fmt.Errorf("render %w", err)
	}
	return nil
}

// newTokenizer makes the tokenizer of the mode.
func (g *Gateway) newTokenizer() error {
	o := &g.options.Tokenizing
	limits := tokenize.Limits{Timeout: g.options.Timeouts.Tokenize, MaxPromptBytes: o.MaxBytes}
	models, err := tokenize.LoadModels(o.Folders)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrOptions, err)
	}
	var made breakered
	calls, err := g.tokenizeTransport()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrOptions, err)
	}
	switch g.options.Tokenizer {
	case TokenizeClientIDs:
		g.tokenizer = tokenize.ClientIDs{}
		return nil
	case TokenizeLocally:
		made, err = tokenize.NewLocal(tokenize.LocalOptions{Limits: limits, Models: models})
	case TokenizeByEngine:
		options := tokenize.EngineOptions{Limits: limits, Endpoints: g.tokenizeEndpoints, Transport: calls}
		if len(o.Folders) > 0 {
			options.Renderer = models
		}
		made, err = tokenize.NewEngine(options)
	case TokenizeByRender:
		made, err = tokenize.NewEngine(tokenize.EngineOptions{
			Limits: limits, Endpoints: g.tokenizeEndpoints, Transport: calls, Form: tokenize.FormRender,
		})
	default:
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrOptions, err)
	}
	g.tokenizer, g.guardedTokenizer = made, made
	return nil
}

// tokenizeEndpoints returns the ready replicas that serve a model, least
// loaded first, or the render service.
func (g *Gateway) tokenizeEndpoints(name string) []tokenize.Endpoint {
	if service := g.options.Tokenizing.RenderURL; service != "" {
		base, err := parseBaseURL(service)
		if err != nil {
			return nil // validate refuses it
		}
		return []tokenize.Endpoint{{URL: base.String()}}
	}
	found, _ := g.catalog.Resolve(name)
	request := routing.Request{Now: time.Now(), Model: found.base, Adapter: found.adapter, AnyRole: true}
	var endpoints []tokenize.Endpoint
	for _, id := range g.fleet.ByLoad(nil, &request) {
		u := g.roster.get(id)
		if u == nil {
			continue
		}
		endpoints = append(endpoints, tokenize.Endpoint{URL: u.base.String(), Runtime: u.Runtime})
	}
	return endpoints
}

// tokenizeTransport returns the connections to what tokenizes: those of the
// replicas, or to the render service and nowhere else.
func (g *Gateway) tokenizeTransport() (http.RoundTripper, error) {
	if g.options.Tokenizing.RenderURL == "" {
		return &g.roster, nil
	}
	base, err := parseBaseURL(g.options.Tokenizing.RenderURL)
	if err != nil {
		return nil, fmt.Errorf("render %w", err)
	}
	g.renderTransport = newTransport(ProtocolHTTP1, hostPortOf(base), g.options.Resolver)
	return g.renderTransport, nil
}

// tokenize finds the ids of the prompt and counts how.
func (x *exchange) tokenize(ctx context.Context) (tokenize.Result, error) {
	g := x.gateway
	x.prompt.Base, x.prompt.Revision = x.model.base, g.parity.revision(x.model.base)
	begin := time.Now()
	result, err := g.tokenizer.Tokenize(ctx, &x.prompt)
	source, outcome := string(result.Source), "ok"
	if err != nil {
		source, outcome = string(g.tokenizeSource()), string(tokenize.ReasonFailed)
		var classified *tokenize.Error
		if errors.As(err, &classified) {
			outcome = string(classified.Reason)
		}
	}
	g.metrics.tokenize.WithLabelValues(source, outcome).Inc()
	g.metrics.tokenizeSeconds.WithLabelValues(source).Observe(time.Since(begin).Seconds())
	g.noteTokenizer(tokenize.Reason(outcome), result.Source)
	x.promptTokens, x.batch = len(result.Tokens), result.Batch
	x.tooLong = outcome == string(tokenize.ReasonTooLarge)
	return result, err
}

// tokenizeSource is the source that failures are counted under.
func (g *Gateway) tokenizeSource() tokenize.Source {
	if g.options.Tokenizer == TokenizeLocally {
		return tokenize.SourceLocal
	}
	return tokenize.SourceEngine
}

// noteTokenizer opens a finding when the tokenizer is given up for a while,
// and closes it when it works again.
func (g *Gateway) noteTokenizer(outcome tokenize.Reason, source tokenize.Source) {
	switch {
	case outcome == tokenize.ReasonBreakerOpen && g.tokenizerDown.CompareAndSwap(false, true):
		g.found.Raise(finding.Finding{
			Code: finding.TokenizerDown, Where: string(g.options.Tokenizer),
			What:   "the tokenizer keeps failing; requests are routed by the text of their prompts",
			Action: "look at inferencecache_gateway_tokenize_total by result, and at what answers the calls",
		}, time.Now())
		g.logger.Warn("tokenizer keeps failing; routing by text", "finding", finding.TokenizerDown, "tokenizer", g.options.Tokenizer)
	case source != tokenize.SourceEngine && source != tokenize.SourceLocal:
	case g.tokenizerDown.CompareAndSwap(true, false):
		g.found.Clear(finding.TokenizerDown, string(g.options.Tokenizer))
		g.logger.Info("tokenizer works again", "tokenizer", g.options.Tokenizer)
	}
}
