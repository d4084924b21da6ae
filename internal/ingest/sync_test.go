// SPDX-License-Identifier: Apache-2.0

package ingest_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/inferencecache/inference-cache/internal/ingest"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

func TestHelloIsRejected(t *testing.T) {
	tests := map[string]struct {
		change     func(*pb.SyncHello)
		wantReason string
	}{
		"unknown protocol version": {func(h *pb.SyncHello) { h.ProtocolVersion = 2 }, "protocol_version"},
		"no tenant":                {func(h *pb.SyncHello) { h.TenantId = "" }, "bad_hello"},
		"no model":                 {func(h *pb.SyncHello) { h.ModelId = "" }, "bad_hello"},
		"no scheme":                {func(h *pb.SyncHello) { h.HashScheme = "" }, "bad_hello"},
		"no replica":               {func(h *pb.SyncHello) { h.ReplicaId = "" }, "bad_hello"},
		"a replica id too long":    {func(h *pb.SyncHello) { h.ReplicaId = strings.Repeat("r", 257) }, "bad_hello"},
		"a control character":      {func(h *pb.SyncHello) { h.ModelId = "a\nb" }, "bad_hello"},
		"no incarnation":           {func(h *pb.SyncHello) { h.Incarnation = nil }, "bad_hello"},
		"a negative block size":    {func(h *pb.SyncHello) { h.BlockSize = -1 }, "bad_hello"},
		"the reserved tenant":      {func(h *pb.SyncHello) { h.TenantId = reserved }, "reserved_tenant"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(ingest.SyncOptions{})
				hello := helloOf(1, 1)
				tc.change(hello)
				c := f.dial(t)
				c.send(&pb.PublisherFrame{Frame: &pb.PublisherFrame_Hello{Hello: hello}})
				reject, err := c.wantEnd()
				if reject.GetReason() != tc.wantReason || err != nil {
					t.Errorf("reject %v and error %v, want reason %s", reject, err, tc.wantReason)
				}
				if n := len(f.sync.Sessions()); n != 0 {
					t.Errorf("%d sessions, want none", n)
				}
			})
		})
	}
}

func TestFirstFrameMustBeHello(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(ingest.SyncOptions{})
		c := f.dial(t)
		c.send(delta(1, store(storedRun(1))))
		if _, err := c.wantEnd(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("stream ended with %v, want InvalidArgument", err)
		}
		c = f.dial(t)
		if _, err := c.wantEnd(); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("silent stream ended with %v, want DeadlineExceeded", err)
		}
	})
}

func TestSyncSequence(t *testing.T) {
	tests := map[string]struct {
		frames       []*pb.PublisherFrame
		wantAck      uint64
		wantResync   string
		wantHeld     map[uint64]int32
		wantDropped  map[string]float64
		wantMissed   float64
		wantSnapshot map[string]float64
	}{
		"deltas in order apply": {
			frames:  []*pb.PublisherFrame{delta(4, store(storedRun(4)), remove(1)), delta(5, remove(2))},
			wantAck: 5, wantHeld: map[uint64]int32{3: 48, 4: 16},
		},
		"a frame sent again changes nothing": {
			frames:  []*pb.PublisherFrame{delta(4, remove(1)), delta(5, store(storedRun(1))), delta(4, remove(1))},
			wantAck: 5, wantHeld: map[uint64]int32{1: 16, 2: 32, 3: 48},
			wantDropped: map[string]float64{"stale_sequence,sync": 1},
		},
		"a snapshot sent again changes nothing": {
			frames:  []*pb.PublisherFrame{begin(1), end(3, 0), delta(4, store(storedRun(4)))},
			wantAck: 4, wantHeld: map[uint64]int32{1: 16, 2: 32, 3: 48, 4: 16},
			wantDropped: map[string]float64{"stale_sequence,sync": 2},
		},
		"a gap asks for a snapshot and frames after it are passed over": {
			frames:  []*pb.PublisherFrame{delta(6, remove(1)), delta(7, remove(2))},
			wantAck: 7, wantResync: "gap", wantHeld: three, wantMissed: 2,
		},
		"a snapshot mends a gap": {
			frames: []*pb.PublisherFrame{
				delta(6, remove(1)), begin(7), chunk(8, storedRun(9)), end(9, 1), delta(10, store(storedRun(8))),
			},
			wantAck: 10, wantResync: "gap", wantHeld: map[uint64]int32{8: 16, 9: 16}, wantMissed: 2,
			wantSnapshot: map[string]float64{"applied": 2},
		},
		"a heartbeat reveals missing frames": {
			frames:  []*pb.PublisherFrame{heartbeat(5, 16)},
			wantAck: 3, wantResync: "gap", wantHeld: three, wantMissed: 2,
		},
		"a snapshot's begin may skip sequences": {
			frames:  []*pb.PublisherFrame{begin(50), chunk(51, storedRun(9)), end(52, 1)},
			wantAck: 52, wantHeld: map[uint64]int32{9: 16},
			wantSnapshot: map[string]float64{"applied": 2},
		},
		"an unfinished snapshot is invisible": {
			frames:  []*pb.PublisherFrame{begin(4), chunk(5, storedRun(9))},
			wantAck: 5, wantHeld: three,
		},
		"a second begin replaces the first": {
			frames: []*pb.PublisherFrame{
				begin(4), chunk(5, storedRun(8)), begin(6), chunk(7, storedRun(9)), end(8, 1),
			},
			wantAck: 8, wantHeld: map[uint64]int32{9: 16},
			wantSnapshot: map[string]float64{"applied": 2, "superseded": 1},
		},
		"a snapshot that lost blocks is refused": {
			frames:  []*pb.PublisherFrame{begin(4), chunk(5, storedRun(9)), end(6, 2)},
			wantAck: 6, wantResync: "requested", wantHeld: three,
			wantSnapshot: map[string]float64{"applied": 1, "rejected": 1},
		},
		"a chunk without begin asks for a snapshot": {
			frames:  []*pb.PublisherFrame{chunk(4, storedRun(9))},
			wantAck: 4, wantResync: "requested", wantHeld: three,
		},
		"a delta inside a snapshot asks for another": {
			frames:  []*pb.PublisherFrame{begin(4), delta(5, remove(1)), end(6, 0)},
			wantAck: 6, wantResync: "requested", wantHeld: three,
			wantSnapshot: map[string]float64{"applied": 1, "aborted": 1},
		},
		"an empty snapshot empties": {
			frames:  []*pb.PublisherFrame{begin(4), end(5, 0)},
			wantAck: 5, wantHeld: map[uint64]int32{},
		},
		"a frame of unknown kind is ignored": {
			frames:  []*pb.PublisherFrame{{Sequence: 3}, delta(4, remove(1))},
			wantAck: 4, wantHeld: map[uint64]int32{2: 32, 3: 48},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(ingest.SyncOptions{})
				c := f.live(t, helloOf(1, 1))
				for _, frame := range tc.frames {
					c.send(frame)
				}
				resync := ""
				for _, frame := range c.wantAck(tc.wantAck) {
					resync = frame.GetResync().GetReason()
				}
				if resync != tc.wantResync {
					t.Errorf("resync reason %q, want %q", resync, tc.wantResync)
				}
				f.wantHeld(t, "", tc.wantHeld)
				if tc.wantDropped == nil {
					tc.wantDropped = map[string]float64{}
				}
				f.wantCounters(t, "inferencecache_ingest_dropped_total", tc.wantDropped)
				missed := map[string]float64{}
				if tc.wantMissed > 0 {
					missed[""] = tc.wantMissed
				}
				f.wantCounters(t, "inferencecache_sync_missed_frames_total", missed)
				if tc.wantSnapshot != nil {
					f.wantCounters(t, "inferencecache_sync_snapshots_total", tc.wantSnapshot)
				}
			})
		})
	}
}

func TestSyncDropsBadPartsAlone(t *testing.T) {
	good := store(storedRun(7))
	tests := map[string]struct {
		bad        *pb.SyncOp
		wantReason string
	}{
		"an adapter too long": {
			store(&pb.StoredRun{AdapterId: strings.Repeat("a", 257), Keys: []uint64{8}}), "id_too_long",
		},
		"an adapter with a control character": {
			store(&pb.StoredRun{AdapterId: "a\x00", Keys: []uint64{8}}), "id_invalid",
		},
		"fewer counts than keys": {
			store(&pb.StoredRun{Keys: []uint64{8, 9}, TokenCounts: []int32{16}}), "chain_mismatch",
		},
		"a negative count": {
			store(&pb.StoredRun{Keys: []uint64{8}, TokenCounts: []int32{-1}}), "count_negative",
		},
		"a negative first count": {
			store(&pb.StoredRun{Keys: []uint64{8}, FirstTokenCount: -16}), "count_negative",
		},
		"counts that overflow": {
			store(&pb.StoredRun{Keys: []uint64{8, 9}, FirstTokenCount: 1 << 30, BlockTokenCount: 1 << 30}), "count_overflow",
		},
		"more keys than a frame may hold": {
			store(&pb.StoredRun{Keys: make([]uint64, 11)}), "update_too_large",
		},
		"a removal of an impossible adapter": {
			&pb.SyncOp{Op: &pb.SyncOp_Removed{Removed: &pb.RemovedRun{AdapterId: "\n", Keys: []uint64{8}}}}, "id_invalid",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(ingest.SyncOptions{Options: ingest.Options{MaxKeys: 10}})
				c := f.live(t, helloOf(1, 1))
				c.send(delta(4, good, tc.bad, remove(1)))
				var dropped uint64
				for dropped == 0 {
					dropped = c.recv().GetAck().GetDroppedParts()
				}
				if dropped != 1 {
					t.Errorf("%d parts reported as dropped, want 1", dropped)
				}
				f.wantHeld(t, "", map[uint64]int32{2: 32, 3: 48, 7: 16})
				f.wantCounters(t, "inferencecache_ingest_dropped_total", map[string]float64{tc.wantReason + ",sync": 1})
			})
		})
	}
}

func TestIncarnations(t *testing.T) {
	tests := map[string]struct {
		second     *pb.SyncHello
		gone       bool
		wait       time.Duration
		wantReject string
		wantHeld   map[uint64]int32
		wantResume bool
	}{
		"a newer incarnation takes over and voids": {
			second: helloOf(2, 200), wantHeld: map[uint64]int32{},
		},
		"a newer incarnation voids after the older one is gone": {
			second: helloOf(2, 200), gone: true, wantHeld: map[uint64]int32{},
		},
		"an older incarnation is rejected": {
			second: helloOf(2, 50), wantReject: "older_incarnation", wantHeld: three,
		},
		"an older incarnation is rejected after the newer one is gone": {
			second: helloOf(2, 50), gone: true, wait: time.Minute, wantReject: "older_incarnation", wantHeld: three,
		},
		"an older start on another pod is rejected at first": {
			second: onPod("other", helloOf(2, 50)), gone: true, wait: time.Second,
			wantReject: "older_incarnation", wantHeld: three,
		},
		"an older start on another pod is a skewed clock after a while": {
			second: onPod("other", helloOf(2, 50)), gone: true, wait: time.Minute, wantHeld: map[uint64]int32{},
		},
		"the same incarnation takes over and may resume": {
			second: resuming(helloOf(1, 100), "epoch-1", 3), wantHeld: three, wantResume: true,
		},
		"the same incarnation resumes after a short loss": {
			second: resuming(helloOf(1, 100), "epoch-1", 2), gone: true, wait: 20 * time.Second,
			wantHeld: three, wantResume: true,
		},
		"a long loss needs a snapshot": {
			second: resuming(helloOf(1, 100), "epoch-1", 3), gone: true, wait: time.Minute, wantHeld: three,
		},
		"resuming above what was received needs a snapshot": {
			second: resuming(helloOf(1, 100), "epoch-1", 4), gone: true, wantHeld: three,
		},
		"resuming another server's session needs a snapshot": {
			second: resuming(helloOf(1, 100), "epoch-0", 3), gone: true, wantHeld: three,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(ingest.SyncOptions{SilenceTimeout: time.Hour})
				first := f.live(t, helloOf(1, 100))
				if tc.gone {
					first.cut()
					synctest.Wait()
				}
				time.Sleep(tc.wait)
				second := f.dial(t)
				if tc.wantReject != "" {
					second.send(&pb.PublisherFrame{Frame: &pb.PublisherFrame_Hello{Hello: tc.second}})
					if reject, _ := second.wantEnd(); reject.GetReason() != tc.wantReject {
						t.Errorf("reject %v, want reason %s", reject, tc.wantReject)
					}
					f.wantCounters(t, "inferencecache_ingest_dropped_total", map[string]float64{"incarnation_mismatch,sync": 1})
				} else if welcome := second.hello(tc.second); welcome.GetNeedSnapshot() == tc.wantResume {
					t.Errorf("need_snapshot %v, want resume %v", welcome.GetNeedSnapshot(), tc.wantResume)
				}
				f.wantHeld(t, "", tc.wantHeld)
				if tc.wantReject == "" && !tc.gone {
					if reject, err := first.wantEnd(); reject.GetReason() != "superseded" || err != nil {
						t.Errorf("older stream ended with %v, %v, want superseded", reject, err)
					}
				}
			})
		})
	}
}

func onPod(uid string, h *pb.SyncHello) *pb.SyncHello {
	h.Incarnation.PodUid = uid
	return h
}

func resuming(h *pb.SyncHello, epoch string, sequence uint64) *pb.SyncHello {
	h.ResumeServerEpoch, h.ResumeSequence = epoch, sequence
	return h
}

func TestResumeGoesOnBySequence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(ingest.SyncOptions{})
		f.live(t, helloOf(1, 1)).cut()
		synctest.Wait()
		c := f.dial(t)
		if got := c.hello(resuming(helloOf(1, 1), "epoch-1", 1)).GetResumeSequence(); got != 3 {
			t.Errorf("server resumes after %d, want 3", got)
		}
		c.send(delta(3, remove(1)))
		c.send(delta(4, remove(2)))
		c.wantAck(4)
		f.wantHeld(t, "", map[uint64]int32{1: 16, 3: 48})
	})
}

func TestDisconnectInsideSnapshotNeedsAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(ingest.SyncOptions{})
		c := f.live(t, helloOf(1, 1))
		c.send(begin(4))
		c.send(chunk(5, storedRun(9)))
		c.cut()
		synctest.Wait()
		if !f.dial(t).hello(resuming(helloOf(1, 1), "epoch-1", 5)).GetNeedSnapshot() {
			t.Error("resumed in the middle of a snapshot")
		}
		f.wantHeld(t, "", three)
	})
}

func TestGoodbye(t *testing.T) {
	tests := map[string]struct {
		replicaGone bool
		wantHeld    map[uint64]int32
		wantLost    int
	}{
		"of a publisher that stops leaves holdings to age": {false, three, 1},
		"of a replica that is gone drops holdings at once": {true, map[uint64]int32{}, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(ingest.SyncOptions{})
				c := f.live(t, helloOf(1, 1))
				c.send(&pb.PublisherFrame{Sequence: 3, Frame: &pb.PublisherFrame_Goodbye{
					Goodbye: &pb.SyncGoodbye{ReplicaGone: tc.replicaGone},
				}})
				if reject, err := c.wantEnd(); reject != nil || err != nil {
					t.Errorf("stream ended with %v, %v, want in order", reject, err)
				}
				f.wantHeld(t, "", tc.wantHeld)
				if got := f.sync.Report().Lost; got != tc.wantLost {
					t.Errorf("%d lost sessions, want %d", got, tc.wantLost)
				}
			})
		})
	}
}

func TestSessionLiveness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(ingest.SyncOptions{})
		c := f.live(t, helloOf(1, 1))
		for range 3600 {
			time.Sleep(time.Second)
			c.send(heartbeat(3, 16))
			c.wantAck(3)
		}
		f.wantHeld(t, "", three)
		// The publisher falls silent: the stream ends, holdings age.
		time.Sleep(15 * time.Minute)
		f.wantHeld(t, "", three)
		if _, err := c.wantEnd(); status.Code(err) != codes.Unavailable {
			t.Errorf("silent stream ended with %v, want Unavailable", err)
		}
		time.Sleep(16 * time.Minute)
		f.wantHeld(t, "", map[uint64]int32{})
		if report := f.sync.Report(); report.Lost != 0 || len(f.sync.Sessions()) != 0 {
			t.Errorf("report %+v, want the session forgotten after the TTL", report)
		}
	})
}

// A delta with an old engine timestamp, as from a replay, is as fresh as the
// session.
func TestOldDeltaOfLiveSessionIsFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(ingest.SyncOptions{})
		c := f.live(t, helloOf(1, 1))
		old := delta(4, store(storedRun(5)))
		old.GetDelta().TimestampUs = time.Now().Add(-time.Hour).UnixMicro()
		c.send(old)
		c.wantAck(4)
		f.wantHeld(t, "", map[uint64]int32{1: 16, 2: 32, 3: 48, 5: 16})
	})
}

func TestBlockSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(ingest.SyncOptions{})
		want := func(size int, known bool) {
			t.Helper()
			synctest.Wait()
			if gotSize, gotKnown := f.sync.BlockSize(scope); gotSize != size || gotKnown != known {
				t.Errorf("block size %d, %v, want %d, %v", gotSize, gotKnown, size, known)
			}
		}
		want(0, false)
		hello := helloOf(1, 1)
		hello.BlockSize = 0
		first := f.dial(t)
		first.hello(hello)
		want(0, false)
		first.send(heartbeat(0, 16))
		want(16, true)
		other := helloOf(1, 1)
		other.ReplicaId, other.BlockSize = "pod-1", 32
		second := f.dial(t)
		second.hello(other)
		want(0, false)
		second.send(&pb.PublisherFrame{Frame: &pb.PublisherFrame_Goodbye{Goodbye: &pb.SyncGoodbye{ReplicaGone: true}}})
		want(16, true)
		first.cut()
		want(16, true)
	})
}

func TestRecovered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(ingest.SyncOptions{SilenceTimeout: time.Minute})
		time.Sleep(2500 * time.Millisecond)
		c := f.dial(t)
		c.hello(helloOf(1, 1))
		c.send(begin(1))
		c.send(chunk(2, storedRun(1, 2, 3)))
		time.Sleep(5 * time.Second)
		synctest.Wait()
		report := f.sync.Report()
		if report.Recovered || report.Snapshot != 1 || report.BlocksReceived != 3 || report.BlocksExpected != 97 {
			t.Errorf("report %+v, want one snapshot of 100 with 97 to come, not recovered", report)
		}
		f.wantCounters(t, "inferencecache_sync_recovering", map[string]float64{"": 1})
		c.send(end(3, 3))
		time.Sleep(900 * time.Millisecond)
		if f.sync.Report().Recovered {
			t.Error("recovered before a quiet second")
		}
		time.Sleep(200 * time.Millisecond)
		if !f.sync.Report().Recovered {
			t.Error("not recovered after a quiet second")
		}
		f.wantCounters(t, "inferencecache_sync_recovering", map[string]float64{})
		f.wantCounters(t, "inferencecache_sync_sessions", map[string]float64{"live": 1})
	})
}

func TestSessionLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(ingest.SyncOptions{MaxSessions: 1})
		f.dial(t).hello(helloOf(1, 1))
		other := helloOf(1, 1)
		other.ReplicaId = "pod-1"
		c := f.dial(t)
		c.send(&pb.PublisherFrame{Frame: &pb.PublisherFrame_Hello{Hello: other}})
		if reject, _ := c.wantEnd(); reject.GetReason() != "limit" || reject.GetRetryAfterMs() <= 0 {
			t.Errorf("reject %v, want limit with a time to retry", reject)
		}
	})
}

func TestSnapshotLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(ingest.SyncOptions{MaxSnapshotBlocks: 4})
		c := f.live(t, helloOf(1, 1))
		c.send(begin(4))
		c.send(chunk(5, storedRun(4, 5, 6, 7, 8)))
		if reject, _ := c.wantEnd(); reject.GetReason() != "limit" {
			t.Errorf("reject %v, want limit", reject)
		}
		f.wantHeld(t, "", three)
	})
}

func TestDrainEndsStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(ingest.SyncOptions{})
		c := f.live(t, helloOf(1, 1))
		f.sync.Drain()
		if _, err := c.wantEnd(); status.Code(err) != codes.Unavailable {
			t.Errorf("open stream ended with %v, want Unavailable", err)
		}
		if _, err := f.dial(t).wantEnd(); status.Code(err) != codes.Unavailable {
			t.Errorf("new stream ended with %v, want Unavailable", err)
		}
	})
}
