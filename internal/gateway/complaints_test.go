// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/gateway"
	"github.com/inferencecache/inference-cache/internal/trace/report"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// fickle is an index whose answers a test changes.
func fickle() (lookups *index, say func(reason string, replicas ...string)) {
	var now atomic.Pointer[index]
	now.Store(says("NO_HINT"))
	lookups = &index{answer: func(ctx context.Context, r *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
		return now.Load().answer(ctx, r)
	}}
	return lookups, func(reason string, replicas ...string) {
		next := says(reason, replicas...)
		if reason == "" {
			next.answer = func(context.Context, *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
				return nil, errors.New("gone")
			}
		}
		now.Store(next)
	}
}

// serves sends requests until a condition holds; all of them must succeed.
func (f *fixture) serves(what string, condition func() bool) {
	f.t.Helper()
	eventually(f.t, what, func() bool {
		if got := f.post("/v1/completions", prompt()); got.status != 200 {
			f.t.Fatalf("%s: %d %s", what, got.status, got.body)
		}
		return condition()
	})
}

// TestGW09SilentSignalsAreNoticed takes away events, index and tokenizer, one
// by one, and gives each back.
func TestGW09SilentSignalsAreNoticed(t *testing.T) {
	lookups, say := fickle()
	var deaf atomic.Bool
	tokenizer := func(e *engine) {
		e.tokenize = func(w http.ResponseWriter, r *http.Request) {
			if deaf.Load() {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			tokenizeBytes(w, r)
		}
	}
	f := start(t, gateway.Options{Lookuper: lookups}, newEngine(t, "a", tokenizer), newEngine(t, "b", tokenizer))
	state := func(name string) func() bool {
		return func() bool { return f.value("routing_index_state", "state", name) == 1 }
	}
	warned := func(text string) {
		t.Helper()
		if f.logs.count(text) == 0 {
			t.Errorf("no warning %q", text)
		}
	}
	guesses := func() float64 { return f.value("routing_predictions_total", "source", "approx_tree") }

	say("UNKNOWN_MODEL")
	f.serves("the index is blind", state("blind"))
	warned("index sees nothing of this model")
	before := guesses()
	f.serves("own placements stand in", func() bool { return guesses() > before })
	say("PREFIX_MATCH", "a")
	f.serves("it sees again", state("ok"))

	say("")
	f.serves("the index is down", state("down"))
	warned("index does not answer")
	before = guesses()
	f.serves("own placements stand in", func() bool { return guesses() > before })
	say("PREFIX_MATCH", "a")
	f.serves("it is back", state("ok"))

	// Answers to prompts seen before come from the cache, so these are new.
	deaf.Store(true)
	fresh := 0
	novel := func(condition func() bool) func() bool {
		return func() bool {
			fresh++
			if got := f.post("/v1/completions", completion(fmt.Sprintf("%064d", fresh))); got.status != 200 {
				t.Fatalf("%d %s", got.status, got.body)
			}
			return condition()
		}
	}
	eventually(t, "the tokenizer is given up", novel(func() bool {
		return f.value("gateway_breaker_state", "target", "tokenizer", "state", "open") == 1 && f.logs.count("tokenizer keeps failing") > 0
	}))
	if f.value("routing_decisions_total", "origin", "policy", "branch", "tokenizer_unavailable") == 0 {
		t.Error("decisions do not name the tokenizer")
	}
	deaf.Store(false)
	eventually(t, "the tokenizer is back", novel(func() bool {
		return f.value("gateway_breaker_state", "target", "tokenizer", "state", "closed") == 1
	}))
}

// TestGW13ARestartedGatewayFindsTheHolders checks that follow-up turns reach
// the replica that holds them although the gateway remembers nothing.
func TestGW13ARestartedGatewayFindsTheHolders(t *testing.T) {
	const conversations = 100
	holders := sync.Map{} // by the first block
	lookups := &index{answer: func(_ context.Context, r *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
		holder, known := holders.Load(string(r.GetBlockHashes()[0]))
		if !known {
			return &pb.LookupRouteResponse{ReasonCode: "NO_HINT"}, nil
		}
		return &pb.LookupRouteResponse{ReasonCode: "PREFIX_MATCH", ReplicaScores: []*pb.ReplicaScore{
			{ReplicaId: holder.(string), Score: 1, MatchedTokens: 64},
		}}, nil
	}}
	engines := []*engine{newEngine(t, "a"), newEngine(t, "b"), newEngine(t, "c"), newEngine(t, "d")}
	options := gateway.Options{Lookuper: lookups, ExposeReplica: true, Policy: "hint"}
	first := start(t, options, engines...)
	turn := func(f *fixture, number, turns int) string {
		text := fmt.Sprintf("%03d", number) + strings.Repeat("x", 61)
		got := f.post("/v1/completions", completion(text+strings.Repeat("y", 64*turns)))
		if got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
		return got.header.Get("X-Inference-Cache-Replica")
	}
	homes := make([]string, conversations)
	for i := range homes {
		homes[i] = turn(first, i, 0)
		asked := lookups.requests()
		holders.Store(string(asked[len(asked)-1].GetBlockHashes()[0]), homes[i])
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	second := start(t, options, engines...)
	kept := 0
	for i, home := range homes {
		if turn(second, i, 1) == home {
			kept++
		}
	}
	if kept < conversations*95/100 {
		t.Errorf("%d of %d follow-up turns reached their holder", kept, conversations)
	}
}

// TestGW22ShortPromptsAreNamed checks that a prompt of less than a block is no
// miss.
func TestGW22ShortPromptsAreNamed(t *testing.T) {
	lookups := says("PREFIX_MATCH", "a")
	f := start(t, gateway.Options{Lookuper: lookups, ExposeReplica: true}, newEngine(t, "a"), newEngine(t, "b"))
	got := f.post("/v1/completions", completion("fifteen tokens!"))
	if reason := got.header.Get("X-Inference-Cache-Reason"); !strings.Contains(reason, "branch=short_request") {
		t.Errorf("reason %q", reason)
	}
	if len(lookups.requests()) != 0 {
		t.Error("the index was asked for less than a block")
	}
}

// TestGW27FailedAttemptsAreVisible checks that the trace of a request that was
// retried shows both attempts and the failure between them.
func TestGW27FailedAttemptsAreVisible(t *testing.T) {
	a := newEngine(t, "a", func(e *engine) { e.generate = answerStatus(503) })
	f := start(t, gateway.Options{Lookuper: says("PREFIX_MATCH", "a")}, a, newEngine(t, "b"))
	if got := f.post("/v1/completions", prompt(), "X-Request-Id", "retried"); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	var kinds []string
	eventually(t, "the records are there", func() bool {
		var answer report.Answer
		got := f.do(http.MethodGet, f.admin+"/debug/trace?id=retried", "")
		if err := json.Unmarshal([]byte(got.body), &answer); err != nil {
			t.Fatalf("%v: %s", err, got.body)
		}
		kinds = nil
		for _, request := range answer.Requests {
			for _, record := range request {
				kinds = append(kinds, string(record.Kind))
			}
		}
		return len(kinds) >= 3
	})
	if got := strings.Join(kinds, " "); !strings.HasPrefix(got, "dispatch failure dispatch") {
		t.Errorf("records: %s", got)
	}
}

// TestGW28TheIndexTakesNothingDown kills the index in the middle of a run.
func TestGW28TheIndexTakesNothingDown(t *testing.T) {
	lookups, say := fickle()
	say("PREFIX_MATCH", "a")
	f := start(t, gateway.Options{Lookuper: lookups, Timeouts: gateway.Timeouts{Lookup: 5 * time.Millisecond}},
		newEngine(t, "a"), newEngine(t, "b"))
	for i := range 200 {
		if i == 100 {
			say("")
		}
		if got := f.post("/v1/completions", prompt()); got.status != 200 {
			t.Fatalf("request %d: %d %s", i, got.status, got.body)
		}
	}
	f.idle()
}
