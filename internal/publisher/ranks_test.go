// SPDX-License-Identifier: Apache-2.0

package publisher_test

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/publisher"
	"github.com/inferencecache/inference-cache/internal/zmtp"
)

// freePorts returns the first of n ports in a row, each way free for now.
func freePorts(t *testing.T, n int) int {
	t.Helper()
	for range 100 {
		first, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		base := first.Addr().(*net.TCPAddr).Port
		open := []net.Listener{first}
		for i := 1; i < n; i++ {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", base+i))
			if err != nil {
				break
			}
			open = append(open, l)
		}
		for _, l := range open {
			_ = l.Close()
		}
		if len(open) == n {
			return base
		}
	}
	t.Fatal("no row of free ports")
	return 0
}

func rankName(rank int) string { return fmt.Sprintf("%s#%d", testReplica, rank) }

func TestFR_28_OneOfFourRanksIsLive(t *testing.T) {
	base := freePorts(t, 4)
	config := publisher.Config{Events: fmt.Sprintf("tcp://127.0.0.1:%d", base), Ranks: 4}
	live := startEngine(t, engineOptions{events: fmt.Sprintf("tcp://127.0.0.1:%d", base+2)})
	w := startPublisher(t, config, publisher.Deps{})
	live.await(1)
	live.publish(storeBatch(2, 0, 1, 0, 3))
	w.awaitMatch(rankName(2), 1, 3)
	status := w.publisher.Status()
	if status.StreamsLive != 1 || status.StreamsExpected != 4 {
		t.Errorf("streams %d/%d, want 1/4", status.StreamsLive, status.StreamsExpected)
	}
	if status.Ready() {
		t.Error("ready with three ranks missing")
	}
	for rank := range 4 {
		if rank != 2 {
			startEngine(t, engineOptions{events: fmt.Sprintf("tcp://127.0.0.1:%d", base+rank)})
		}
	}
	eventually(t, "readiness", func() bool { return w.publisher.Status().Ready() })
}

func TestRanksAreReplicasOfTheirOwn(t *testing.T) {
	const ranks = 3
	events, replay := freePorts(t, ranks), freePorts(t, ranks)
	var list []*fakeEngine
	for rank := range ranks {
		list = append(list, startEngine(t, engineOptions{
			events: fmt.Sprintf("tcp://127.0.0.1:%d", events+rank),
			replay: fmt.Sprintf("tcp://127.0.0.1:%d", replay+rank),
		}))
		// Plain data parallelism of SGLang says rank 0 everywhere.
		list[rank].keep(storeBatch(0, 0, 1, 0, 1+rank))
	}
	w := startPublisher(t, publisher.Config{
		Events: list[0].events, Replay: list[0].replay, Ranks: ranks,
	}, publisher.Deps{})
	for rank := range ranks {
		w.awaitMatch(rankName(rank), 1, 1+rank)
	}
	if got := w.matched(testReplica, 1); got != 0 {
		t.Errorf("the plain name holds %d blocks", got)
	}
	// The restart of one rank leaves the others.
	list[1] = list[1].restart()
	list[1].await(1)
	list[1].publish(storeBatch(0, 1, 2, 0, 5))
	w.awaitMatch(rankName(1), 2, 5)
	w.awaitMatch(rankName(1), 1, 0)
	w.awaitMatch(rankName(2), 1, 3)
	disagreements := uint64(0)
	for _, r := range w.publisher.Status().Ranks {
		disagreements += r.Session.RankDisagreements
	}
	if disagreements == 0 {
		t.Error("batches that name another rank were not counted")
	}
}

func TestSharedStreamOfRanks(t *testing.T) {
	e := startEngine(t, engineOptions{})
	w := follow(t, e, publisher.Config{})
	e.send(0, storeBatch(noRank, 0, 1, 0, 1))
	e.send(1, storeBatch(0, 0, 1, 1, 2))
	w.awaitMatch(testReplica, 1, 2)
	// The first batch of another rank makes the engine one with ranks.
	e.send(0, storeBatch(1, 0, 2, 0, 3))
	w.awaitMatch(rankName(1), 2, 3)
	w.awaitMatch(rankName(0), 1, 2)
	w.awaitMatch(testReplica, 1, 0)
	e.send(2, storeBatch(0, 0, 1, 2, 4))
	e.send(1, removeBatch(1, 0, 2, 2))
	w.awaitMatch(rankName(0), 1, 4)
	w.awaitMatch(rankName(1), 2, 2)
	eventually(t, "end of the old session", func() bool { return len(w.publisher.Status().Ranks) == 2 })
	var names []string
	for _, r := range w.publisher.Status().Ranks {
		names = append(names, r.Replica)
		if r.Session.Gaps != 0 || len(r.Session.Resets) != 0 && r.Session.Resets[publisher.ResetRestart] != 0 {
			t.Errorf("%s: %d gaps, resets %v", r.Replica, r.Session.Gaps, r.Session.Resets)
		}
	}
	if diff := cmp.Diff([]string{rankName(0), rankName(1)}, names); diff != "" {
		t.Error(diff)
	}
}

func TestStreamOfOneHigherRank(t *testing.T) {
	tests := map[string]func(e *fakeEngine, batch []byte){
		"named by a live batch":     func(e *fakeEngine, batch []byte) { e.await(1); e.publish(batch) },
		"named by a replayed batch": func(e *fakeEngine, batch []byte) { e.keep(batch) },
	}
	for name, announce := range tests {
		t.Run(name, func(t *testing.T) {
			e := startEngine(t, engineOptions{})
			batch := storeBatch(3, 0, 1, 0, 2)
			if strings.Contains(name, "replayed") {
				announce(e, batch)
			}
			w := startPublisher(t, publisher.Config{Events: e.events, Replay: e.replay}, publisher.Deps{})
			if !strings.Contains(name, "replayed") {
				announce(e, batch)
			}
			w.awaitMatch(rankName(3), 1, 2)
			if got := w.publisher.Status().Ranks; len(got) != 1 {
				t.Errorf("%d ranks reported, want only the one that exists", len(got))
			}
		})
	}
}

func TestHostileRanksAreBounded(t *testing.T) {
	e := startEngine(t, engineOptions{})
	w := follow(t, e, publisher.Config{})
	for rank := range 200 {
		e.send(0, storeBatch(rank, 0, rank, 0, 1))
	}
	e.send(1, storeBatch(1, 0, 1, 1, 2))
	w.awaitMatch(rankName(1), 1, 2)
	if got := len(w.publisher.Status().Ranks); got != 64 {
		t.Errorf("%d ranks reported, want 64", got)
	}
}

func TestRankStreamInBindMode(t *testing.T) {
	base := freePorts(t, 2)
	w := startPublisher(t, publisher.Config{Events: fmt.Sprintf("tcp://127.0.0.1:%d", base), Bind: true, Ranks: 2}, publisher.Deps{})
	for rank := range 2 {
		var c *zmtp.Conn
		eventually(t, "connection", func() bool {
			var err error
			c, err = zmtp.Dial(t.Context(), fmt.Sprintf("tcp://127.0.0.1:%d", base+rank), zmtp.Options{Type: zmtp.PUB})
			return err == nil
		})
		pub := zmtp.NewPub(nil, zmtp.PubOptions{})
		defer pub.Close()
		pub.Attach(c)
		eventually(t, "subscription", func() bool { return pub.Subscribers() == 1 })
		pub.Send(nil, be(0), storeBatch(rank, 0, 1, 0, 1+rank))
		w.awaitMatch(rankName(rank), 1, 1+rank)
	}
}
