// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"

	"google.golang.org/grpc"

	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// GRPCTarget is a server reached over a gRPC connection.
type GRPCTarget struct {
	name    string
	client  pb.CacheSyncClient
	options []grpc.CallOption
}

var _ Target = (*GRPCTarget)(nil)

// NewGRPCTarget returns the server behind conn, which stays the caller's to
// configure and to close. Several hubs may share it.
func NewGRPCTarget(name string, conn grpc.ClientConnInterface, options ...grpc.CallOption) *GRPCTarget {
	return &GRPCTarget{name: name, client: pb.NewCacheSyncClient(conn), options: options}
}

// Name returns the name given to NewGRPCTarget.
func (t *GRPCTarget) Name() string { return t.name }

// Open starts a CacheSync call.
func (t *GRPCTarget) Open(ctx context.Context) (Stream, error) {
	stream, err := t.client.Sync(ctx, t.options...)
	if err != nil {
		return nil, err
	}
	return stream, nil
}
