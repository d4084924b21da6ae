// SPDX-License-Identifier: Apache-2.0

package publisher_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/ingest"
	"github.com/inferencecache/inference-cache/internal/publisher"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// inBubble runs a hub with fake time against in-process servers and hands
// the test what it needs. Everything has settled after synctest.Wait.
func inBubble(t *testing.T, options publisher.HubOptions, servers int, body func(t *testing.T, f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{mirror: newFakeMirror()}
		var targets []publisher.Target
		for i := range servers {
			s := newServer(ingest.SyncOptions{})
			target := newSwitchTarget(fmt.Sprintf("server-%d", i), s.sync)
			f.servers, f.targets = append(f.servers, s), append(f.targets, target)
			targets = append(targets, target)
		}
		f.hub = publisher.NewHub(testIdentity(), f.mirror, targets, options)
		f.stop = startHub(t, f.hub)
		synctest.Wait()
		body(t, f)
		f.stop()
		synctest.Wait()
	})
}

type fixture struct {
	mirror  *fakeMirror
	hub     *publisher.Hub
	servers []*server
	targets []*switchTarget
	stop    func()
}

func (f *fixture) publish(change func(m *fakeMirror) []*pb.SyncDelta) {
	f.hub.Publish(func() []*pb.SyncDelta { return change(f.mirror) })
}

func (f *fixture) wantEqual(t *testing.T, server int) {
	t.Helper()
	if diff := f.servers[server].diffMirror(f.mirror); diff != "" {
		t.Errorf("server %d differs from the mirror (-mirror +index):\n%s", server, diff)
	}
}

func (f *fixture) link(t *testing.T, name string) publisher.LinkStatus {
	t.Helper()
	for _, status := range f.hub.Status() {
		if status.Target == name {
			return status
		}
	}
	t.Fatalf("no link %s", name)
	return publisher.LinkStatus{}
}

func TestHubFollowsMirror(t *testing.T) {
	tests := map[string]func(t *testing.T, f *fixture){
		"deltas arrive without any time passing": func(t *testing.T, f *fixture) {
			f.publish(func(m *fakeMirror) []*pb.SyncDelta { return m.store("", index.TierT1, 1, 10) })
			f.publish(func(m *fakeMirror) []*pb.SyncDelta { return m.store("lora", index.TierT2, 1, 3) })
			f.publish(func(m *fakeMirror) []*pb.SyncDelta { return m.remove("", 4, 2) })
			synctest.Wait()
			f.wantEqual(t, 0)
			f.wantEqual(t, 1)
		},
		"a clear empties every server": func(t *testing.T, f *fixture) {
			f.publish(func(m *fakeMirror) []*pb.SyncDelta { return m.store("", index.TierT1, 1, 10) })
			f.publish(func(m *fakeMirror) []*pb.SyncDelta { return m.clear() })
			synctest.Wait()
			f.wantEqual(t, 0)
		},
		"a server that restarts empty is whole again": func(t *testing.T, f *fixture) {
			f.publish(func(m *fakeMirror) []*pb.SyncDelta { return m.store("", index.TierT1, 1, 500) })
			synctest.Wait()
			f.servers[0] = newServer(ingest.SyncOptions{})
			f.targets[0].use(f.servers[0].sync)
			f.targets[0].disconnect()
			f.publish(func(m *fakeMirror) []*pb.SyncDelta { return m.remove("", 100, 50) })
			time.Sleep(time.Second)
			synctest.Wait()
			f.wantEqual(t, 0)
			f.wantEqual(t, 1)
		},
		"a short disconnection resumes without a snapshot": func(t *testing.T, f *fixture) {
			f.publish(func(m *fakeMirror) []*pb.SyncDelta { return m.store("", index.TierT1, 1, 5) })
			synctest.Wait()
			received := f.servers[0].sync.Report().BlocksReceived
			f.targets[0].disconnect()
			f.publish(func(m *fakeMirror) []*pb.SyncDelta { return m.store("", index.TierT1, 100, 5) })
			time.Sleep(time.Second)
			synctest.Wait()
			f.wantEqual(t, 0)
			if got := f.servers[0].sync.Report().BlocksReceived; got != received {
				t.Errorf("snapshot blocks received rose from %d to %d, want no new snapshot", received, got)
			}
		},
		"one server down does not hold up the other": func(t *testing.T, f *fixture) {
			f.targets[0].use(nil)
			f.targets[0].disconnect()
			synctest.Wait()
			f.publish(func(m *fakeMirror) []*pb.SyncDelta { return m.store("", index.TierT1, 1, 5) })
			synctest.Wait()
			f.wantEqual(t, 1)
			if state := f.link(t, "server-0").State; state != publisher.LinkDown {
				t.Errorf("link to the server that is down is %s", state)
			}
		},
		"targets come and go": func(t *testing.T, f *fixture) {
			f.publish(func(m *fakeMirror) []*pb.SyncDelta { return m.store("", index.TierT1, 1, 5) })
			synctest.Wait()
			f.hub.SetTargets([]publisher.Target{f.targets[1]})
			synctest.Wait()
			f.publish(func(m *fakeMirror) []*pb.SyncDelta { return m.store("", index.TierT1, 10, 5) })
			synctest.Wait()
			f.wantEqual(t, 1)
			if got := f.servers[0].memberships(); got != 5 {
				t.Errorf("the server that was removed holds %d blocks, want the 5 it had", got)
			}
			if got := len(f.hub.Status()); got != 1 {
				t.Errorf("%d links, want 1", got)
			}
		},
		"a delta larger than a frame is split": func(t *testing.T, f *fixture) {
			f.publish(func(m *fakeMirror) []*pb.SyncDelta { return m.store("", index.TierT1, 1, 70_000) })
			synctest.Wait()
			if got := f.servers[0].memberships(); got != 70_000 {
				t.Errorf("%d memberships, want 70000", got)
			}
		},
		"a requested resync brings a snapshot": func(t *testing.T, f *fixture) {
			f.publish(func(m *fakeMirror) []*pb.SyncDelta { return m.store("", index.TierT1, 1, 5) })
			synctest.Wait()
			f.servers[0].index.ClearReplica(testTenant, testModel, testReplica)
			if !f.servers[0].sync.RequestResync(testScope, testReplica, ingest.ResyncRequested) {
				t.Fatal("no live session to resync")
			}
			time.Sleep(time.Second)
			synctest.Wait()
			f.wantEqual(t, 0)
			if state := f.link(t, "server-0").State; state != publisher.LinkLive {
				t.Errorf("link is %s, want live", state)
			}
		},
		"heartbeats keep blocks fresh": func(t *testing.T, f *fixture) {
			f.publish(func(m *fakeMirror) []*pb.SyncDelta { return m.store("", index.TierT1, 1, 5) })
			time.Sleep(time.Hour)
			synctest.Wait()
			f.wantEqual(t, 0)
		},
		"load reaches every server, also after it restarted": func(t *testing.T, f *fixture) {
			f.hub.PublishStats(&pb.ReplicaStats{Pressure: 0.5}, time.Now())
			synctest.Wait()
			f.servers[1] = newServer(ingest.SyncOptions{})
			f.targets[1].use(f.servers[1].sync)
			f.targets[1].disconnect()
			time.Sleep(time.Second)
			synctest.Wait()
			for i, s := range f.servers {
				rows, _ := s.index.CacheState(testTenant, testModel)
				if len(rows) != 1 || rows[0].Stats.Pressure != 0.5 {
					t.Errorf("server %d: stats %+v, want one row with pressure 0.5", i, rows)
				}
			}
		},
	}
	for name, body := range tests {
		t.Run(name, func(t *testing.T) { inBubble(t, publisher.HubOptions{}, 2, body) })
	}
}

func TestHubOverflow(t *testing.T) {
	options := publisher.HubOptions{QueueFrames: 4}
	inBubble(t, options, 1, func(t *testing.T, f *fixture) {
		f.targets[0].use(nil)
		f.targets[0].disconnect()
		synctest.Wait()
		for i := range 10 {
			f.publish(func(m *fakeMirror) []*pb.SyncDelta { return m.store("", index.TierT1, uint64(100*i), 3) })
		}
		status := f.link(t, "server-0")
		if status.Overflows != 1 || status.QueueFrames != 0 {
			t.Errorf("%d overflows and %d frames queued, want 1 and 0", status.Overflows, status.QueueFrames)
		}
		f.targets[0].use(f.servers[0].sync)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		f.wantEqual(t, 0)
	})
}

// stuckServer answers hello and then reads nothing more.
type stuckServer struct {
	pb.UnimplementedCacheSyncServer
}

func (stuckServer) Sync(stream pb.CacheSync_SyncServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	welcome := &pb.SyncWelcome{ProtocolVersion: 1, ServerEpoch: "e", NeedSnapshot: true, WindowFrames: 1 << 20, MaxBlocksPerFrame: 4096}
	if err := stream.Send(&pb.ServerFrame{Frame: &pb.ServerFrame_Welcome{Welcome: welcome}}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

func TestHubStuckServer(t *testing.T) {
	inBubble(t, publisher.HubOptions{QueueFrames: 100}, 2, func(t *testing.T, f *fixture) {
		f.targets[0].use(stuckServer{})
		f.targets[0].disconnect()
		time.Sleep(time.Second)
		synctest.Wait()
		for i := range 1000 {
			f.publish(func(m *fakeMirror) []*pb.SyncDelta { return m.store("", index.TierT1, uint64(10*i), 3) })
			if i%50 == 0 {
				synctest.Wait()
			}
		}
		synctest.Wait()
		f.wantEqual(t, 1)
		if queued := f.link(t, "server-0").QueueFrames; queued > 100 {
			t.Errorf("%d frames queued for the stuck server, want at most 100", queued)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if lastError := f.link(t, "server-0").LastError; lastError != "server is silent" {
			t.Errorf("link to the stuck server last ended with %q, want it given up as silent", lastError)
		}
		time.Sleep(6 * time.Second)
		begun := time.Now()
		f.stop()
		if took := time.Since(begun); took > time.Second {
			t.Errorf("hub took %v to end with a stuck server, want at most 1s", took)
		}
	})
}

func TestHubSaysGoodbye(t *testing.T) {
	inBubble(t, publisher.HubOptions{}, 1, func(t *testing.T, f *fixture) {
		f.publish(func(m *fakeMirror) []*pb.SyncDelta { return m.store("", index.TierT1, 1, 5) })
		synctest.Wait()
		begun := time.Now()
		f.stop()
		if took := time.Since(begun); took != 0 {
			t.Errorf("farewell took %v although the server answers", took)
		}
		if got := f.servers[0].memberships(); got != 5 {
			t.Errorf("%d memberships after goodbye, want 5 that age", got)
		}
		if report := f.servers[0].sync.Report(); report.Lost != 1 {
			t.Errorf("report %+v, want one lost session", report)
		}
	})
}

func TestGoodbyeOfAReplicaThatEndsToo(t *testing.T) {
	for name, tc := range map[string]struct {
		end  func(f *fixture)
		want int64
	}{
		"drops what servers hold of it":        {func(f *fixture) { f.stop() }, 0},
		"is not said to a server that is left": {func(f *fixture) { f.hub.SetTargets(nil) }, 5},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, publisher.HubOptions{GoneAtEnd: true}, 1, func(t *testing.T, f *fixture) {
				f.publish(func(m *fakeMirror) []*pb.SyncDelta { return m.store("", index.TierT1, 1, 5) })
				synctest.Wait()
				tc.end(f)
				synctest.Wait()
				if got := f.servers[0].memberships(); got != tc.want {
					t.Errorf("%d memberships, want %d", got, tc.want)
				}
			})
		})
	}
}

func TestHubOverGRPC(t *testing.T) {
	s := newServer(ingest.SyncOptions{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	grpcServer := grpc.NewServer()
	pb.RegisterCacheSyncServer(grpcServer, s.sync)
	served := make(chan error, 1)
	go func() { served <- grpcServer.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		grpcServer.Stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})

	mirror := newFakeMirror()
	mirror.store("", index.TierT1, 1, 12_000)
	hub := publisher.NewHub(testIdentity(), mirror, []publisher.Target{publisher.NewGRPCTarget("s", conn)}, publisher.HubOptions{})
	stop := startHub(t, hub)
	eventually(t, "snapshot", func() bool { return s.memberships() == 12_000 })
	hub.Publish(func() []*pb.SyncDelta { return mirror.remove("", 1, 10_000) })
	eventually(t, "delta", func() bool { return s.memberships() == 2_000 })
	if diff := s.diffMirror(mirror); diff != "" {
		t.Errorf("index differs from the mirror (-mirror +index):\n%s", diff)
	}
	// The open stream does not hold up the server's end, nor the hub's.
	s.sync.Drain()
	grpcServer.GracefulStop()
	if report := s.sync.Report(); report.Lost != 1 {
		t.Errorf("report %+v, want one lost session", report)
	}
	stop()
}

// A server's shutdown ends streams at once and the hub finds the next server.
func TestHubServerDrains(t *testing.T) {
	inBubble(t, publisher.HubOptions{}, 1, func(t *testing.T, f *fixture) {
		f.publish(func(m *fakeMirror) []*pb.SyncDelta { return m.store("", index.TierT1, 1, 5) })
		f.servers[0].sync.Drain()
		synctest.Wait()
		if state := f.link(t, "server-0").State; state != publisher.LinkDown {
			t.Errorf("link is %s after the server drained, want down", state)
		}
		f.servers[0] = newServer(ingest.SyncOptions{})
		f.targets[0].use(f.servers[0].sync)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		f.wantEqual(t, 0)
	})
}

var _ publisher.Target = (*switchTarget)(nil)

func ExampleHub() {
	s := newServer(ingest.SyncOptions{})
	mirror := newFakeMirror()
	hub := publisher.NewHub(testIdentity(), mirror,
		[]publisher.Target{publisher.NewInProcTarget("local", s.sync)}, publisher.HubOptions{})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- hub.Run(ctx) }()
	hub.Publish(func() []*pb.SyncDelta { return mirror.store("", index.TierT1, 1, 3) })
	for s.memberships() < 3 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	fmt.Println(s.memberships(), <-ended)
	// Output: 3 <nil>
}
