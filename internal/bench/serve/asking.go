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

// askerConns is how many connections lookups come over, as from a few
// gateways.
const askerConns = 4

// asker sends lookups over gRPC.
type asker struct {
	conns   []*grpc.ClientConn
	clients []pb.InferenceCacheClient
}

func newAsker(s Instance) (*asker, error) {
	a := &asker{}
	for range askerConns {
		conn, err := grpc.NewClient("passthrough:///"+s.GRPC(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
		if err != nil {
			a.close()
			return nil, err
		}
		a.conns, a.clients = append(a.conns, conn), append(a.clients, pb.NewInferenceCacheClient(conn))
	}
	return a, nil
}

func (a *asker) close() {
	for _, c := range a.conns {
		_ = c.Close()
	}
}

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

// ask sends lookups at their times, each in a goroutine of its own, and waits
// for all answers.
func (a *asker) ask(ctx context.Context, requests []*pb.LookupRouteRequest, start time.Time, rate int, d time.Duration) answers {
	n := max(int(float64(rate)*d.Seconds()), 1)
	out := answers{took: make([]float64, n), late: make([]float64, n)}
	var matched, failed atomic.Int64
	var running sync.WaitGroup
	release := bench.Pacer()
	for i := range n {
		due := start.Add(time.Duration(i) * time.Second / time.Duration(rate))
		bench.WaitUntil(due)
		if ctx.Err() != nil {
			break
		}
		running.Go(func() {
			out.late[i] = micros(time.Since(due))
			answer, err := a.clients[i%len(a.clients)].LookupRoute(ctx, requests[i*31%len(requests)])
			out.took[i] = micros(time.Since(due))
			switch {
			case err != nil:
				failed.Add(1)
			case len(answer.GetReplicaScores()) > 0 && answer.GetReasonCode() == "PREFIX_MATCH":
				matched.Add(1)
			}
		})
	}
	release()
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
