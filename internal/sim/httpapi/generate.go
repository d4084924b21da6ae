// SPDX-License-Identifier: Apache-2.0

package httpapi

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/inferencecache/inference-cache/internal/sim/blockhash"
	"github.com/inferencecache/inference-cache/internal/sim/rank"
	"github.com/inferencecache/inference-cache/internal/sim/sched"
	"github.com/inferencecache/inference-cache/internal/sim/tinymodel"
)

// completionTokens is the default answer length of /v1/completions.
const completionTokens = 16

func (h *Handler) completions(w http.ResponseWriter, r *http.Request) {
	var request completionRequest
	if err := readJSON(r, &request); err != nil {
		writeError(w, err)
		return
	}
	prompts, err := request.Prompt.prompts(request.N)
	if err != nil {
		writeError(w, err)
		return
	}
	h.generate(w, r, &generation{
		handler: h, sampling: request.sampling, prompts: prompts, copies: len(prompts) / len(request.Prompt),
		fallback: completionTokens, format: textFormat{}, id: withPrefix("cmpl-", requestID(r)),
	})
}

func (h *Handler) chatCompletions(w http.ResponseWriter, r *http.Request) {
	var request chatRequest
	if err := readJSON(r, &request); err != nil {
		writeError(w, err)
		return
	}
	tokens, err := request.tokens()
	if err != nil {
		writeError(w, err)
		return
	}
	prompts, err := promptList{tokens}.prompts(request.N)
	if err != nil {
		writeError(w, err)
		return
	}
	h.generate(w, r, &generation{
		handler: h, sampling: request.sampling, prompts: prompts, copies: len(prompts),
		format: chatFormat{}, id: withPrefix("chatcmpl-", requestID(r)),
	})
}

// generation is one request on its way through the engine.
type generation struct {
	handler  *Handler
	sampling sampling
	prompts  [][]uint32
	copies   int // of each prompt, one after the other; usage counts one
	fallback int // answer length when the caller gave none; 0: what fits
	format   format
	id       string
	created  int64

	rank    *rank.Rank
	rankID  int
	streams []*rank.Stream
	usage   usage
	// hold keeps the blocks for a decode engine; transfer tells it of them.
	hold     bool
	transfer *transferParams
	// rooms are those of the prompts at a prefill engine.
	rooms []*room
}

type usage struct {
	PromptTokens     int            `json:"prompt_tokens"`
	TotalTokens      int            `json:"total_tokens"`
	CompletionTokens int            `json:"completion_tokens"`
	Details          *promptDetails `json:"prompt_tokens_details"`
}

type promptDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

func (h *Handler) generate(w http.ResponseWriter, r *http.Request, g *generation) {
	h.open.Add(1)
	defer h.open.Add(-1)
	if err := h.injectedFailure(); err != nil {
		writeError(w, err)
		return
	}
	g.created = h.options.Clock.Now().Unix()
	if err := g.submit(r); err != nil {
		g.close()
		var transfer *transferError
		if g.sampling.Stream && errors.As(err, &transfer) {
			g.stream(w, r, err)
			return
		}
		writeError(w, err)
		return
	}
	defer g.close()
	if g.sampling.Stream {
		g.stream(w, r, nil)
		return
	}
	g.answer(w, r)
}

// submit queues all prompts on one rank.
func (g *generation) submit(r *http.Request) error {
	adapter, adapterID, err := g.handler.adapter(g.sampling.Model)
	if err != nil {
		return err
	}
	if g.sampling.CacheSalt != nil && *g.sampling.CacheSalt == "" {
		return badRequest("cache_salt", "cache_salt: a non-empty string is expected")
	}
	if g.rank, g.rankID, err = g.pickRank(r); err != nil {
		return err
	}
	received, err := g.pair(r)
	if err != nil {
		return err
	}
	identity := blockhash.Identity{Adapter: adapter}
	if g.sampling.CacheSalt != nil {
		identity.Salt = *g.sampling.CacheSalt
	}
	for i, prompt := range g.prompts {
		limit, err := g.sampling.limit(len(prompt), g.rank.Config().MaxModelTokens, g.fallback)
		if err != nil {
			return err
		}
		if len(g.rooms) > 0 {
			limit = 1 // all else is for the decode engine
		}
		answer := tinymodel.NewAnswer(prompt, g.handler.options.AnswerSeed)
		stream, err := g.rank.Submit(&sched.Request{
			Prompt: prompt, MaxTokens: limit, Identity: identity, AdapterID: adapterID,
			ReceivedTokens: received[i], Hold: g.hold,
			Sample: func(index int) (uint32, bool) { return answer.Token(index, g.sampling.IgnoreEOS) },
		})
		if err != nil {
			return unavailable(err)
		}
		g.streams = append(g.streams, stream)
		if g.counts(i) {
			g.usage.PromptTokens += len(prompt)
		}
	}
	return nil
}

// counts reports whether a sequence is the first of its prompt.
func (g *generation) counts(index int) bool { return g.copies <= 1 || index%g.copies == 0 }

func (g *generation) close() {
	for _, stream := range g.streams {
		stream.Close()
	}
	for _, meeting := range g.rooms {
		g.handler.rooms.leave(meeting)
	}
	g.rooms = nil
}

// read passes the tokens of all sequences to each, one sequence after the
// other, and keeps the usage.
func (g *generation) read(r *http.Request, each func(index int, token rank.Token) error) error {
	clock := g.handler.options.Clock
	begin := clock.Now()
	for index, stream := range g.streams {
		for first := true; ; first = false {
			token, err := stream.Next(r.Context())
			if err != nil {
				return err
			}
			if first {
				g.handler.metrics.firstToken(g.rankID, token.At.Sub(begin))
				if g.counts(index) {
					g.addCached(token.CachedTokens)
				}
			}
			g.usage.CompletionTokens++
			if token.Finish != sched.Running {
				g.finish(r, index, token)
			}
			if err := each(index, token); err != nil {
				return err
			}
			if token.Finish != sched.Running {
				g.handler.metrics.finished(g.rankID, string(token.Finish), token.At.Sub(begin))
				break
			}
		}
	}
	g.usage.TotalTokens = g.usage.PromptTokens + g.usage.CompletionTokens
	return nil
}

// finish tells a decode engine that a prompt's KV is ready.
func (g *generation) finish(r *http.Request, index int, token rank.Token) {
	g.transfer = g.handedOver(r, token)
	if index < len(g.rooms) {
		g.rooms[index].finish(len(g.prompts[index]))
	}
}

func (g *generation) addCached(tokens int) {
	if g.handler.options.HideCachedTokens {
		return
	}
	if g.usage.Details == nil {
		g.usage.Details = &promptDetails{}
	}
	g.usage.Details.CachedTokens += tokens
}

// answer writes the whole response at once.
func (g *generation) answer(w http.ResponseWriter, r *http.Request) {
	ids := make([][]uint32, len(g.streams))
	finish := make([]string, len(g.streams))
	err := g.read(r, func(index int, token rank.Token) error {
		ids[index] = append(ids[index], token.Token)
		finish[index] = string(token.Finish)
		return nil
	})
	if err != nil {
		if r.Context().Err() == nil {
			writeError(w, unavailable(err))
		}
		return
	}
	choices := make([]any, len(ids))
	for i := range ids {
		choices[i] = g.format.choice(i, ids[i], finish[i], g.tokenIDs(i, ids[i]))
	}
	envelope := g.envelope(g.format.object(false), choices, &g.usage)
	if g.handler.options.Role != RoleSingle && g.handler.options.Runtime == VLLM {
		envelope["kv_transfer_params"] = g.transfer
	}
	writeJSON(w, envelope)
}

// tokenIDs returns the ids to show in a choice, or nil.
func (g *generation) tokenIDs(index int, generated []uint32) *tokenIDs {
	if !g.sampling.ReturnTokenIDs {
		return nil
	}
	return &tokenIDs{Prompt: g.prompts[index], Generated: generated}
}

// stream writes server-sent events, or failure as one. Headers go out at once,
// as in vLLM.
func (g *generation) stream(w http.ResponseWriter, r *http.Request, failure error) {
	header := w.Header()
	header.Set("Content-Type", "text/event-stream; charset=utf-8")
	header.Set("Cache-Control", "no-cache")
	header.Set("X-Request-Id", requestID(r))
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w)
	_ = flush.Flush()
	send := func(value any) error {
		raw, err := json.Marshal(value)
		if err != nil {
			return err
		}
		if _, err := w.Write([]byte("data: " + string(raw) + "\n\n")); err != nil {
			return err
		}
		return flush.Flush()
	}
	if failure != nil {
		body, _ := bodyOf(failure)
		_ = send(map[string]errorBody{"error": body})
		_, _ = w.Write([]byte("data: [DONE]\n\n"))
		return
	}
	started := make([]bool, len(g.streams))
	err := g.read(r, func(index int, token rank.Token) error {
		first := !started[index]
		started[index] = true
		ids := g.tokenIDs(index, []uint32{token.Token})
		if ids != nil && !first {
			ids.Prompt = nil
		}
		for _, delta := range g.format.deltas(index, token, first, ids) {
			if err := send(g.envelope(g.format.object(true), []any{delta}, nil)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		body, _ := bodyOf(unavailable(err))
		_ = send(map[string]errorBody{"error": body})
		return
	}
	if g.sampling.StreamOptions != nil && g.sampling.StreamOptions.IncludeUsage {
		_ = send(g.envelope(g.format.object(true), []any{}, &g.usage))
	}
	_, _ = w.Write([]byte("data: [DONE]\n\n"))
}

func (g *generation) envelope(object string, choices []any, usage *usage) map[string]any {
	model := g.sampling.Model
	if model == "" {
		model = g.handler.options.Model
	}
	envelope := map[string]any{
		"id": g.id, "object": object, "created": g.created, "model": model, "choices": choices,
	}
	if usage != nil {
		envelope["usage"] = usage
	}
	return envelope
}

func unavailable(err error) error {
	return &apiError{
		status: http.StatusServiceUnavailable, kind: "ServiceUnavailableError",
		message: err.Error(),
	}
}
