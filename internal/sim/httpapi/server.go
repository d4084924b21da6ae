// SPDX-License-Identifier: Apache-2.0

package httpapi

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/inferencecache/inference-cache/internal/sim/rank"
)

// maxBodyBytes bounds a request body.
const maxBodyBytes = 32 << 20

// Runtime is the engine that is simulated.
type Runtime string

// The runtimes.
const (
	VLLM   Runtime = "vllm"
	SGLang Runtime = "sglang"
)

// EventSource tells where one rank publishes its events.
type EventSource struct {
	Rank           int    `json:"data_parallel_rank"`
	Endpoint       string `json:"endpoint"`
	ReplayEndpoint string `json:"replay_endpoint,omitempty"`
	Topic          string `json:"topic"`
}

// Fault is one fault to inject, as the admin path takes it. Which fields
// matter depends on the kind.
type Fault struct {
	Kind    string `json:"kind"`
	Rank    int    `json:"rank"`
	Count   int    `json:"count"`   // default 1
	Millis  int64  `json:"millis"`  // for "stall"
	Status  int    `json:"status"`  // for "http_error", default 500
	Payload []byte `json:"payload"` // for "publish": the batch, base64
}

// Options of a Handler.
type Options struct {
	// Runtime defaults to VLLM.
	Runtime Runtime
	// Model is the base model's id.
	Model string
	// Adapters are the ids of LoRA adapters of Model.
	Adapters []string
	// Version is what the engine calls itself.
	Version string
	// AnswerSeed chooses the answers; engines with equal seeds answer alike.
	AnswerSeed uint64
	// Ranks has at least one element.
	Ranks []*rank.Rank
	// Events of each rank. Default: the engine publishes none.
	Events []EventSource
	// HideCachedTokens leaves cached tokens out of usage.
	HideCachedTokens bool
	// Inject carries out faults the handler does not know itself. Default
	// nil: there is no admin path.
	Inject func(ctx context.Context, fault Fault) error
	// Role in split prefill and decode. Default RoleSingle: no part of it.
	Role Role
	// Clock defaults to rank.SystemClock.
	Clock rank.Clock
}

// Handler serves one engine.
type Handler struct {
	options Options
	mux     *http.ServeMux
	metrics *metrics
	started time.Time
	open    atomic.Int64 // requests that generate, for /load
	// engineID is new with each start.
	engineID  string
	transfers *transfers
	rooms     *rooms

	failures atomic.Int64 // generating requests still to fail
	status   atomic.Int64 // with this status
}

// New returns the handler of an engine.
func New(options Options) *Handler {
	if options.Runtime == "" {
		options.Runtime = VLLM
	}
	if options.Clock == nil {
		options.Clock = rank.SystemClock{}
	}
	h := &Handler{
		options: options, mux: http.NewServeMux(), started: options.Clock.Now(),
		engineID: rand.Text(), transfers: newTransfers(), rooms: newRooms(),
	}
	registry := prometheus.NewRegistry()
	h.metrics = newMetrics(registry, &h.options)
	h.mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	h.mux.HandleFunc("GET /health", empty)
	h.mux.HandleFunc("GET /v1/models", h.models)
	h.mux.HandleFunc("POST /v1/completions", h.completions)
	h.mux.HandleFunc("POST /v1/chat/completions", h.chatCompletions)
	h.mux.HandleFunc("POST /v1/responses", h.responses)
	h.mux.HandleFunc("POST /v1/messages", h.messages)
	for _, path := range []string{"/v1/responses", "/v1/messages"} {
		h.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusMethodNotAllowed)
		})
	}
	h.mux.HandleFunc("POST /tokenize", h.tokenize)
	h.mux.HandleFunc("POST /detokenize", h.detokenize)
	if options.Runtime == SGLang {
		h.sglangRoutes()
	} else {
		h.vllmRoutes()
	}
	if options.Inject != nil {
		h.mux.HandleFunc("POST /sim/fault", h.fault)
	}
	h.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		writeError(w, notFound("Not Found"))
	})
	return h
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBodyBytes)
	h.mux.ServeHTTP(w, r)
}

func (h *Handler) vllmRoutes() {
	if h.options.Role != RoleSingle {
		h.mux.HandleFunc("POST "+pullPath, h.handOver)
	}
	h.mux.HandleFunc("GET /ping", empty)
	h.mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, map[string]string{"version": h.options.Version})
	})
	h.mux.HandleFunc("GET /load", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, map[string]int64{"server_load": h.open.Load()})
	})
	h.mux.HandleFunc("POST /reset_prefix_cache", h.resetCache)
	h.mux.HandleFunc("GET /kv_event_sources", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, slices.Concat([]EventSource{}, h.options.Events))
	})
	h.mux.HandleFunc("POST /v1/completions/render", h.renderCompletion)
	h.mux.HandleFunc("POST /v1/chat/completions/render", h.renderChat)
}

func empty(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }

// resetCache succeeds only when every rank was idle, as in the engines.
func (h *Handler) resetCache(w http.ResponseWriter, _ *http.Request) {
	ok := true
	for _, rank := range h.options.Ranks {
		ok = rank.Reset() && ok
	}
	if !ok {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusOK)
}

type modelCard struct {
	ID          string  `json:"id"`
	Object      string  `json:"object"`
	Created     int64   `json:"created"`
	OwnedBy     string  `json:"owned_by"`
	Root        string  `json:"root"`
	Parent      *string `json:"parent"`
	MaxModelLen *int    `json:"max_model_len"`
}

func (h *Handler) models(w http.ResponseWriter, _ *http.Request) {
	limit := h.maxModelTokens()
	card := modelCard{
		ID: h.options.Model, Object: "model", Created: h.started.Unix(),
		OwnedBy: string(h.options.Runtime), Root: h.options.Model, MaxModelLen: &limit,
	}
	cards := []modelCard{card}
	for _, adapter := range h.options.Adapters {
		tuned := card
		tuned.ID, tuned.Root, tuned.Parent, tuned.MaxModelLen = adapter, adapter, &h.options.Model, nil
		cards = append(cards, tuned)
	}
	writeJSON(w, map[string]any{"object": "list", "data": cards})
}

func (h *Handler) maxModelTokens() int { return h.options.Ranks[0].Config().MaxModelTokens }

// adapter resolves a request's model to an adapter name and its number, 0 for
// the base model. An empty model is the base model.
func (h *Handler) adapter(model string) (name string, id int, err error) {
	if model == "" || model == h.options.Model {
		return "", 0, nil
	}
	if i := slices.Index(h.options.Adapters, model); i >= 0 {
		return model, i + 1, nil
	}
	return "", 0, &apiError{
		status: http.StatusNotFound, kind: "NotFoundError", param: "model",
		message: "The model `" + model + "` does not exist.",
	}
}

// pickRank returns the rank the caller names, else the one of its bootstrap
// room, else the least loaded one. A header that is no number is ignored, as
// vLLM does.
func (g *generation) pickRank(r *http.Request) (*rank.Rank, int, error) {
	h := g.handler
	named, err := strconv.Atoi(r.Header.Get("X-Data-Parallel-Rank"))
	known := err == nil
	if !known && h.options.Runtime == SGLang {
		switch {
		case g.sampling.Rank != nil:
			named, known = *g.sampling.Rank, true
		case h.options.Role == RolePrefill && len(g.sampling.Room) > 0:
			named, known = h.rankOfRoom(g.sampling.Room[0]), true
		}
	}
	if known {
		if named < 0 || named >= len(h.options.Ranks) {
			return nil, 0, badRequest("", "data_parallel_rank %d is out of range [0, %d)", named, len(h.options.Ranks))
		}
		return h.options.Ranks[named], named, nil
	}
	best, bestLoad := 0, -1
	for i, candidate := range h.options.Ranks {
		stats := candidate.Stats()
		if load := stats.Running + stats.Waiting; bestLoad < 0 || load < bestLoad {
			best, bestLoad = i, load
		}
	}
	return h.options.Ranks[best], best, nil
}

// withPrefix gives an id the prefix of its kind, unless the caller did.
func withPrefix(prefix, id string) string { return prefix + strings.TrimPrefix(id, prefix) }

// requestID is the caller's id if it sent one, else a random one.
func requestID(r *http.Request) string {
	if id := r.Header.Get("X-Request-Id"); id != "" {
		return id
	}
	var random [16]byte
	_, _ = rand.Read(random[:]) // never fails
	return hex.EncodeToString(random[:])
}
