// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"

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
