// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inferencecache/inference-cache/internal/gate"
	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/policy"
	"github.com/inferencecache/inference-cache/internal/probe"
)

// Gate decides who may call. Check may block while it asks somebody, no longer
// than the request's context, and is called from many goroutines at once.
type Gate interface {
	Check(*http.Request) gate.Verdict
}

// Gates has one gate for each kind of caller. All are required.
type Gates struct {
	// Snapshot guards /snapshot and /status, Policy /policy and
	// /policy/extensions, Probe /probe.
	Snapshot, Policy, Probe Gate
}

// Complete reports whether every gate is there.
func (g Gates) Complete() bool { return g.Snapshot != nil && g.Policy != nil && g.Probe != nil }

// Prober runs the self-test. The error is that of the context.
type Prober interface {
	Run(context.Context, probe.Request) (probe.Result, error)
}

// Holdings is what a snapshot shows of an index. Rows come in order and leave
// the reserved tenant out.
type Holdings interface {
	EachReplica(func(index.ReplicaRow))
	EachTenant(func(index.TenantRow))
	Counters(nowMillis int64) index.Counters
}

// DefaultPolicyMaxBytes is the longest body once it is decompressed.
const DefaultPolicyMaxBytes = 16 << 20

// Options of a Handler. Fields without a default are required.
type Options struct {
	Gates    Gates
	Policies *policy.Store
	Holdings Holdings
	Prober   Prober
	// Epoch names this process, StartedAt is when it began.
	Epoch     string
	StartedAt time.Time
	// HotPrefixes counts the prefixes that are matched often; default 0.
	HotPrefixes func() int64
	// Ready says what /readyz would; default true.
	Ready func() bool
	// PolicyMaxBytes bounds a compressed body's plain size; default
	// DefaultPolicyMaxBytes.
	PolicyMaxBytes int
	// Registry takes the metrics; default a new one.
	Registry prometheus.Registerer
	// Panicked is told what was recovered; default nobody.
	Panicked func(cause any, stack []byte)
	// Logger takes the logs; default none.
	Logger *slog.Logger
	// Now is the clock; default time.Now.
	Now func() time.Time
}

func (o Options) withDefaults() Options {
	if o.Ready == nil {
		o.Ready = func() bool { return true }
	}
	if o.HotPrefixes == nil {
		o.HotPrefixes = func() int64 { return 0 }
	}
	if o.PolicyMaxBytes == 0 {
		o.PolicyMaxBytes = DefaultPolicyMaxBytes
	}
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
	}
	if o.Panicked == nil {
		o.Panicked = func(any, []byte) {}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// capabilities are what this server can do beyond the contract.
var capabilities = []string{"gzip", "extensions.v1"}

// Headers of every response, and of pushes.
const (
	headerEpoch              = "X-Inference-Cache-Server-Epoch"
	headerPolicyRevision     = "X-Inference-Cache-Policy-Revision"
	headerExtensionsRevision = "X-Inference-Cache-Extensions-Revision"
	headerCapabilities       = "X-Inference-Cache-Capabilities"
)

// Handler serves the internal paths. It is safe for concurrent use.
type Handler struct {
	options   Options
	metrics   *metrics
	endpoints map[string]*endpoint // by path

	// applying makes pushes one at a time, so that their logs and metrics
	// come in order and only one large body is decoded at once.
	applying sync.Mutex
}

// endpoint is one path.
type endpoint struct {
	name    endpointName
	gate    Gate
	counter audience
	methods []string
	serve   http.HandlerFunc
}

// New returns a handler.
func New(options Options) *Handler {
	options = options.withDefaults()
	h := &Handler{options: options, metrics: newMetrics(options.Registry)}
	gates, read, push := options.Gates, []string{http.MethodGet}, []string{http.MethodPost, http.MethodPut}
	h.endpoints = map[string]*endpoint{
		"/snapshot":          {endpointSnapshot, gates.Snapshot, audienceSnapshot, read, h.serveSnapshot},
		"/status":            {endpointStatus, gates.Snapshot, audienceSnapshot, read, h.serveStatus},
		"/policy":            {endpointPolicy, gates.Policy, audiencePolicy, push, h.servePush(h.policyKind())},
		"/policy/extensions": {endpointExtensions, gates.Policy, audiencePolicy, push, h.servePush(h.extensionsKind())},
		"/probe":             {endpointProbe, gates.Probe, audienceProbe, []string{http.MethodPost}, h.serveProbe},
	}
	return h
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	response := &response{ResponseWriter: w, handler: h}
	name := endpointOther
	endpoint, ok := h.endpoints[r.URL.Path]
	if ok {
		name = endpoint.name
	}
	defer func() {
		if cause := recover(); cause != nil {
			h.options.Panicked(cause, debug.Stack())
			if response.code == 0 {
				refuse(response, http.StatusInternalServerError, "internal error")
			}
		}
		h.metrics.answered(name, response.code, time.Since(start))
	}()
	if !ok {
		refuse(response, http.StatusNotFound, "not found")
		return
	}
	h.admit(endpoint, response, r)
}

// admit asks the gate before it looks at anything else.
func (h *Handler) admit(e *endpoint, w http.ResponseWriter, r *http.Request) {
	verdict := e.gate.Check(r)
	h.metrics.checked(e.counter, verdict)
	switch verdict {
	case gate.OK:
	case gate.Unauthenticated:
		w.Header().Set("WWW-Authenticate", "Bearer")
		refuse(w, http.StatusUnauthorized, "unauthorized")
		return
	case gate.Forbidden:
		refuse(w, http.StatusForbidden, "forbidden")
		return
	default:
		refuse(w, http.StatusServiceUnavailable, "the caller cannot be checked now")
		return
	}
	for _, method := range e.methods {
		if r.Method == method {
			e.serve(w, r)
			return
		}
	}
	w.Header().Set("Allow", strings.Join(e.methods, ", "))
	refuse(w, http.StatusMethodNotAllowed, "method not allowed")
}

func refuse(w http.ResponseWriter, code int, text string) {
	http.Error(w, text, code)
}

// response adds the headers of every response when it begins, and remembers
// its status code.
type response struct {
	http.ResponseWriter
	handler *Handler
	code    int // 0 until the response began
}

// WriteHeader implements http.ResponseWriter.
func (w *response) WriteHeader(code int) {
	if w.code == 0 {
		w.code = code
		w.handler.identify(w.Header())
	}
	w.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (w *response) Write(text []byte) (int, error) {
	if w.code == 0 {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(text)
}

// Unwrap lets http.ResponseController through.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// identify says which process answers and which policy it has in force.
func (h *Handler) identify(header http.Header) {
	view := h.options.Policies.View()
	header.Set(headerEpoch, h.options.Epoch)
	header.Set(headerCapabilities, strings.Join(capabilities, ","))
	if revision := view.Origin().Revision; revision != "" {
		header.Set(headerPolicyRevision, revision)
	}
	if revision := view.ExtensionsOrigin().Revision; revision != "" {
		header.Set(headerExtensionsRevision, revision)
	}
}

// writeJSON sends a body that is complete.
func writeJSON(w http.ResponseWriter, body []byte) {
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // the client may be gone
}
