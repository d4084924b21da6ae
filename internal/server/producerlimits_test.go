// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"testing"

	"github.com/inferencecache/inference-cache/internal/ingest"
	"github.com/inferencecache/inference-cache/internal/server"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

func TestProducersAreBounded(t *testing.T) {
	for name, tc := range map[string]struct {
		limits ingest.LimitOptions
		mode   server.AuthMode
		token  string
		want   []string // of two reports
		reason string
	}{
		"a pod that holds too much":         {ingest.LimitOptions{MaxEntries: 3}, server.AuthRequired, "tok-pod-a", []string{ok, "DROPPED"}, "replica_limit"},
		"a pod that sends too fast":         {ingest.LimitOptions{BlocksPerSecond: 1, BurstBlocks: 1}, server.AuthRequired, "tok-pod-a", []string{ok, "DROPPED"}, "rate_limit"},
		"a process on this machine":         {ingest.LimitOptions{MaxEntries: 3, BlocksPerSecond: 1, BurstBlocks: 1}, server.AuthOff, "", []string{ok, ok}, ""},
		"a pod within the usual boundaries": {ingest.LimitOptions{}, server.AuthRequired, "tok-pod-a", []string{ok, ok}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := startGuarded(t, tc.mode, func(o *server.Options) { o.ReplicaLimits = tc.limits })
			for i, letters := range []string{"cd", "ef"} {
				if got := g.reportAs(tc.token, g.update("pod-a", letters, 16)); got != tc.want[i] {
					t.Errorf("report %d: %s, want %s", i, got, tc.want[i])
				}
			}
			if tc.reason != "" && g.metric("inferencecache_ingest_dropped_total", "reason", tc.reason, "source", "contract") != 1 {
				t.Errorf("the drop is not counted as %s", tc.reason)
			}
		})
	}
}

// A session that lost entries to the index's bound is asked for all it holds
// once there is room again.
func TestEvictedSessionsAreAskedAgain(t *testing.T) {
	g := startGuarded(t, server.AuthOff, func(o *server.Options) { o.Index.MaxMemberships = 20 })
	s := g.live("")
	many := &pb.StoredRun{FirstTokenCount: 16, BlockTokenCount: 16}
	for key := range uint64(30) {
		many.Keys = append(many.Keys, 100+key)
	}
	s.send(delta(4, &pb.SyncOp{Op: &pb.SyncOp_Stored{Stored: many}}))
	if got := s.await(4); got != ok {
		t.Fatal(got)
	}
	g.server.Sweep()
	s.send(delta(5, &pb.SyncOp{Op: &pb.SyncOp_Removed{Removed: &pb.RemovedRun{Keys: many.Keys}}}))
	if got := s.await(5); got != ok {
		t.Fatal(got)
	}
	g.server.Sweep()
	for {
		frame, err := s.stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if resync := frame.GetResync(); resync != nil {
			if resync.GetReason() != "requested" {
				t.Errorf("reason %q, want requested", resync.GetReason())
			}
			break
		}
	}
	if got := g.metric("inferencecache_sync_resyncs_total", "reason", "requested"); got != 1 {
		t.Errorf("%v requests counted, want 1", got)
	}
	s.end()
}
