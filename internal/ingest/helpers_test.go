// SPDX-License-Identifier: Apache-2.0

package ingest_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/ingest"
	"github.com/inferencecache/inference-cache/internal/publisher"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

const (
	tenant   = "team"
	model    = "llama"
	scheme   = "vllm"
	replica  = "pod-0"
	reserved = "inferencecache.io/probe"
)

var scope = index.Scope{Tenant: tenant, Model: model, Scheme: scheme}

// hash is the 8-byte wire form of a key.
func hash(key uint64) []byte { return binary.BigEndian.AppendUint64(nil, key) }

// held is what the replica freshly holds of keys in an adapter: key -> tokens.
func held(x *index.Index, adapter string, now time.Time, keys ...uint64) map[uint64]int32 {
	view := x.Acquire(scope, adapter, now.UnixMilli(), index.DefaultTTLMillis)
	defer view.Release()
	got := make(map[uint64]int32)
	for _, key := range keys {
		for _, match := range view.MatchExact(nil, index.Keys{Short: []uint64{key}}) {
			if match.Replica == replica {
				got[key] = match.Tokens
			}
		}
	}
	return got
}

// counters reads every non-zero series of a family as "value,value" -> count.
func counters(t *testing.T, registry *prometheus.Registry, family string) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]float64)
	for _, f := range families {
		if f.GetName() != family {
			continue
		}
		for _, metric := range f.GetMetric() {
			labels := ""
			for i, pair := range metric.GetLabel() {
				if i > 0 {
					labels += ","
				}
				labels += pair.GetValue()
			}
			if value := metric.GetCounter().GetValue() + metric.GetGauge().GetValue(); value != 0 {
				got[labels] = value
			}
		}
	}
	return got
}

// fixture is a sync server with the registry of its metrics.
type fixture struct {
	index    *index.Index
	sync     *ingest.SyncServer
	registry *prometheus.Registry
}

func newFixture(options ingest.SyncOptions) *fixture {
	f := &fixture{index: index.New(index.Config{}), registry: prometheus.NewRegistry()}
	options.Metrics = ingest.NewMetrics(f.registry)
	options.ReservedTenant = reserved
	if options.Epoch == "" {
		options.Epoch = "epoch-1"
	}
	f.sync = ingest.NewSyncServer(f.index, options)
	return f
}

func (f *fixture) wantHeld(t *testing.T, adapter string, want map[uint64]int32) {
	t.Helper()
	synctest.Wait()
	keys := make([]uint64, 100)
	for i := range keys {
		keys[i] = uint64(i)
	}
	if diff := cmp.Diff(want, held(f.index, adapter, time.Now(), keys...)); diff != "" {
		t.Errorf("held in adapter %q (-want +got):\n%s", adapter, diff)
	}
}

func (f *fixture) wantCounters(t *testing.T, family string, want map[string]float64) {
	t.Helper()
	if diff := cmp.Diff(want, counters(t, f.registry, family)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", family, diff)
	}
}

// client speaks the protocol frame by frame.
type client struct {
	t      *testing.T
	stream publisher.Stream
	cut    context.CancelFunc
}

// dial opens a stream to the fixture's server. Call it in a synctest bubble.
func (f *fixture) dial(t *testing.T) *client {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); synctest.Wait() })
	stream, err := publisher.NewInProcTarget("server", f.sync).Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return &client{t: t, stream: stream, cut: cancel}
}

func (c *client) send(frame *pb.PublisherFrame) {
	c.t.Helper()
	if err := c.stream.Send(frame); err != nil {
		c.t.Fatalf("send %T: %v", frame.GetFrame(), err)
	}
	synctest.Wait()
}

func (c *client) recv() *pb.ServerFrame {
	c.t.Helper()
	frame, err := c.stream.Recv()
	if err != nil {
		c.t.Fatalf("recv: %v", err)
	}
	return frame
}

// hello sends h and returns the welcome.
func (c *client) hello(h *pb.SyncHello) *pb.SyncWelcome {
	c.t.Helper()
	c.send(&pb.PublisherFrame{Frame: &pb.PublisherFrame_Hello{Hello: h}})
	frame := c.recv()
	if frame.GetWelcome() == nil {
		c.t.Fatalf("answer to hello is %v, want welcome", frame)
	}
	return frame.GetWelcome()
}

// wantAck reads frames until an acknowledgement of sequence. Frames passed
// over on the way are returned.
func (c *client) wantAck(sequence uint64) (before []*pb.ServerFrame) {
	c.t.Helper()
	for {
		frame := c.recv()
		if ack := frame.GetAck(); ack == nil {
			before = append(before, frame)
		} else if ack.GetSequence() >= sequence {
			if ack.GetSequence() != sequence {
				c.t.Fatalf("acknowledged %d, want %d", ack.GetSequence(), sequence)
			}
			return before
		}
	}
}

// wantEnd reads until the stream ends and returns the rejection, if any, and
// the error (nil for an orderly end).
func (c *client) wantEnd() (*pb.SyncReject, error) {
	c.t.Helper()
	var reject *pb.SyncReject
	for {
		frame, err := c.stream.Recv()
		if errors.Is(err, io.EOF) {
			return reject, nil
		}
		if err != nil {
			return reject, err
		}
		if r := frame.GetReject(); r != nil {
			reject = r
		}
	}
}

func helloOf(epoch uint64, startedUs int64) *pb.SyncHello {
	return &pb.SyncHello{
		ProtocolVersion: 1, TenantId: tenant, ModelId: model, HashScheme: scheme, ReplicaId: replica,
		Incarnation: &pb.SyncIncarnation{PodUid: "uid", Epoch: epoch, StartedUs: startedUs},
		BlockSize:   16, RankCount: 1,
	}
}

func storedRun(keys ...uint64) *pb.StoredRun {
	return &pb.StoredRun{Tier: pb.CacheTier_CACHE_TIER_T1, Keys: keys, FirstTokenCount: 16, BlockTokenCount: 16}
}

func store(run *pb.StoredRun) *pb.SyncOp { return &pb.SyncOp{Op: &pb.SyncOp_Stored{Stored: run}} }

func remove(keys ...uint64) *pb.SyncOp {
	return &pb.SyncOp{Op: &pb.SyncOp_Removed{Removed: &pb.RemovedRun{Keys: keys}}}
}

func delta(sequence uint64, ops ...*pb.SyncOp) *pb.PublisherFrame {
	return &pb.PublisherFrame{Sequence: sequence, Frame: &pb.PublisherFrame_Delta{Delta: &pb.SyncDelta{Ops: ops}}}
}

func begin(sequence uint64) *pb.PublisherFrame {
	return &pb.PublisherFrame{Sequence: sequence, Frame: &pb.PublisherFrame_SnapshotBegin{SnapshotBegin: &pb.SnapshotBegin{
		ExpectedBlocks: 100, ViewComplete: true,
	}}}
}

func chunk(sequence uint64, runs ...*pb.StoredRun) *pb.PublisherFrame {
	return &pb.PublisherFrame{Sequence: sequence, Frame: &pb.PublisherFrame_SnapshotChunk{
		SnapshotChunk: &pb.SnapshotChunk{Stored: runs},
	}}
}

func end(sequence, blocks uint64) *pb.PublisherFrame {
	return &pb.PublisherFrame{Sequence: sequence, Frame: &pb.PublisherFrame_SnapshotEnd{
		SnapshotEnd: &pb.SnapshotEnd{Blocks: blocks},
	}}
}

func heartbeat(sequence uint64, blockSize int32) *pb.PublisherFrame {
	return &pb.PublisherFrame{Sequence: sequence, Frame: &pb.PublisherFrame_Heartbeat{Heartbeat: &pb.SyncHeartbeat{BlockSize: blockSize}}}
}

// live opens a session that holds keys 1, 2, 3 after sequence 3.
func (f *fixture) live(t *testing.T, h *pb.SyncHello) *client {
	t.Helper()
	c := f.dial(t)
	c.hello(h)
	c.send(begin(1))
	c.send(chunk(2, storedRun(1, 2, 3)))
	c.send(end(3, 3))
	c.wantAck(3)
	return c
}

var three = map[uint64]int32{1: 16, 2: 32, 3: 48}
