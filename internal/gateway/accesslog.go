// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/inferencecache/inference-cache/internal/trace"
)

// accessLine is one request in the access log. It holds no prompt data and no
// client address.
type accessLine struct {
	Time       string  `json:"time"`
	RequestID  string  `json:"request_id"`
	Method     string  `json:"method"`
	Endpoint   string  `json:"endpoint"`
	Status     int     `json:"status"`
	DurationMS float64 `json:"duration_ms"`
	BytesOut   int64   `json:"bytes_out"`
	// The rest is left out for requests that engines do not answer.
	BytesIn int    `json:"bytes_in,omitempty"`
	Tenant  string `json:"tenant,omitempty"`
	Model   string `json:"model,omitempty"`
	Stream  bool   `json:"stream,omitempty"`
	Replica string `json:"replica,omitempty"`
	// Prefill computed the prompt, if that was another replica.
	Prefill  string `json:"prefill,omitempty"`
	Origin   string `json:"origin,omitempty"`
	Branch   string `json:"branch,omitempty"`
	Reason   string `json:"reason_code,omitempty"`
	Attempts int    `json:"attempts,omitempty"`
	// TTFBMS, PromptTokens and CachedTokens are null while unknown;
	// CachedTokens is the engine's own count.
	TTFBMS       *float64 `json:"ttfb_ms,omitempty"`
	PromptTokens *int     `json:"prompt_tokens,omitempty"`
	CachedTokens *int     `json:"cached_tokens,omitempty"`
}

// openAccessLog starts nothing yet.
func (g *Gateway) openAccessLog() {
	if g.options.AccessLog != nil {
		g.accessLog = trace.NewLines(g.options.AccessLog, g.metrics.accessDropped.Inc)
	}
}

// logAccess writes the line of a finished request.
func (g *Gateway) logAccess(endpoint string, request *http.Request, recorder *statusRecorder, begin time.Time) {
	if g.accessLog == nil {
		return
	}
	line := accessLine{
		Time: begin.UTC().Format(time.RFC3339Nano), RequestID: recorder.Header().Get(headerRequestID),
		Method: trace.Cut(request.Method, 16), Endpoint: endpoint, Status: recorder.code(),
		DurationMS: milliseconds(time.Since(begin)), BytesOut: recorder.bytes,
	}
	if x := recorder.exchange; x != nil {
		x.describeAccess(&line)
	}
	if text, err := json.Marshal(&line); err == nil { // strings and numbers always encode
		g.accessLog.Write(text)
	}
}

func (x *exchange) describeAccess(line *accessLine) {
	line.BytesIn, line.Tenant, line.Stream = len(x.body), x.caller.Tenant, x.fields.stream
	line.Model, line.Attempts = trace.Cut(x.fields.model, trace.MaxTextBytes), x.tracing.attempts
	line.Replica, line.Origin = x.decision.Replica, string(x.decision.Origin)
	line.Branch, line.Reason = string(x.decision.Prediction.Branch), x.decision.Prediction.ReasonCode
	line.Prefill = x.pairing.prefill
	r := x.relayed
	if r == nil {
		return
	}
	if !r.firstAt.IsZero() {
		first := milliseconds(r.firstAt.Sub(x.started))
		line.TTFBMS = &first
	}
	if reported := r.usage.last; reported != nil && r.counts {
		line.PromptTokens = &reported.PromptTokens
		if cached, known := reported.cachedTokens(); known {
			line.CachedTokens = &cached
		}
	}
}
