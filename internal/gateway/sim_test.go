// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/inferencecache/inference-cache/internal/gateway"
	sim "github.com/inferencecache/inference-cache/internal/sim/engine"
	"github.com/inferencecache/inference-cache/internal/sim/tinymodel"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// knowing is an index that asks the simulated engines what they hold of the
// current prompt.
type knowing struct {
	engines map[string]*sim.Engine

	mu     sync.Mutex
	prompt string
}

func (k *knowing) set(prompt string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.prompt = prompt
}

func (k *knowing) LookupRoute(context.Context, *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
	k.mu.Lock()
	tokens := tinymodel.Encode(k.prompt)
	k.mu.Unlock()
	answer := &pb.LookupRouteResponse{ReasonCode: "NO_HINT"}
	for id, e := range k.engines {
		if held := e.HoldsPrefix(tokens); held > 0 {
			answer.ReasonCode = "PREFIX_MATCH"
			answer.ReplicaScores = append(answer.ReplicaScores, &pb.ReplicaScore{ReplicaId: id, Score: 1, MatchedTokens: int32(held)})
		}
	}
	return answer, nil
}

// TestConversations checks on real simulated engines that each conversation
// stays where its prefix is, and that prediction and reported reuse agree.
func TestConversations(t *testing.T) {
	const conversations, turns = 4, 5
	lookups := &knowing{engines: map[string]*sim.Engine{}}
	options := gateway.Options{Lookuper: lookups, ExposeReplica: true}
	for i := range 3 {
		e, err := sim.Start(t.Context(), sim.Config{Model: "tiny", NoEvents: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		id := fmt.Sprintf("sim-%d", i)
		lookups.engines[id] = e
		options.Replicas = append(options.Replicas, gateway.Replica{ID: id, URL: e.URL()})
	}
	f := startUnready(t, options)
	if err := f.AwaitReplicas(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	homes := make([]string, conversations)
	prompts := make([]string, conversations)
	for turn := range turns {
		for c := range conversations {
			prompts[c] += strings.Repeat(fmt.Sprintf("conversation %d turn %d. ", c, turn), 8)
			lookups.set(prompts[c])
			body, err := json.Marshal(map[string]any{"model": "tiny", "prompt": prompts[c], "max_tokens": 2, "stream": turn%2 == 1,
				"stream_options": map[string]bool{"include_usage": true}})
			if err != nil {
				t.Fatal(err)
			}
			got := f.post("/v1/completions", string(body))
			if got.status != 200 {
				t.Fatal(got.status, got.body)
			}
			replica := got.header.Get("X-Inference-Cache-Replica")
			if turn > 0 && replica != homes[c] {
				t.Errorf("turn %d of conversation %d went to %s, its prefix is on %s", turn, c, replica, homes[c])
			}
			homes[c] = replica
		}
	}
	f.idle()
	predicted := f.value("routing_tokens_total", "kind", "chosen_overlap")
	reported := f.value("routing_tokens_total", "kind", "engine_cached")
	if predicted == 0 || predicted != reported {
		t.Errorf("%v tokens of reuse predicted, %v reported", predicted, reported)
	}
	if got := f.value("routing_parity_total", "check", "count", "result", "mismatch"); got != 0 {
		t.Errorf("%v prompts were counted differently by the engines", got)
	}
	if got := f.value("routing_tokens_total", "kind", "engine_unknown"); got != 0 {
		t.Errorf("%v tokens without usage", got)
	}
}
