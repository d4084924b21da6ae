// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/inferencecache/inference-cache/internal/bench"
	"github.com/inferencecache/inference-cache/internal/server"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// inProcess runs a server in this process.
type inProcess struct {
	server *server.Server
	cancel context.CancelFunc
	ended  chan error
}

func launchHere(ctx context.Context, address string) (Instance, error) {
	s, err := server.New(server.Options{GRPCAddress: address, HTTPAddress: "127.0.0.1:0"})
	if err == nil {
		err = s.Start()
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	p := &inProcess{s, cancel, make(chan error, 1)}
	go func() { p.ended <- s.Run(ctx) }()
	return p, nil
}

func (p *inProcess) GRPC() string { return p.server.Addresses().GRPC.String() }
func (p *inProcess) HTTP() string { return p.server.Addresses().HTTP.String() }
func (p *inProcess) PID() int     { return os.Getpid() }
func (p *inProcess) Stop() error  { p.cancel(); return <-p.ended }

// tiny is a corpus whose pools evict.
func tiny() *bench.Corpus {
	trace := bench.Stretch(bench.Generate(bench.Shape{Seed: 1, Requests: 150}), 2)
	return bench.Make(trace, bench.Header{Source: "generated", Seed: 1, Replicas: 3, PoolBlocks: 500, BlockSize: 16})
}

// heldAfter plays a corpus in plain sets.
func heldAfter(f *fleet, plays int) []map[uint64]int32 {
	held := make([]map[uint64]int32, 3)
	for i := range held {
		held[i] = map[uint64]int32{}
	}
	for _, p := range f.plays[:plays] {
		for _, op := range p.ops {
			for _, key := range op.GetRemoved().GetKeys() {
				delete(held[p.replica], key)
			}
			for i, key := range op.GetStored().GetKeys() {
				held[p.replica][key] = op.GetStored().GetFirstTokenCount() + int32(i)*op.GetStored().GetBlockTokenCount()
			}
		}
	}
	return held
}

func TestMirrorHoldsWhatWasPlayed(t *testing.T) {
	c := tiny()
	f := &fleet{plays: plays(c), size: c.Header.BlockSize}
	for _, played := range []int{0, 1, len(f.plays) / 2, len(f.plays)} {
		want := heldAfter(f, played)
		for replica := range want {
			got := map[uint64]int32{}
			m := &mirror{fleet: f, replica: replica, played: played}
			m.Snapshot(func(run *pb.StoredRun) bool {
				for i, key := range run.Keys {
					if _, twice := got[key]; twice {
						t.Fatalf("a key is yielded twice")
					}
					got[key] = run.FirstTokenCount + int32(i)*run.BlockTokenCount
				}
				return true
			})
			if diff := cmp.Diff(want[replica], got); diff != "" {
				t.Errorf("replica %d after %d plays (-want +got):\n%s", replica, played, diff)
			}
		}
	}
}

func TestFleetReachesTheServer(t *testing.T) {
	s, err := launchHere(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	w := watch(s)
	defer w.close()
	f, err := startFleet(t.Context(), s, tiny())
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	memberships := func() (n int) {
		for _, held := range heldAfter(f, f.next) {
			n += len(held)
		}
		return n
	}
	check := func(when string) {
		t.Helper()
		if got := int(w.metric(t.Context(), "inferencecache_index_memberships")); got != memberships() {
			t.Errorf("%s the server holds %d, want %d", when, got, memberships())
		}
	}
	if err := f.warm(t.Context(), 0.5); err != nil {
		t.Fatal(err)
	}
	check("halfway")
	for f.next < len(f.plays) {
		f.step()
	}
	f.step() // starts over
	if err := f.drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if f.next != 1 {
		t.Fatalf("%d plays since the start", f.next)
	}
	check("after starting over")
}

func TestFleetRecoversThroughMirrors(t *testing.T) {
	s, err := launchHere(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f, err := startFleet(t.Context(), s, tiny())
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	if err := f.warm(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	address := s.GRPC()
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	again, err := launchHere(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Stop()
	w := watch(again)
	defer w.close()
	want := 0
	for _, held := range heldAfter(f, f.next) {
		want += len(held)
	}
	if err := await(t.Context(), "the mirrors", time.Millisecond, func() bool {
		return int(w.metric(t.Context(), "inferencecache_index_memberships")) == want
	}); err != nil {
		t.Error(err)
	}
}

func TestEnginesAreSeenByLookups(t *testing.T) {
	s, err := launchHere(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	g := &rig{server: s, watch: watch(s)}
	defer g.watch.close()
	if g.asker, err = newAsker(s); err != nil {
		t.Fatal(err)
	}
	defer g.asker.close()
	e, err := startEngines(t.Context(), g.watch, s.GRPC(), 2, "")
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	chain := 0
	took, polls, err := g.fresh(t.Context(), e, &chain, time.Now(), 100*time.Millisecond)
	if err != nil || len(took) != freshRate/10 || polls < len(took) || chain != len(took) {
		t.Errorf("%d events, %d lookups, %d chains: %v", len(took), polls, chain, err)
	}
	held, err := e.fill(t.Context(), g.watch, 1000)
	if err != nil || held != 7*recoveryChain {
		t.Errorf("%d held: %v", held, err)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, goal := range Goals {
		var out strings.Builder
		err := Run(ctx, &out, Options{
			Goals: []string{goal}, Launch: launchHere, Corpus: func() (*bench.Corpus, error) { return tiny(), nil },
		})
		if err == nil || !strings.Contains(err.Error(), "measuring "+goal) {
			t.Errorf("%s: %v", goal, err)
		}
	}
}

func TestChainsShareNothing(t *testing.T) {
	seen := map[uint64]int{}
	for c := range 200 {
		first := chainTokens(c, 2)
		if other, known := seen[uint64(first[0])<<32|uint64(first[1])]; known {
			t.Fatalf("chains %d and %d begin alike", other, c)
		}
		seen[uint64(first[0])<<32|uint64(first[1])] = c
	}
}

func TestLaunchTellsWhatAServerSaid(t *testing.T) {
	_, err := startProcess(t.Context(), exec.Command("sh", "-c", "echo 'no such flag' >&2; exit 2"))
	if err == nil || !strings.Contains(err.Error(), "no such flag") || !strings.Contains(err.Error(), "exit status 2") {
		t.Errorf("startProcess() = %v", err)
	}
	if _, err := startProcess(t.Context(), exec.Command("/none/such")); err == nil {
		t.Error("a program that is not there was started")
	}
}

func TestReadinessIsRead(t *testing.T) {
	s, err := launchHere(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	w := watch(s)
	defer w.close()
	got, err := w.readiness(t.Context())
	if err != nil || got != (readiness{}) {
		t.Errorf("a new server: %+v, %v", got, err)
	}
	if n := w.metric(t.Context(), "inferencecache_server_up"); n != 1 {
		t.Errorf("up is %v", n)
	}
	if n := w.metric(t.Context(), "inferencecache_server"); n != 0 {
		t.Errorf("the start of a name is %v", n)
	}
}

func TestRequestsCoverACorpus(t *testing.T) {
	c := tiny()
	got := requests(c, 50)
	if len(got) < 40 || len(got) > 60 {
		t.Fatalf("%d requests, want about 50", len(got))
	}
	if !slices.ContainsFunc(got, func(r *pb.LookupRouteRequest) bool { return len(r.BlockHashes) > 1 }) {
		t.Error("no request has a chain")
	}
}
