// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"encoding/json"
	"net/http"
	"path"
	"runtime/debug"
	"strconv"
	"time"
)

// componentHandler labels panics in handlers.
const componentHandler = "gateway"

// dataHandler serves clients. Those of a trusted listener may steer.
func (g *Gateway) dataHandler(trusted bool) http.Handler {
	mux := http.NewServeMux()
	for i := range routes {
		r := &routes[i]
		mux.Handle("POST "+r.path, g.instrument(r.endpoint, g.serveRoute(r, trusted)))
		mux.Handle(r.path, g.instrument(r.endpoint, methodNotAllowed(http.MethodPost)))
	}
	mux.Handle("GET /v1/models", g.instrument("models", g.admitted(trusted, g.serveModels)))
	mux.Handle("GET /v1/models/{id...}", g.instrument("models", g.admitted(trusted, g.serveModel)))
	unknown := g.instrument("other", func(w http.ResponseWriter, _ *http.Request) {
		notFound("no such endpoint").write(w)
	})
	mux.Handle("/", unknown)
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		w.Header().Set(headerRequestID, g.rootIDOf(request.Header, "req-").id)
		if request.ContentLength != 0 {
			// Whoever reads the body: it may not take for ever.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(g.options.Timeouts.BodyRead))
		}
		// The mux would answer such paths with a redirect.
		if path.Clean(request.URL.Path) != request.URL.Path {
			unknown.ServeHTTP(w, request)
			return
		}
		mux.ServeHTTP(w, request)
	})
}

func methodNotAllowed(allowed string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Allow", allowed)
		(&apiError{status: http.StatusMethodNotAllowed, code: "invalid_request", message: "expected " + allowed}).write(w)
	}
}

// instrument counts requests and turns a panic into an error of one request.
func (g *Gateway) instrument(endpoint string, next http.HandlerFunc) http.Handler {
	inflight := g.metrics.inflight.WithLabelValues(endpoint)
	seconds := g.metrics.requestSeconds.WithLabelValues(endpoint)
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		begin := time.Now()
		recorder := &statusRecorder{ResponseWriter: w}
		inflight.Inc()
		g.inflight.Add(1)
		defer func() {
			g.inflight.Add(-1)
			inflight.Dec()
			seconds.Observe(time.Since(begin).Seconds())
			cause := recover()
			if cause != nil && cause != http.ErrAbortHandler { //nolint:errorlint // a recovered value
				g.panicked(recorder, cause)
				cause = http.ErrAbortHandler
			}
			g.metrics.requests.WithLabelValues(endpoint, strconv.Itoa(recorder.code())).Inc()
			g.logAccess(endpoint, request, recorder, begin)
			if cause != nil {
				panic(cause)
			}
		}()
		next(recorder, request)
	})
}

func (g *Gateway) panicked(recorder *statusRecorder, cause any) {
	g.metrics.panics.WithLabelValues(componentHandler).Inc()
	g.logger.Error("panic in a handler", "cause", cause, "stack", string(debug.Stack()))
	if recorder.status == 0 {
		(&apiError{status: http.StatusInternalServerError, code: "internal_error", message: "internal error"}).write(recorder)
		_ = http.NewResponseController(recorder).Flush()
	}
}

// statusRecorder remembers the status of an answer.
type statusRecorder struct {
	http.ResponseWriter
	status int
	bytes  int64
	// exchange is nil for what engines do not answer.
	exchange *exchange
}

func (r *statusRecorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *statusRecorder) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	n, err := r.ResponseWriter.Write(p)
	r.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController reach the connection.
func (r *statusRecorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// code is the status, 499 when the client left before there was one.
func (r *statusRecorder) code() int {
	if r.status == 0 {
		return 499
	}
	return r.status
}

// serveModels lists what ready replicas serve.
func (g *Gateway) serveModels(w http.ResponseWriter, _ *http.Request) {
	models, fault := g.readyModels()
	if fault != nil {
		fault.write(w)
		return
	}
	list := struct {
		Object string            `json:"object"`
		Data   []json.RawMessage `json:"data"`
	}{Object: "list", Data: make([]json.RawMessage, len(models))}
	for i, m := range models {
		list.Data[i] = m.raw
	}
	writeJSON(w, list)
}

func (g *Gateway) serveModel(w http.ResponseWriter, request *http.Request) {
	models, fault := g.readyModels()
	if fault != nil {
		fault.write(w)
		return
	}
	for _, m := range models {
		if m.id == request.PathValue("id") {
			writeJSON(w, json.RawMessage(m.raw))
			return
		}
	}
	modelNotFound(request.PathValue("id")).write(w)
}

func (g *Gateway) readyModels() ([]model, *apiError) {
	ready := map[string]bool{}
	for _, state := range g.fleet.States(time.Now()) {
		if state.Ready && !state.Draining {
			ready[state.ID] = true
		}
	}
	if len(ready) == 0 {
		return nil, noReadyReplica()
	}
	return g.catalog.List(func(replica string) bool { return ready[replica] }), nil
}

func writeJSON(w http.ResponseWriter, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		http.Error(w, "cannot encode the answer", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body)
}
