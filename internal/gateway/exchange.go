// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/caller"
	"github.com/inferencecache/inference-cache/internal/chatform"
	"github.com/inferencecache/inference-cache/internal/routing"
	"github.com/inferencecache/inference-cache/internal/tokenize"
	"github.com/inferencecache/inference-cache/internal/trace"
)

// route is an endpoint that is passed on to engines.
type route struct {
	path string
	// endpoint is its name in metrics, idPrefix begins the ids of its
	// requests.
	endpoint, idPrefix string
	// generates is set for endpoints that profit from a cached prefix; chat
	// tells their two forms apart. All others go by load.
	generates, chat bool
	// form is that of a chat which is no chat completion; engines may lack
	// such an endpoint.
	form chatform.Form
	// unsalted requests use no cache.
	unsalted bool
}

var routes = []route{
	{path: "/v1/chat/completions", endpoint: "chat_completions", idPrefix: "chatcmpl-", generates: true, chat: true},
	{path: "/v1/completions", endpoint: "completions", idPrefix: "cmpl-", generates: true},
	{path: "/v1/responses", endpoint: "responses", idPrefix: "resp_", generates: true, chat: true, form: chatform.Responses},
	{path: "/v1/messages", endpoint: "messages", idPrefix: "msg_", generates: true, chat: true, form: chatform.Messages},
	{path: "/v1/embeddings", endpoint: "embeddings", idPrefix: "embd-"},
	{path: "/v1/score", endpoint: "score", idPrefix: "req-"},
	{path: "/v1/rerank", endpoint: "rerank", idPrefix: "req-"},
	{path: "/rerank", endpoint: "rerank", idPrefix: "req-"},
	{path: "/v1/classify", endpoint: "classify", idPrefix: "req-"},
	{path: "/tokenize", endpoint: "tokenize", idPrefix: "req-", unsalted: true},
	{path: "/detokenize", endpoint: "detokenize", idPrefix: "req-", unsalted: true},
}

// errShutdown, errFirstByte and errIdle are causes of a cancelled exchange;
// any other cause is the client's.
var (
	errShutdown  = errors.New("gateway is shutting down")
	errFirstByte = errors.New("no first byte in time")
	errIdle      = errors.New("no further byte in time")
)

// exchange is one request on its way through the gateway. It belongs to the
// request's goroutine.
type exchange struct {
	gateway *Gateway
	writer  http.ResponseWriter
	request *http.Request
	route   *route
	rootID  string
	started time.Time
	caller  Caller
	foundBy caller.Method
	// trusted clients may steer, and send fields that others may not.
	trusted  bool
	steering steering

	body   []byte
	fields fields
	prompt tokenize.Prompt
	model  resolved
	// promptTokens is 0 while unknown.
	promptTokens int
	batch        bool
	// tooLong is set for a prompt beyond what is tokenized.
	tooLong bool
	// chain is the prompt by the block keys of the first pool that sets it.
	chain     routing.Chain
	noteChain sync.Once
	// usageAdded is set when the body was changed to ask for usage.
	usageAdded bool
	// decision is the one of the latest attempt.
	decision routing.Decision
	// relayed is the answer that went to the client; nil if none did.
	relayed *relay
	tracing tracing
	pairing pairing
}

// serveRoute answers requests of one endpoint.
func (g *Gateway) serveRoute(r *route, trusted bool) http.HandlerFunc {
	return func(w http.ResponseWriter, request *http.Request) {
		x := &exchange{
			gateway: g, writer: w, request: request, route: r, trusted: trusted, started: time.Now(),
		}
		root := g.rootIDOf(request.Header, r.idPrefix)
		x.rootID = root.id
		x.beginTrace(&root)
		defer x.tracing.request.End()
		if recorder, ok := w.(*statusRecorder); ok {
			recorder.exchange = x
		}
		w.Header().Set(headerRequestID, x.rootID)
		ctx, cancel := context.WithCancelCause(request.Context())
		defer cancel(nil)
		defer context.AfterFunc(g.stopping, func() { cancel(errShutdown) })()
		x.serve(ctx)
	}
}

func (x *exchange) serve(ctx context.Context) {
	g := x.gateway
	if fault := x.authenticate(ctx); fault != nil {
		x.reject(fault)
		return
	}
	g.budget.request(x.started)
	x.tracing.phase = trace.PhaseAcquire
	ticket, fault := x.admit(ctx)
	if fault != nil {
		x.reject(fault)
		return
	}
	defer ticket.Leave()
	x.tracing.phase = trace.PhaseIngress
	fault = x.readBody()
	if fault == nil {
		fault = x.parseBody()
	}
	received := time.Now()
	if fault == nil {
		fault = x.resolveModel()
	}
	x.traceBody()
	if fault == nil {
		fault = x.saltBody()
	}
	if fault != nil {
		x.reject(fault)
		return
	}
	request := x.routingRequest(ctx)
	ticket.Settle(cmp.Or(x.promptTokens, request.PromptBytes/bytesPerToken))
	x.askForUsage()
	g.metrics.overheadSeconds.WithLabelValues(x.route.endpoint).Observe(time.Since(received).Seconds())
	x.place(ctx, &request)
}

// routingRequest gathers what the choice of a replica rests on. It asks the
// index only if there is something to choose from.
func (x *exchange) routingRequest(ctx context.Context) routing.Request {
	request := routing.Request{
		Now: time.Now(), Model: x.model.base, Adapter: x.model.adapter,
		PromptBytes: len(x.body), LoadOnly: !x.route.generates, Target: x.steering.target,
		AnyRole: !x.route.generates, Exclude: x.unfit(), Tenant: x.caller.Tenant, ShedAbove: x.gateway.live.Load().shedAbove,
	}
	if !x.route.generates {
		return request
	}
	request.Streamed = x.fields.stream
	request.Sticky = x.stickyKey()
	request.PromptBytes = x.prompt.Bytes()
	if eligible := x.eligible(&request); len(eligible) > 1 {
		request.Hint = x.hint(ctx, eligible)
		request.PromptTokens = x.promptTokens
		request.Chain = x.chain
		if request.PromptTokens == 0 {
			request.Chain = x.textChain()
		}
	}
	return request
}

// resolveModel finds the base model and the adapter that the client's name
// stands for.
func (x *exchange) resolveModel() *apiError {
	found := false
	x.model, found = x.gateway.catalog.Resolve(x.fields.model)
	switch {
	case found:
		x.prompt.Model = x.model.name
		if x.prompt.Model == "" {
			x.prompt.Model = x.model.base
		}
		return nil
	case !x.gateway.anyReady():
		return noReadyReplica()
	case x.fields.model == "":
		return invalidRequest("model", "model is required, because several are served")
	default:
		return modelNotFound(x.fields.model)
	}
}

// reject answers with an error of the gateway's own.
func (x *exchange) reject(fault *apiError) {
	x.gateway.metrics.countRejection(fault)
	if x.body == nil {
		x.refuseBody()
	}
	x.traceRejection(fault)
	fault.write(x.writer)
}

// decide takes the decision for one attempt and counts it.
func (x *exchange) decide(request *routing.Request) *routing.Guard {
	request.Now = time.Now()
	decision, guard := x.gateway.fleet.Decide(request)
	if unfit := x.unfit(); guard == nil && len(request.Exclude) > len(unfit) {
		request.Exclude = unfit // nobody else is left: try those that failed again
		decision, guard = x.gateway.fleet.Decide(request)
	}
	request.ShedAbove = 0 // it was let in
	x.noteDecision(request, decision)
	return guard
}

// decideOnce is decide for an attempt that may also not be made.
func (x *exchange) decideOnce(request *routing.Request) *routing.Guard {
	request.Now = time.Now()
	decision, guard := x.gateway.fleet.Decide(request)
	if guard != nil {
		x.noteDecision(request, decision)
	}
	return guard
}

// noteDecision counts a decision.
func (x *exchange) noteDecision(request *routing.Request, decision routing.Decision) {
	m := x.gateway.metrics
	m.selectSeconds.Observe(time.Since(request.Now).Seconds())
	x.decision = decision
	x.traceDecision(request, &decision)
	x.noteTarget(&decision)
	x.countDecision(&decision)
}

func (x *exchange) countDecision(decision *routing.Decision) {
	m := x.gateway.metrics
	branch := decision.Prediction.Branch
	if branch == "" {
		branch = routing.BranchNone
	}
	m.decisions.WithLabelValues(string(decision.Origin), string(branch)).Inc()
	if decision.Prediction.Source != "" {
		m.predictions.WithLabelValues(string(decision.Prediction.Source)).Inc()
	}
	if decision.Hint != routing.HintAbsent {
		m.hints.WithLabelValues(string(decision.Hint)).Inc()
	}
	if decision.UnplaceableCount > 0 {
		if decision.Hint != routing.HintUnplaceable {
			m.hints.WithLabelValues(string(routing.HintUnplaceable)).Inc()
		}
		x.gateway.warnUnplaceable(decision)
	}
	if decision.Move != routing.MoveNone {
		m.moves.WithLabelValues(string(decision.Move)).Inc()
	}
}

// warnUnplaceable shows both spellings of a replica that the index knows and
// this gateway does not.
func (g *Gateway) warnUnplaceable(decision *routing.Decision) {
	if !g.findings.allow("unplaceable", time.Now()) {
		return
	}
	known := make([]string, 0, len(decision.Candidates))
	for _, c := range decision.Candidates {
		known = append(known, c.ID)
	}
	g.logger.Warn("the index names a replica that is no candidate here", "finding", "unplaceable",
		"named", truncate(decision.Unplaceable, 256), "candidates", known)
}

func truncate(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "")
}

// exposeDecision tells the client which replica answered and why.
func (x *exchange) exposeDecision(header http.Header) {
	if !x.gateway.options.ExposeReplica {
		return
	}
	header.Set(headerReplica, x.decision.Replica)
	reason := "origin=" + string(x.decision.Origin)
	if branch := x.decision.Prediction.Branch; branch != "" {
		reason += "; branch=" + string(branch)
	}
	if code := x.decision.Prediction.ReasonCode; code != "" {
		reason += "; code=" + knownReason(code)
	}
	header.Set(headerReason, reason+x.pairing.reason())
}
