// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"cmp"
	"net/http"
	"time"

	"github.com/inferencecache/inference-cache/internal/caller"
	"github.com/inferencecache/inference-cache/internal/chatform"
	"github.com/inferencecache/inference-cache/internal/jsonscan"
	"github.com/inferencecache/inference-cache/internal/routing"
)

// Explanation is a decision with what it was made from, and no prompt data.
type Explanation struct {
	Model   string `json:"model"`
	Adapter string `json:"adapter"`
	Policy  string `json:"policy"`
	Origin  string `json:"origin"`
	// Branch and Source are empty when no policy was asked.
	Branch string `json:"branch"`
	Source string `json:"source"`
	// Replica is empty when none is eligible.
	Replica    string `json:"replica"`
	ReasonCode string `json:"reason_code"`
	// HintOutcome says what became of the replicas the index named.
	HintOutcome string `json:"hint_outcome"`
	TieBreak    string `json:"tie_break"`
	// PromptTokens is 0 when the prompt was not tokenized.
	PromptTokens      int            `json:"prompt_tokens"`
	BlockSize         int            `json:"block_size"`
	RequestBlocks     int            `json:"request_blocks"`
	OverlapTokens     int            `json:"overlap_tokens"`
	BestOverlapTokens int            `json:"best_overlap_tokens"`
	CandidatesTotal   int            `json:"candidates_total"`
	Candidates        []ExplainedOne `json:"candidates"`
	// PD says how a request with a decode replica would be served; left out
	// without one. The choice above is that of the decode replica then, and
	// Prefill that of the prefill replica, if one was looked for.
	PD      string       `json:"pd,omitempty"`
	Prefill *Explanation `json:"prefill,omitempty"`
}

// ExplainedOne is one candidate of an Explanation.
type ExplainedOne struct {
	Replica string `json:"replica"`
	// Gate is why it could not be chosen; empty for an eligible one.
	Gate          string   `json:"gate"`
	MatchedTokens int      `json:"matched_tokens"`
	HintScore     float32  `json:"hint_score"`
	WaitSeconds   float64  `json:"wait_seconds"`
	Saturated     bool     `json:"saturated"`
	Inflight      int      `json:"inflight"`
	QueueTokens   int64    `json:"queue_tokens"`
	PrefillRate   float64  `json:"prefill_rate"`
	CacheUsage    *float64 `json:"cache_usage"`
}

// serveExplain answers with the decision a request would get now. The body is
// that of a completion or, if it has messages, of a chat completion.
func (g *Gateway) serveExplain(w http.ResponseWriter, request *http.Request) {
	x := &exchange{gateway: g, writer: w, request: request, started: time.Now(), trusted: true}
	fault := x.explainedCaller()
	if fault == nil {
		fault = x.readBody()
	}
	if fault == nil {
		x.route = generatingRoute(x.body)
		fault = x.parseBody()
	}
	if fault == nil {
		fault = x.resolveModel()
	}
	if fault == nil {
		fault = x.saltBody()
	}
	if fault != nil {
		fault.write(w)
		return
	}
	asked := x.routingRequest(request.Context())
	writeJSON(w, x.explain(&asked))
}

// explain previews the decision, both of them for two legs.
func (x *exchange) explain(asked *routing.Request) Explanation {
	fleet := x.gateway.fleet
	if asked.Role == routing.RoleDecode {
		pair := fleet.PreviewPair(asked, x.pairRules())
		single := *asked
		single.Role = routing.RoleSingle
		if pair.Mode != routing.PairNone || len(fleet.Eligible(nil, &single)) == 0 {
			return explainPair(x.model, &pair)
		}
		asked = &single
	}
	decision := fleet.Preview(asked)
	return explain(x.model, &decision)
}

func explainPair(m resolved, pair *routing.Pair) Explanation {
	e := explain(m, &pair.Decode.Decision)
	e.PD = string(pair.Mode)
	if pair.Asked {
		prefill := explain(m, &pair.Prefill.Decision)
		e.Prefill = &prefill
	}
	return e
}

// explainedCaller takes the caller tenant and what else a trusted client may
// ask for from the headers: an operator may ask for anybody.
func (x *exchange) explainedCaller() *apiError {
	x.caller.Tenant = cmp.Or(x.request.Header.Get(caller.TenantHeader), x.gateway.options.Access.DefaultTenant, caller.DefaultTenant)
	var fault *apiError
	x.steering, fault = steeringOf(x.request.Header)
	return fault
}

// generatingRoute tells the two kinds of completions apart by their bodies.
func generatingRoute(body []byte) *route {
	chat := false
	_ = jsonscan.Object(body, func(key, _ []byte) error { // parseBody reports errors
		chat = chat || bytes.Equal(key, []byte("messages"))
		return nil
	})
	for i := range routes {
		if routes[i].generates && routes[i].form == chatform.None && routes[i].chat == chat {
			return &routes[i]
		}
	}
	return nil
}

func explain(m resolved, d *routing.Decision) Explanation {
	p := &d.Prediction
	e := Explanation{
		Model: m.base, Adapter: m.adapter, Policy: d.Policy, Origin: string(d.Origin),
		Branch: string(p.Branch), Source: string(p.Source), Replica: d.Replica,
		ReasonCode: p.ReasonCode, HintOutcome: string(d.Hint), TieBreak: string(d.TieBreak),
		PromptTokens: p.PromptTokens, BlockSize: p.BlockSize, RequestBlocks: p.RequestBlocks,
		OverlapTokens: p.OverlapTokens, BestOverlapTokens: p.BestOverlapTokens,
		CandidatesTotal: d.CandidatesTotal, Candidates: make([]ExplainedOne, len(d.Candidates)),
	}
	for i := range d.Candidates {
		c := &d.Candidates[i]
		e.Candidates[i] = ExplainedOne{
			Replica: c.ID, Gate: string(c.Gate), MatchedTokens: c.MatchedTokens, HintScore: c.HintScore,
			WaitSeconds: c.WaitSeconds, Saturated: c.Saturated, Inflight: c.Inflight,
			QueueTokens: c.QueueTokens, PrefillRate: c.RateTokens,
		}
		if c.UsageKnown {
			e.Candidates[i].CacheUsage = &c.Usage
		}
	}
	return e
}
