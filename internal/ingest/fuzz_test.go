// SPDX-License-Identifier: Apache-2.0

package ingest_test

import (
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	"github.com/inferencecache/inference-cache/internal/ingest"
	"github.com/inferencecache/inference-cache/internal/publisher"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

func marshal(f *testing.F, m proto.Message) []byte {
	f.Helper()
	raw, err := proto.Marshal(m)
	if err != nil {
		f.Fatal(err)
	}
	return raw
}

// Whatever a producer sends, the result says whether something took effect.
func FuzzUpdate(f *testing.F) {
	f.Add(marshal(f, update(prefix(1, 16), chain([]int32{16, 16}, 1, 2))))
	f.Add(marshal(f, update(chain([]int32{16}, 1, 2), prefix(1, -1))))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var u pb.CacheStateUpdate
		if proto.Unmarshal(raw, &u) != nil {
			return
		}
		c := newContract(ingest.Options{MaxKeys: 64})
		result := c.contract.Update(t.Context(), &u)
		counts := c.index.Counters(start.UnixMilli())
		if counts.Memberships > 64 || counts.Memberships > 0 && !result.Applied {
			t.Errorf("%d memberships after %+v", counts.Memberships, result)
		}
	})
}

// Whatever frames follow hello, the server neither panics nor hangs, and an
// honest stream of a newer incarnation finds a working session.
func FuzzSyncFrames(f *testing.F) {
	f.Add(marshal(f, begin(1)), marshal(f, chunk(2, storedRun(1, 2))), marshal(f, end(3, 2)))
	f.Add(marshal(f, begin(1)), marshal(f, end(2, 0)), marshal(f, delta(3, store(storedRun(4)), remove(4))))
	f.Add(marshal(f, delta(9, remove(1))), marshal(f, heartbeat(7, 16)), marshal(f, begin(3)))
	f.Fuzz(func(t *testing.T, first, second, third []byte) {
		synctest.Test(t, func(t *testing.T) {
			x := newFixture(ingest.SyncOptions{})
			stream, err := publisher.NewInProcTarget("server", x.sync).Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			c := &client{t: t, stream: stream}
			c.hello(helloOf(1, 1))
			for _, raw := range [][]byte{first, second, third} {
				var frame pb.PublisherFrame
				if proto.Unmarshal(raw, &frame) == nil && stream.Send(&frame) != nil {
					break
				}
			}
			synctest.Wait()
			x.live(t, helloOf(2, 2))
			x.wantHeld(t, "", three)
		})
	})
}
