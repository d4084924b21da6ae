// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/inferencecache/inference-cache/internal/finding"
)

// AdminHandler serves /healthz, /readyz, /metrics, /debug/state, /debug/trace
// and /debug/explain. It is what AdminListen serves, for use on another listener.
// With an admin token, all but the first two ask for it.
func (g *Gateway) AdminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", g.serveReady)
	metrics := promhttp.HandlerFor(g.options.Registry, promhttp.HandlerOpts{}).ServeHTTP
	if g.adminToken != nil {
		metrics = g.operatorsOnly(metrics)
	}
	mux.HandleFunc("GET /metrics", metrics)
	mux.HandleFunc("GET /debug/state", g.operatorsOnly(func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, g.State()) }))
	mux.HandleFunc("GET /debug/trace", g.operatorsOnly(g.serveTrace))
	if g.options.Profiling {
		g.addProfiles(mux)
	}
	mux.HandleFunc("POST /debug/explain", g.operatorsOnly(g.serveExplain))
	return mux
}

// serveReady says with ?verbose how many replicas are there.
func (g *Gateway) serveReady(w http.ResponseWriter, r *http.Request) {
	code, text := http.StatusOK, "ok"
	if waiting := g.Waiting(); waiting != "" {
		code, text = http.StatusServiceUnavailable, waiting
	}
	if r.URL.Query().Has("verbose") {
		ready, all := g.ReadyReplicas()
		text += fmt.Sprintf("\nreplicas: %d of %d ready", ready, all)
	}
	writeText(w, code, text)
}

// ReadyReplicas counts the replicas whose last check was good, and all.
func (g *Gateway) ReadyReplicas() (ready, all int) {
	states := g.fleet.States(time.Now())
	for _, s := range states {
		if s.Ready {
			ready++
		}
	}
	return ready, len(states)
}

// localOnly refuses peers on other machines: what it guards tells about the
// requests of others.
func localOnly(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, request *http.Request) {
		peer, err := netip.ParseAddrPort(request.RemoteAddr)
		if err != nil || !peer.Addr().Unmap().IsLoopback() {
			(&apiError{status: http.StatusForbidden, code: "forbidden", message: "only from this machine"}).write(w)
			return
		}
		next(w, request)
	}
}

func writeText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text + "\n"))
}

// Waiting says why the gateway is not ready, "" when it is. Replicas that are
// down do not count: clients get a clear answer meanwhile.
func (g *Gateway) Waiting() string {
	if g.draining.Load() {
		return "shutting down"
	}
	select {
	case <-g.checked:
		return ""
	default:
		return "first check of the replicas is under way"
	}
}

// State is a report on the gateway without any data of requests.
type State struct {
	Policy   string         `json:"policy"`
	Draining bool           `json:"draining"`
	Inflight int64          `json:"inflight"`
	Replicas []ReplicaState `json:"replicas"`
	// Breakers of the index and of the tokenizer.
	Breakers map[string]string `json:"breakers"`
	// Parity of token ids, one entry a model; empty before the first check.
	Parity []ParityState `json:"parity"`
	// Findings are what is wrong now.
	Findings []finding.Finding `json:"findings"`
}

// ReplicaState is a report on one replica.
type ReplicaState struct {
	ID        string   `json:"id"`
	Runtime   string   `json:"runtime"`
	Tenant    string   `json:"tenant"`
	Role      string   `json:"role"`
	Models    []string `json:"models"`
	BlockSize int64    `json:"block_size"`
	Ready     bool     `json:"ready"`
	// Problem is why its last check failed; empty if it did not.
	Problem  string `json:"problem"`
	Draining bool   `json:"draining"`
	Cordoned bool   `json:"cordoned"`
	Asleep   bool   `json:"asleep"`
	// Dishonest is set while the engine has less than half of what the index
	// claims, so that its prefixes get no credit.
	Dishonest bool   `json:"dishonest"`
	Breaker   string `json:"breaker"`
	Saturated bool   `json:"saturated"`
	Inflight  int    `json:"inflight"`
	// QueueTokens wait for prefill; WaitSeconds is what they and a full cache
	// cost; PrefillRate is in tokens per second.
	QueueTokens int64   `json:"queue_tokens"`
	WaitSeconds float64 `json:"wait_seconds"`
	PrefillRate float64 `json:"prefill_rate"`
	// CacheUsage is null while no fresh report is there.
	CacheUsage *float64 `json:"cache_usage"`
}

// State reports on the gateway.
func (g *Gateway) State() State {
	state := State{
		Policy: g.fleet.Policy(), Draining: g.draining.Load(), Inflight: g.inflight.Load(),
		Replicas: []ReplicaState{}, Breakers: map[string]string{},
		Parity: g.parity.states(), Findings: g.found.Open(),
	}
	for target, current := range g.breakerStates() {
		state.Breakers[target] = current.String()
	}
	for _, s := range g.fleet.States(time.Now()) {
		u := g.roster.get(s.ID)
		if u == nil {
			continue // left just now
		}
		replica := ReplicaState{
			ID: s.ID, Runtime: u.Runtime, Tenant: u.Tenant, Role: s.Role.String(), BlockSize: u.blockSize.Load(),
			Ready: s.Ready, Draining: s.Draining, Cordoned: s.Cordoned, Asleep: s.Asleep, Dishonest: s.Dishonest, Breaker: s.Breaker.String(), Saturated: s.View.Saturated,
			Inflight: s.View.Inflight, QueueTokens: s.View.QueueTokens, WaitSeconds: s.View.WaitSeconds,
			PrefillRate: s.View.RateTokens, Models: []string{},
		}
		for _, m := range g.catalog.List(func(id string) bool { return id == s.ID }) {
			replica.Models = append(replica.Models, m.id)
		}
		replica.Problem, _ = u.problem.Load().(string)
		if s.View.UsageKnown {
			replica.CacheUsage = &s.View.Usage
		}
		state.Replicas = append(state.Replicas, replica)
	}
	return state
}
