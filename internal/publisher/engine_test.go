// SPDX-License-Identifier: Apache-2.0

package publisher_test

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/publisher"
	"github.com/inferencecache/inference-cache/internal/zmtp"
)

func TestReplayOnConnect(t *testing.T) {
	for name, topicInReplay := range map[string]bool{"old layout": false, "layout with topic": true} {
		t.Run(name, func(t *testing.T) {
			e := startEngine(t, engineOptions{topic: "kv@a", topicInReplay: topicInReplay})
			for i := range 10 {
				e.publish(storeBatch(0, 0, 1, i, i+1))
			}
			w := follow(t, e, publisher.Config{Replay: e.replay})
			w.awaitMatch(testReplica, 1, 10)
			e.publish(storeBatch(0, 0, 1, 10, 12))
			w.awaitMatch(testReplica, 1, 12)
			eventually(t, "end of the replay", func() bool { return !w.session().ReplayPending })
			if diff := cmp.Diff([]uint64{0}, e.replaysAsked()); diff != "" {
				t.Errorf("replays asked for: %s", diff)
			}
			if s := w.session(); s.View != publisher.ViewComplete || s.BlockSize != engineBlock {
				t.Errorf("view %s, block size %d", s.View, s.BlockSize)
			}
		})
	}
}

func TestFR_09_GapIsFilledBeforeTheLaterBatch(t *testing.T) {
	for name, topicInReplay := range map[string]bool{"old layout": false, "layout with topic": true} {
		t.Run(name, func(t *testing.T) {
			e := startEngine(t, engineOptions{topicInReplay: topicInReplay})
			w := follow(t, e, publisher.Config{Replay: e.replay})
			e.publish(storeBatch(0, 0, 1, 0, 1))
			e.publish(storeBatch(0, 0, 1, 1, 2))
			w.awaitMatch(testReplica, 1, 2)
			// Applied after the batch that reveals it, this removal would win.
			e.keep(storeBatch(0, 0, 1, 2, 3))
			e.keep(removeBatch(0, 0, 1, 2))
			e.publish(storeBatch(0, 0, 1, 2, 4))
			w.awaitMatch(testReplica, 1, 4)
			eventually(t, "end of the replay", func() bool { return !w.session().ReplayPending })
			if diff := cmp.Diff([]uint64{0, 2}, e.replaysAsked()); diff != "" {
				t.Errorf("replays asked for: %s", diff)
			}
			if s := w.session(); s.Gaps != 1 || s.View != publisher.ViewComplete {
				t.Errorf("%d gaps, view %s", s.Gaps, s.View)
			}
		})
	}
}

func TestFR_09_GapWithoutReplay(t *testing.T) {
	e := startEngine(t, engineOptions{})
	w := follow(t, e, publisher.Config{})
	e.publish(storeBatch(0, 0, 1, 0, 1))
	e.publish(storeBatch(0, 0, 1, 1, 2))
	w.awaitMatch(testReplica, 1, 2)
	e.keep(nil)
	e.keep(nil)
	e.publish(storeBatch(0, 0, 2, 0, 1))
	w.awaitMatch(testReplica, 2, 1)
	if s := w.session(); s.MissedBatches != 2 || s.View == publisher.ViewComplete {
		t.Errorf("%d batches missed, view %s; want 2 and not complete", s.MissedBatches, s.View)
	}
	if got := w.matched(testReplica, 1); got != 0 {
		t.Errorf("%d suspect blocks get credit", got)
	}
}

func TestSequenceBackToZeroDropsOldState(t *testing.T) {
	e := startEngine(t, engineOptions{})
	w := follow(t, e, publisher.Config{Replay: e.replay})
	for i := range 5 {
		e.publish(storeBatch(0, 0, 1, i, i+1))
	}
	w.awaitMatch(testReplica, 1, 5)
	e.mu.Lock()
	e.batches = nil
	e.mu.Unlock()
	e.publish(storeBatch(0, 1, 2, 0, 3))
	w.awaitMatch(testReplica, 2, 3)
	w.awaitMatch(testReplica, 1, 0)
	if got := w.session().Resets[publisher.ResetRestart]; got != 1 {
		t.Errorf("%d restarts counted, want 1", got)
	}
}

func TestDuplicatesAreIgnored(t *testing.T) {
	e := startEngine(t, engineOptions{})
	w := follow(t, e, publisher.Config{Replay: e.replay})
	e.publish(storeBatch(0, 0, 1, 0, 2))
	again := storeBatch(0, 0, 1, 2, 3)
	sequence := e.keep(again)
	for range 3 {
		e.send(sequence, again)
	}
	// One removal ends a block that was stored once.
	e.publish(removeBatch(0, 0, 1, 2))
	e.publish(storeBatch(0, 0, 2, 0, 1))
	w.awaitMatch(testReplica, 2, 1)
	w.awaitMatch(testReplica, 1, 2)
	if got := w.session().Duplicates; got != 2 {
		t.Errorf("%d duplicates counted, want 2", got)
	}
}

func TestFR_10_ReplayFailures(t *testing.T) {
	garbage := func(frames ...[]byte) func(*zmtp.Router, zmtp.Request) {
		return func(router *zmtp.Router, request zmtp.Request) { _ = router.Send(request.Identity, frames...) }
	}
	tests := map[string]struct {
		answer func(*zmtp.Router, zmtp.Request)
		want   publisher.ReplayResult
	}{
		"a silent ROUTER":              {func(*zmtp.Router, zmtp.Request) {}, publisher.ReplayTimeout},
		"an answer of one frame":       {garbage([]byte("?")), publisher.ReplayMalformed},
		"a sequence of 4 bytes":        {garbage(nil, []byte("1234"), []byte("x")), publisher.ReplayMalformed},
		"a message of a million parts": {garbage(make([][]byte, 1000)...), publisher.ReplayMalformed},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			e := startEngine(t, engineOptions{answer: tc.answer})
			e.keep(storeBatch(0, 0, 1, 0, 1))
			w := follow(t, e, publisher.Config{Replay: e.replay, ReplayTimeout: 50 * time.Millisecond})
			eventually(t, "end of the replay", func() bool { return w.session().Replays[tc.want] == 1 })
			for i := 1; i < 4; i++ {
				e.publish(storeBatch(0, 0, 2, i-1, i))
			}
			w.awaitMatch(testReplica, 2, 3)
			if got := w.session().View; got == publisher.ViewComplete {
				t.Error("the view counts as complete")
			}
			// The socket is opened afresh for the next replay.
			asked := len(e.replaysAsked())
			e.keep(nil)
			e.publish(storeBatch(0, 0, 3, 0, 2))
			w.awaitMatch(testReplica, 3, 2)
			if got := len(e.replaysAsked()); got != asked+1 {
				t.Errorf("%d replays asked for after a gap, want %d", got, asked+1)
			}
		})
	}
}

func TestReplaySocketThatIsNone(t *testing.T) {
	e := startEngine(t, engineOptions{})
	// A PUB socket does not talk to a DEALER.
	other := startEngine(t, engineOptions{})
	w := follow(t, e, publisher.Config{Replay: other.events})
	eventually(t, "end of the replay", func() bool { return w.session().LastReplay == publisher.ReplayUnsupported })
	e.publish(storeBatch(0, 0, 1, 0, 2))
	w.awaitMatch(testReplica, 1, 2)
}

func TestWrappedRing(t *testing.T) {
	e := startEngine(t, engineOptions{buffer: 3})
	for i := range 10 {
		e.keep(storeBatch(0, 0, i, 0, 1))
	}
	w := follow(t, e, publisher.Config{Replay: e.replay})
	w.awaitMatch(testReplica, 9, 1)
	eventually(t, "end of the replay", func() bool { return !w.session().ReplayPending })
	if s := w.session(); s.LastReplay != publisher.ReplayWrapped || s.View != publisher.ViewIncomplete {
		t.Errorf("replay %s, view %s; want wrapped and incomplete", s.LastReplay, s.View)
	}
	e.publish(storeBatch(0, 0, 20, 0, 1))
	w.awaitMatch(testReplica, 20, 1)
	if got := len(e.replaysAsked()); got != 1 {
		t.Errorf("%d replays asked for, want no loop", got)
	}
}

func TestEngineRestartedOnTheSamePorts(t *testing.T) {
	for name, useReplay := range map[string]bool{"with replay": true, "without replay": false} {
		t.Run(name, func(t *testing.T) {
			e := startEngine(t, engineOptions{})
			config := publisher.Config{}
			if useReplay {
				config.Replay = e.replay
			}
			w := follow(t, e, config)
			e.publish(storeBatch(0, 0, 1, 0, 8))
			w.awaitMatch(testReplica, 1, 8)
			for life := 1; life < 4; life++ {
				e = e.restart()
				e.await(1)
				e.publish(storeBatch(0, life, 1+life, 0, 4))
				w.awaitMatch(testReplica, 1+life, 4)
				w.awaitMatch(testReplica, life, 0)
			}
		})
	}
}

func TestReconnectToTheSameEngine(t *testing.T) {
	e := startEngine(t, engineOptions{})
	w := follow(t, e, publisher.Config{Replay: e.replay})
	e.publish(storeBatch(0, 0, 1, 0, 4))
	w.awaitMatch(testReplica, 1, 4)
	_ = e.pub.Close()
	// What happens while nobody listens is in the replay.
	e.keep(storeBatch(0, 0, 1, 4, 6))
	e.pub, _ = listenPub(t, e.events)
	w.awaitMatch(testReplica, 1, 6)
	e.await(1)
	e.publish(storeBatch(0, 0, 1, 6, 7))
	w.awaitMatch(testReplica, 1, 7)
	if resets := w.session().Resets; resets[publisher.ResetReconnect]+resets[publisher.ResetRestart] != 0 {
		t.Errorf("state was dropped although the engine is the same: %v", resets)
	}
}

func TestEngineThatIsNotThereYet(t *testing.T) {
	placeholder := startEngine(t, engineOptions{})
	placeholder.kill()
	w := startPublisher(t, publisher.Config{Events: placeholder.events, Replay: placeholder.replay}, publisher.Deps{})
	eventually(t, "a first attempt", func() bool { return w.stream().LastError != "" })
	if w.publisher.Status().Ready() {
		t.Error("ready without an engine")
	}
	e := startEngine(t, engineOptions{events: placeholder.events, replay: placeholder.replay})
	e.keep(storeBatch(0, 0, 1, 0, 2))
	w.awaitMatch(testReplica, 1, 2)
	eventually(t, "readiness", func() bool { return w.publisher.Status().Ready() })
}

func TestSlowJoiner(t *testing.T) {
	e := startEngine(t, engineOptions{})
	stop := make(chan struct{})
	published := make(chan int, 1)
	go func() {
		n := 0
		for ; n < 5000; n++ {
			select {
			case <-stop:
				published <- n
				return
			default:
				e.publish(storeBatch(0, 0, 1, n%60, n%60+1))
			}
		}
		published <- n
	}()
	w := follow(t, e, publisher.Config{Replay: e.replay})
	eventually(t, "a first batch", func() bool { return w.session().Batches > 0 })
	close(stop)
	n := <-published
	e.publish(storeBatch(0, 0, 2, 0, 1))
	w.awaitMatch(testReplica, 2, 1)
	w.awaitMatch(testReplica, 1, min(n, 60))
	if s := w.session(); s.View != publisher.ViewComplete || s.LastSequence != uint64(n) {
		t.Errorf("view %s up to %d, want complete up to %d", s.View, s.LastSequence, n)
	}
}

func TestBindMode(t *testing.T) {
	endpoint := "ipc://" + filepath.Join(t.TempDir(), "events")
	w := startPublisher(t, publisher.Config{Events: endpoint, Bind: true}, publisher.Deps{})
	connect := func(life int) *zmtp.Pub {
		var c *zmtp.Conn
		eventually(t, "connection", func() bool {
			var err error
			c, err = zmtp.Dial(t.Context(), endpoint, zmtp.Options{Type: zmtp.PUB})
			return err == nil
		})
		pub := zmtp.NewPub(nil, zmtp.PubOptions{})
		t.Cleanup(func() { _ = pub.Close() })
		pub.Attach(c)
		eventually(t, "subscription", func() bool { return pub.Subscribers() == 1 })
		pub.Send(nil, be(0), storeBatch(noRank, life, life, 0, 3))
		return pub
	}
	pub := connect(1)
	w.awaitMatch(testReplica, 1, 3)
	_ = pub.Close()
	connect(2)
	w.awaitMatch(testReplica, 2, 3)
	w.awaitMatch(testReplica, 1, 0)
}

func TestBadMessagesCostNothingElse(t *testing.T) {
	e := startEngine(t, engineOptions{})
	w := follow(t, e, publisher.Config{Replay: e.replay})
	e.publish(storeBatch(0, 0, 1, 0, 1))
	e.pub.Send([]byte("one frame"))
	e.pub.Send(nil, []byte("short"), []byte("x"))
	e.publish([]byte{0xC1})
	e.publish(storeBatch(0, 0, 1, 1, 2))
	w.awaitMatch(testReplica, 1, 2)
	skipped := w.session().Skipped
	if skipped["bad_frame"] != 2 || skipped["malformed_batch"] != 1 {
		t.Errorf("skipped %v, want 2 bad frames and 1 malformed batch", skipped)
	}
}

func TestTopicFilter(t *testing.T) {
	e := startEngine(t, engineOptions{topic: "kv@a@m"})
	now := time.Now()
	var clock clock
	clock.set(now)
	w := startPublisher(t, publisher.Config{Events: e.events, Topic: "other"}, publisher.Deps{Now: clock.now})
	e.await(1)
	eventually(t, "connection", func() bool { return w.stream().Connected })
	if w.stream().TopicMatchesNothing {
		t.Error("a finding at once")
	}
	clock.set(now.Add(time.Minute))
	if !w.stream().TopicMatchesNothing {
		t.Error("no finding after a minute without a message")
	}
}

func TestForwardingKeepsOrder(t *testing.T) {
	e := startEngine(t, engineOptions{})
	w := follow(t, e, publisher.Config{Replay: e.replay})
	for round := range 200 {
		e.publish(storeBatch(0, 0, 1, 0, 8))
		for i := range slices.Backward(make([]struct{}, 8)) {
			if round < 199 {
				e.publish(removeBatch(0, 0, 1, i))
			}
		}
	}
	const total = 200 + 199*8
	eventually(t, "the last batch", func() bool { return w.session().LastSequence == total-1 })
	w.awaitMatch(testReplica, 1, 8)
}
