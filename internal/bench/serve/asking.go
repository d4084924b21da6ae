// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/inferencecache/inference-cache/internal/bench"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// asker sends lookups over one gRPC connection, as a gateway does.
type asker struct {
	conn   *grpc.ClientConn
	client pb.InferenceCacheClient
}

func newAsker(s Instance) (*asker, error) {
	conn, err := grpc.NewClient("passthrough:///"+s.GRPC(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		return nil, err
	}
	return &asker{conn, pb.NewInferenceCacheClient(conn)}, nil
}

func (a *asker) close() { _ = a.conn.Close() }

// request asks for a chain of keys.
func request(keys []uint64, blockSize int) *pb.LookupRouteRequest {
	wire := make([]byte, 0, 8*len(keys))
	r := &pb.LookupRouteRequest{TenantId: tenant, ModelId: model, HashScheme: scheme}
	for i, key := range keys {
		wire = binary.BigEndian.AppendUint64(wire, key)
		r.BlockHashes = append(r.BlockHashes, wire[8*i:8*i+8:8*i+8])
		r.BlockTokenCounts = append(r.BlockTokenCounts, int32(blockSize))
	}
	return r
}

// requests makes at most n lookups of a corpus, spread evenly over it.
func requests(c *bench.Corpus, n int) (out []*pb.LookupRouteRequest) {
	every := max(c.Header.Requests/n, 1)
	seen := 0
	for _, op := range c.Ops {
		if op.Kind != bench.Lookup {
			continue
		}
		if seen++; seen%every > 0 || len(op.Blocks) == 0 {
			continue
		}
		keys := make([]uint64, len(op.Blocks))
		for i, b := range op.Blocks {
			keys[i] = bench.Key(b)
		}
		out = append(out, request(keys, c.Header.BlockSize))
	}
	return out
}

// answers is what a stretch of lookups gave.
type answers struct {
	took    []float64 // sorted microseconds, from the intended start
	late    []float64 // sorted microseconds, from the intended start to the call
	matched int64
	failed  int64
	seconds float64
}

// ask sends lookups at their times and waits for all answers. However many are
// under way, the next one starts in time.
func (a *asker) ask(ctx context.Context, requests []*pb.LookupRouteRequest, start time.Time, rate int, d time.Duration) answers {
	n := max(int(float64(rate)*d.Seconds()), 1)
	out := answers{took: make([]float64, n), late: make([]float64, n)}
	var matched, failed atomic.Int64
	due := func(i int) time.Time { return start.Add(time.Duration(i) * time.Second / time.Duration(rate)) }
	one := func(i int) {
		out.late[i] = micros(time.Since(due(i)))
		answer, err := a.client.LookupRoute(ctx, requests[i*31%len(requests)])
		out.took[i] = micros(time.Since(due(i)))
		switch {
		case err != nil:
			failed.Add(1)
		case len(answer.GetReplicaScores()) > 0 && answer.GetReasonCode() == "PREFIX_MATCH":
			matched.Add(1)
		}
	}
	var running sync.WaitGroup
	work := make(chan int)
	release := bench.Pacer()
	for i := range n {
		bench.WaitUntil(due(i))
		if ctx.Err() != nil {
			break
		}
		select {
		case work <- i:
		default: // all callers are busy
			running.Go(func() {
				one(i)
				for {
					next, more := <-work
					if !more {
						return
					}
					one(next)
				}
			})
		}
	}
	release()
	close(work)
	running.Wait()
	out.seconds = time.Since(start).Seconds()
	out.matched, out.failed = matched.Load(), failed.Load()
	slices.Sort(out.took)
	slices.Sort(out.late)
	return out
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// detail describes the spread of a stretch.
func (a answers) detail() map[string]float64 {
	n := float64(len(a.took))
	return map[string]float64{
		"lookups": n, "achieved_per_s": n / a.seconds, "failed": float64(a.failed), "matched_share": float64(a.matched) / n,
		"p50_us": bench.Quantile(a.took, 0.5), "p99.9_us": bench.Quantile(a.took, 0.999), "max_us": bench.Quantile(a.took, 1),
		"client_late_p99_us": bench.Quantile(a.late, 0.99),
	}
}
