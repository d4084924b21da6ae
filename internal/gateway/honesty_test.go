// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"strings"
	"testing"

	"github.com/inferencecache/inference-cache/internal/finding"
	"github.com/inferencecache/inference-cache/internal/gateway"
)

// The engine of b has nothing of what the index claims: after a thousand
// answers nobody is sent there for it.
func TestDishonestReplicaLosesItsCredit(t *testing.T) {
	a, b := newEngine(t, "a"), newEngine(t, "b")
	b.generate = answerJSON("b", 0)
	f := start(t, gateway.Options{Lookuper: says("PREFIX_MATCH", "b"), ExposeReplica: true}, a, b)
	branch := func() string {
		got := f.post("/v1/completions", prompt())
		if got.status != 200 {
			t.Fatalf("status %d: %s", got.status, got.body)
		}
		_, rest, _ := strings.Cut(got.header.Get("X-Inference-Cache-Reason"), "branch=")
		name, _, _ := strings.Cut(rest, ";")
		return name
	}
	for i := range 1000 {
		if got := branch(); got != "hit" {
			t.Fatalf("request %d: branch %q", i, got)
		}
	}
	f.idle()
	if got := branch(); got == "hit" {
		t.Errorf("branch %q after b was found out", got)
	}
	f.idle()
	for _, replica := range f.State().Replicas {
		if replica.Dishonest != (replica.ID == "b") {
			t.Errorf("%s: dishonest %v", replica.ID, replica.Dishonest)
		}
	}
	if open := f.State().Findings; len(open) != 1 || open[0].Code != finding.ReplicaDishonest || open[0].Where != "b" {
		t.Errorf("findings %+v, want one about b", open)
	}
	if got := f.value("gateway_replica_dishonest", "replica_id", "b"); got != 1 {
		t.Errorf("gauge %v, want 1", got)
	}
}
