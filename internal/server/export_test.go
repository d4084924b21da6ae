// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/inferencecache/inference-cache/internal/auth"
	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/ingest"
	"github.com/inferencecache/inference-cache/internal/policy"
)

// SetPolicies puts policies in force, as a push by the controller would.
func (s *Server) SetPolicies(policies []policy.Declared, quotas []policy.Quota) {
	s.policies.Replace(&policy.Snapshot{Policies: policies, Quotas: quotas})
}

// Sweep runs the index's maintenance now.
func (s *Server) Sweep() { s.sweep(context.Background()) }

// Ingest takes in contract updates without gRPC.
func (s *Server) Ingest() *ingest.Contract { return s.ingest }

// SetExtensions puts extensions in force, as a push by the controller would.
func (s *Server) SetExtensions(extensions *policy.ExtensionSet) {
	s.policies.ReplaceExtensions(extensions)
}

// ReloadTemplates looks at the templates' directory now.
func (s *Server) ReloadTemplates() { s.reloadTemplates("") }

// EventBuffer is how many events wait for a slow stream, MaxEventStreams how
// many streams there may be.
const (
	EventBuffer     = eventBuffer
	MaxEventStreams = maxEventStreams
)

// Dump is what the index holds, the reserved tenant left out.
func (s *Server) Dump() string {
	counters := s.index.Counters(s.options.Now().UnixMilli())
	text := fmt.Sprintf("%d memberships, %d keys\n", counters.Memberships, counters.Keys)
	s.index.EachReplica(func(row index.ReplicaRow) { text += fmt.Sprintf("%+v\n", row) })
	return text
}

// WithCaller marks a context as that of a remote caller.
func WithCaller(ctx context.Context, identity auth.Identity) context.Context {
	return context.WithValue(ctx, callerKey{}, caller{identity: identity, known: true})
}

// Call runs a handler behind the guard of gRPC.
func (s *Server) Call(ctx context.Context, method string) error {
	_, err := s.guard.unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: method},
		func(context.Context, any) (any, error) { return nil, nil })
	return err
}

// Limited runs an empty call behind the limits of callers.
func (s *Server) Limited(ctx context.Context, method string) error {
	_, err := s.callers.unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: method},
		func(context.Context, any) (any, error) { return nil, nil })
	return err
}
