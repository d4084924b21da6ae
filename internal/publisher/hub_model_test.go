// SPDX-License-Identifier: Apache-2.0

package publisher_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/ingest"
	"github.com/inferencecache/inference-cache/internal/publisher"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// modelStep is one thing that happens to a publisher or to its server.
type modelStep struct {
	Kind    string
	Adapter string
	Tier    index.Tier
	First   uint64
	N       int
	Pause   time.Duration
}

func drawStep(t *rapid.T) modelStep {
	return modelStep{
		Kind: rapid.SampledFrom([]string{
			"store", "store", "store", "remove", "remove", "clear", "pause", "settle",
			"disconnect", "server down", "server up", "server restart", "drain", "resync",
		}).Draw(t, "kind"),
		Adapter: rapid.SampledFrom([]string{"", "lora"}).Draw(t, "adapter"),
		Tier:    rapid.SampledFrom([]index.Tier{index.TierT1, index.TierT2}).Draw(t, "tier"),
		First:   rapid.Uint64Range(0, 40).Draw(t, "first"),
		N:       rapid.IntRange(1, 12).Draw(t, "n"),
		Pause:   time.Duration(rapid.IntRange(0, 4000).Draw(t, "pause")) * time.Millisecond,
	}
}

func (f *fixture) do(s modelStep) {
	switch s.Kind {
	case "store":
		f.publish(func(m *fakeMirror) []*pb.SyncDelta { return m.store(s.Adapter, s.Tier, s.First, s.N) })
	case "remove":
		f.publish(func(m *fakeMirror) []*pb.SyncDelta { return m.remove(s.Adapter, s.First, s.N) })
	case "clear":
		f.publish(func(m *fakeMirror) []*pb.SyncDelta { return m.clear() })
	case "pause":
		time.Sleep(s.Pause)
	case "settle":
		synctest.Wait()
	case "disconnect":
		f.targets[0].disconnect()
	case "server down":
		f.targets[0].use(nil)
		f.targets[0].disconnect()
	case "server up":
		f.targets[0].use(f.servers[0].sync)
	case "drain":
		f.servers[0].sync.Drain()
		f.restart()
	case "server restart":
		f.restart()
		f.targets[0].disconnect()
	case "resync":
		f.servers[0].sync.RequestAllResyncs(ingest.ResyncOperator)
	}
}

// restart puts an empty server in the place of the first one.
func (f *fixture) restart() {
	f.servers[0] = newServer(ingest.SyncOptions{Options: ingest.Options{MaxKeys: 5}, WindowFrames: 3})
	f.targets[0].use(f.servers[0].sync)
}

// Whatever happens on the way, the index of a server that stays up for a while
// equals the mirror.
func TestHubConverges(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(drawStep), 1, 60).Draw(rt, "steps")
		options := publisher.HubOptions{
			QueueFrames: rapid.IntRange(1, 8).Draw(rt, "queue frames"),
			QueueBlocks: rapid.IntRange(12, 40).Draw(rt, "queue blocks"),
			ChunkBlocks: rapid.IntRange(1, 7).Draw(rt, "chunk blocks"),
		}
		var diffs []string
		inBubble(t, options, 2, func(t *testing.T, f *fixture) {
			for _, step := range steps {
				f.do(step)
			}
			f.targets[0].use(f.servers[0].sync)
			time.Sleep(20 * time.Second)
			synctest.Wait()
			for i := range f.servers {
				if diff := f.servers[i].diffMirror(f.mirror); diff != "" {
					diffs = append(diffs, fmt.Sprintf("server %d (-mirror +index):\n%s", i, diff))
				}
			}
		})
		for _, diff := range diffs {
			rt.Error(diff)
		}
	})
}
