// SPDX-License-Identifier: Apache-2.0

package probe_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/lookup"
	"github.com/inferencecache/inference-cache/internal/policy"
	"github.com/inferencecache/inference-cache/internal/probe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var someBackend = probe.Request{Backend: "team-a/cb", Model: "m", Scheme: "vllm"}

func TestHash(t *testing.T) {
	for name, tc := range map[string]struct{ scheme, model, backend, want string }{
		"vllm":           {"vllm", "m", "team-a/cb", "36fba3a49e525b42f3513aba595cfaea1bb2a646b1db753fc0775e3043c9727e"},
		"no model known": {"vllm", "functional-self-test", "team-a/cb", "d7e0a9bbbd0296a729f0e786cd2102824982a3df9233e49b60c037c311ac6ec1"},
		"sglang":         {"sglang", "functional-self-test", "team-b/sg", "4389c7217e758477a675ca09a5d485dab1491e2262106d40fd2abbe9af80b486"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := hex.EncodeToString(probe.Hash(tc.scheme, tc.model, tc.backend)); got != tc.want {
				t.Errorf("hash %s, want %s", got, tc.want)
			}
		})
	}
}

// faultyPlane is a plane over a real index in which steps can be made to fail.
type faultyPlane struct {
	probe.IndexPlane
	faults map[string]func() // by step, called instead of it
	decide func() (lookup.Reason, []string)
}

func newPlane() *faultyPlane {
	x := index.New(index.Config{ReservedTenant: policy.ReservedTenant})
	return &faultyPlane{
		IndexPlane: probe.IndexPlane{Index: x, Decider: lookup.New(lookup.Options{Index: x}), Now: time.Now},
		faults:     make(map[string]func()),
	}
}

func (p *faultyPlane) broken(step string) bool {
	fault, ok := p.faults[step]
	if ok {
		fault()
	}
	return ok
}

func (p *faultyPlane) Store(b probe.Block) {
	if !p.broken("store") {
		p.IndexPlane.Store(b)
	}
}

func (p *faultyPlane) Holders(b probe.Block) []string {
	if p.broken("holders") {
		return nil
	}
	return p.IndexPlane.Holders(b)
}

func (p *faultyPlane) Decide(ctx context.Context, b probe.Block) (lookup.Reason, []string) {
	switch {
	case p.decide != nil:
		return p.decide()
	case p.broken("decide"):
		return lookup.NoHint, nil
	}
	return p.IndexPlane.Decide(ctx, b)
}

// left returns who still holds the block of a request.
func (p *faultyPlane) left(r probe.Request) []string {
	return p.IndexPlane.Holders(probe.Block{
		Scope: index.Scope{Tenant: policy.ReservedTenant, Model: r.Model, Scheme: r.Scheme},
		Hash:  probe.Hash(r.Scheme, r.Model, r.Backend), Tokens: 16,
	})
}

// tier2 is a second tier that can be made to fail.
type tier2 struct {
	putErr, getErr error
	hang, corrupt  bool
	payloads       map[string][]byte
}

func (s *tier2) Put(ctx context.Context, backend string, key, payload []byte) error {
	if s.hang {
		<-ctx.Done()
		return ctx.Err()
	}
	if s.payloads == nil {
		s.payloads = make(map[string][]byte)
	}
	s.payloads[backend+string(key)] = bytes.Clone(payload)
	return s.putErr
}

func (s *tier2) Get(_ context.Context, backend string, key []byte) ([]byte, error) {
	payload := s.payloads[backend+string(key)]
	if s.corrupt {
		payload[0]++
	}
	return payload, s.getErr
}

func TestStages(t *testing.T) {
	type outcomes = [3]probe.Outcome
	const ok, failed, skipped = probe.OK, probe.Failed, probe.Skipped
	nothing, explode := func() {}, func() { panic("secret") }
	for name, tc := range map[string]struct {
		faults      map[string]func()
		decide      func() (lookup.Reason, []string)
		tier2       probe.Tier2Store
		backendType string
		want        outcomes
		problems    []probe.Problem
	}{
		"all is well, without a tier 2 prober": {want: outcomes{ok, ok, skipped}},
		"all is well, with one":                {tier2: &tier2{}, want: outcomes{ok, ok, ok}},
		"LMCache has tier 2":                   {tier2: &tier2{}, backendType: "LMCache", want: outcomes{ok, ok, ok}},
		"Memory has none":                      {tier2: &tier2{}, backendType: "Memory", want: outcomes{ok, ok, skipped}},
		"External has none":                    {tier2: &tier2{}, backendType: "External", want: outcomes{ok, ok, skipped}},
		"a type nobody knows has none":         {tier2: &tier2{}, backendType: "lmcache", want: outcomes{ok, ok, skipped}},
		"a write that is lost": {
			faults: map[string]func(){"store": nothing}, tier2: &tier2{}, want: outcomes{failed, skipped, skipped},
			problems: []probe.Problem{{probe.Ingest, "the block was put in and is not found for its replica"}},
		},
		"a write that panics": {
			faults: map[string]func(){"store": explode}, want: outcomes{failed, skipped, skipped},
			problems: []probe.Problem{{probe.Ingest, "internal error"}},
		},
		"a read that panics": {
			faults: map[string]func(){"holders": explode}, want: outcomes{failed, skipped, skipped},
			problems: []probe.Problem{{probe.Ingest, "internal error"}},
		},
		"a decision without a hint": {
			faults: map[string]func(){"decide": nothing}, tier2: &tier2{}, want: outcomes{ok, failed, skipped},
			problems: []probe.Problem{{probe.Routing, "the decision is NO_HINT, expected PREFIX_MATCH"}},
		},
		"a decision for somebody else": {
			decide: func() (lookup.Reason, []string) { return lookup.PrefixMatch, []string{"other"} },
			want:   outcomes{ok, failed, skipped},
			problems: []probe.Problem{
				{probe.Routing, "the decision is PREFIX_MATCH without the replica that holds the block"},
			},
		},
		"a decision that panics": {
			faults: map[string]func(){"decide": explode}, want: outcomes{ok, failed, skipped},
			problems: []probe.Problem{{probe.Routing, "internal error"}},
		},
		"a tier 2 that refuses": {
			tier2: &tier2{putErr: errors.New("full")}, want: outcomes{ok, ok, failed},
			problems: []probe.Problem{{probe.Tier2, "put failed: full"}},
		},
		"a tier 2 that loses": {
			tier2: &tier2{getErr: errors.New("gone")}, want: outcomes{ok, ok, failed},
			problems: []probe.Problem{{probe.Tier2, "get failed: gone"}},
		},
		"a tier 2 that corrupts": {
			tier2: &tier2{corrupt: true}, want: outcomes{ok, ok, failed},
			problems: []probe.Problem{{probe.Tier2, "get failed: another payload came back"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			plane, panics := newPlane(), 0
			plane.faults, plane.decide = tc.faults, tc.decide
			request := someBackend
			request.BackendType = tc.backendType
			got, err := probe.New(probe.Options{
				Plane: plane, Tier2: tc.tier2, Panicked: func(any) { panics++ },
			}).Run(t.Context(), request)
			if err != nil {
				t.Fatal(err)
			}
			want := probe.Result{Ingest: tc.want[0], Routing: tc.want[1], Tier2: tc.want[2], Problems: tc.problems}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
			if left := plane.left(request); len(left) > 0 {
				t.Errorf("%v were left behind", left)
			}
			if internal := len(tc.problems) > 0 && tc.problems[0].Message == "internal error"; internal != (panics == 1) {
				t.Errorf("%d panics were reported", panics)
			}
		})
	}
}

func TestTier2Payload(t *testing.T) {
	store := &tier2{}
	if _, err := probe.New(probe.Options{Plane: newPlane(), Tier2: store}).Run(t.Context(), someBackend); err != nil {
		t.Fatal(err)
	}
	hash := probe.Hash("vllm", "m", "team-a/cb")
	want := append([]byte("probe-payload-v1\n"), hash...)
	if got := store.payloads["team-a/cb"+string(hash)]; !bytes.Equal(got, want) || len(got) != 49 {
		t.Errorf("payload of %d bytes", len(got))
	}
}

func TestTier2IsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		got, err := probe.New(probe.Options{Plane: newPlane(), Tier2: &tier2{hang: true}}).Run(t.Context(), someBackend)
		if err != nil || got.Tier2 != probe.Failed {
			t.Errorf("result %v, %v; want a failed tier 2", got, err)
		}
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("gave up after %v, want 2s", took)
		}
	})
}

// crowd counts the probes that are inside at the same time.
type crowd struct {
	*faultyPlane
	mu            sync.Mutex
	all, mostAll  int
	each, mostOne map[string]int
}

func (c *crowd) Store(b probe.Block) {
	c.mu.Lock()
	c.all++
	c.each[b.Replica]++
	c.mostAll = max(c.mostAll, c.all)
	c.mostOne[b.Replica] = max(c.mostOne[b.Replica], c.each[b.Replica])
	c.mu.Unlock()
	time.Sleep(time.Second)
	c.faultyPlane.Store(b)
}

func (c *crowd) Clear(b probe.Block) {
	c.faultyPlane.Clear(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all--
	c.each[b.Replica]--
}

// TestManyBackends probes 100 backends three times each, all at once.
func TestManyBackends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := &crowd{faultyPlane: newPlane(), each: make(map[string]int), mostOne: make(map[string]int)}
		prober := probe.New(probe.Options{Plane: plane})
		var callers sync.WaitGroup
		for n := range 300 {
			callers.Go(func() {
				request := someBackend
				request.Backend = fmt.Sprintf("team/%d", n%100)
				got, err := prober.Run(t.Context(), request)
				if err != nil || got.Ingest != probe.OK || got.Routing != probe.OK || len(got.Problems) > 0 {
					t.Errorf("%s: %v, %v", request.Backend, got, err)
				}
			})
		}
		callers.Wait()
		if plane.mostAll != 16 {
			t.Errorf("%d probes ran at once, want 16", plane.mostAll)
		}
		for replica, most := range plane.mostOne {
			if most != 1 {
				t.Errorf("%d probes of %s ran at once", most, replica)
			}
		}
		if n := prober.Slots(); n != 0 {
			t.Errorf("%d slots are kept while no probe runs", n)
		}
	})
}

func TestRunEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		prober := probe.New(probe.Options{Plane: newPlane(), Tier2: &tier2{hang: true}, MaxRunning: 1})
		var first sync.WaitGroup
		first.Go(func() {
			if _, err := prober.Run(t.Context(), someBackend); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for _, backend := range []string{someBackend.Backend, "another"} {
			request := someBackend
			request.Backend = backend
			if _, err := prober.Run(ended, request); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v, want the context's error", backend, err)
			}
		}
		first.Wait()
		if n := prober.Slots(); n != 0 {
			t.Errorf("%d slots are kept while no probe runs", n)
		}
	})
}
