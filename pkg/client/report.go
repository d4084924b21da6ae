// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// Applied says how much of a report the index took.
type Applied string

// Values of Applied.
const (
	AppliedAll     Applied = ""
	AppliedPartly  Applied = "PARTIAL"
	AppliedNothing Applied = "DROPPED"
)

// ErrNotAccepted is returned when the index answers without accepting.
var ErrNotAccepted = errors.New("index did not accept the report")

// Reporter tells the index what replicas hold. Unlike lookups, its calls
// return errors: the caller decides what to send again. It sets no deadlines
// and is safe for concurrent use.
type Reporter struct{ index pb.InferenceCacheClient }

// NewReporter returns a Reporter over a connection, which stays the caller's.
func NewReporter(conn grpc.ClientConnInterface) *Reporter {
	return &Reporter{index: pb.NewInferenceCacheClient(conn)}
}

// Report sends updates on one stream, in order, and waits for the answer.
// Updates add: what they leave out stays as it was. Servers take up to 65,536
// block keys and 4 MiB per update by default. After an error a leading part of
// the updates may have been applied.
func (r *Reporter) Report(ctx context.Context, updates ...*pb.CacheStateUpdate) (Applied, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := r.index.ReportCacheState(ctx)
	if err != nil {
		return AppliedNothing, fmt.Errorf("open report: %w", err)
	}
	for i, update := range updates {
		if err := stream.Send(update); errors.Is(err, io.EOF) {
			break // The stream ended; CloseAndRecv knows why.
		} else if err != nil {
			return AppliedNothing, fmt.Errorf("send update %d of %d: %w", i+1, len(updates), err)
		}
	}
	ack, err := stream.CloseAndRecv()
	return outcomeOf("report", ack, err)
}

// Publish sends one event: a prefix evicted, a replica cleared or alive.
func (r *Reporter) Publish(ctx context.Context, event *pb.CacheEvent) (Applied, error) {
	ack, err := r.index.PublishEvent(ctx, event)
	return outcomeOf("publish event", ack, err)
}

func outcomeOf(what string, ack *pb.Ack, err error) (Applied, error) {
	if err != nil {
		return AppliedNothing, fmt.Errorf("%s: %w", what, err)
	}
	if !ack.GetAccepted() {
		return AppliedNothing, fmt.Errorf("%s: %w", what, ErrNotAccepted)
	}
	return Applied(ack.GetReasonCode()), nil
}
