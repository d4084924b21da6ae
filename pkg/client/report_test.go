// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/inferencecache/inference-cache/pkg/client"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

func updates(n int) (list []*pb.CacheStateUpdate) {
	for i := range n {
		list = append(list, &pb.CacheStateUpdate{TenantId: "team-a", ReplicaId: fmt.Sprintf("pod-%d", i)})
	}
	return list
}

func TestReport(t *testing.T) {
	for name, tc := range map[string]struct {
		ack     *pb.Ack
		want    client.Applied
		wantErr error
	}{
		"all of it":      {&pb.Ack{Accepted: true}, client.AppliedAll, nil},
		"a part":         {&pb.Ack{Accepted: true, ReasonCode: "PARTIAL"}, client.AppliedPartly, nil},
		"nothing":        {&pb.Ack{Accepted: true, ReasonCode: "DROPPED"}, client.AppliedNothing, nil},
		"not acceptable": {&pb.Ack{}, client.AppliedNothing, client.ErrNotAccepted},
	} {
		t.Run(name, func(t *testing.T) {
			got := make(chan string, 3)
			conn := connect(t, &fakeIndex{
				report: func(stream pb.InferenceCache_ReportCacheStateServer) error {
					for {
						update, err := stream.Recv()
						if errors.Is(err, io.EOF) {
							return stream.SendAndClose(tc.ack)
						} else if err != nil {
							return err
						}
						got <- update.GetReplicaId()
					}
				},
				event: func(context.Context, *pb.CacheEvent) (*pb.Ack, error) { return tc.ack, nil },
			})
			reporter := client.NewReporter(conn)
			applied, err := reporter.Report(t.Context(), updates(3)...)
			if applied != tc.want || !errors.Is(err, tc.wantErr) {
				t.Errorf("report: %q, %v, want %q, %v", applied, err, tc.want, tc.wantErr)
			}
			close(got)
			var order []string
			for replica := range got {
				order = append(order, replica)
			}
			if diff := cmp.Diff([]string{"pod-0", "pod-1", "pod-2"}, order); diff != "" {
				t.Errorf("updates (-want +got):\n%s", diff)
			}
			applied, err = reporter.Publish(t.Context(), &pb.CacheEvent{})
			if applied != tc.want || !errors.Is(err, tc.wantErr) {
				t.Errorf("event: %q, %v, want %q, %v", applied, err, tc.want, tc.wantErr)
			}
		})
	}
}

func TestReportErrors(t *testing.T) {
	t.Run("the server's reason survives a stream that ended early", func(t *testing.T) {
		reporter := client.NewReporter(connect(t, &fakeIndex{report: func(pb.InferenceCache_ReportCacheStateServer) error {
			return status.Error(codes.PermissionDenied, "not your tenant")
		}}))
		applied, err := reporter.Report(t.Context(), updates(1000)...)
		if applied != client.AppliedNothing || status.Code(errors.Unwrap(err)) != codes.PermissionDenied {
			t.Errorf("%q, %v", applied, err)
		}
	})
	t.Run("an event refused", func(t *testing.T) {
		_, err := client.NewReporter(connect(t, &fakeIndex{})).Publish(t.Context(), &pb.CacheEvent{})
		if status.Code(errors.Unwrap(err)) != codes.Unimplemented {
			t.Error(err)
		}
	})
	t.Run("a caller that left", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := client.NewReporter(connect(t, &fakeIndex{})).Report(ctx); status.Code(errors.Unwrap(err)) != codes.Canceled {
			t.Error(err)
		}
	})
	t.Run("an update too large to send", func(t *testing.T) {
		reporter := client.NewReporter(connect(t, &fakeIndex{report: func(stream pb.InferenceCache_ReportCacheStateServer) error {
			_, err := stream.Recv()
			return err
		}}))
		huge := &pb.CacheStateUpdate{ReplicaId: string(make([]byte, 5<<20))}
		if _, err := reporter.Report(t.Context(), huge); status.Code(errors.Unwrap(err)) != codes.ResourceExhausted {
			t.Error(err)
		}
	})
}
