// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"errors"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// maxUnauthorized is how many refused messages end a stream.
const maxUnauthorized = 100

// Report serves one ReportCacheState stream: it applies every update and
// answers with one Ack once the producer has closed its side or Drain was
// called. What was applied before an error stays applied.
func (c *Contract) Report(stream pb.InferenceCache_ReportCacheStateServer) error {
	defer c.options.Metrics.StreamOpened(StreamReport)()
	updates := make(chan *pb.CacheStateUpdate)
	failed := make(chan error, 1)
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			update, err := stream.Recv()
			if err != nil {
				failed <- err
				return
			}
			select {
			case updates <- update:
			case <-done:
				return
			}
		}
	}()

	var result Result
	unauthorized := 0
	for {
		select {
		case update := <-updates:
			one := c.Update(stream.Context(), update)
			if one.Unauthorized {
				unauthorized++
			}
			if unauthorized >= maxUnauthorized {
				return status.Error(codes.PermissionDenied, "too many updates for a tenant, replica or scope that is not the caller's")
			}
			result = result.merge(one)
		case err := <-failed:
			if !errors.Is(err, io.EOF) {
				return err
			}
			return stream.SendAndClose(ack(result))
		case <-c.draining:
			return stream.SendAndClose(ack(result))
		}
	}
}

func ack(r Result) *pb.Ack { return &pb.Ack{Accepted: true, ReasonCode: r.Code()} }

// Ack renders the result of an event for the wire.
func (r Result) Ack() *pb.Ack { return ack(r) }
