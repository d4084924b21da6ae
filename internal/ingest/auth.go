// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"context"
	"errors"
)

// Write names what a message wants to change.
type Write struct {
	Tenant, Model, Scheme, Replica string
	// PodUID is what a CacheSync hello claims; empty for contract messages.
	PodUID string
}

// Authorizer decides who may write what.
type Authorizer interface {
	// Authorize returns nil to allow the write, a *DeniedError to refuse it.
	// Any other error refuses it as unauthenticated. ctx is that of the call
	// and carries the caller's identity. It may block for an I/O round trip.
	Authorize(ctx context.Context, w Write) error
}

// DenyReason says why a write was refused.
type DenyReason string

// Reasons of refusal.
const (
	DenyUnauthenticated DenyReason = "unauthenticated"
	DenyTenant          DenyReason = "tenant"
	DenyReplica         DenyReason = "replica"
	DenyScope           DenyReason = "scope"
)

// DeniedError refuses a write.
type DeniedError struct{ Reason DenyReason }

func (e *DeniedError) Error() string { return "write refused: " + string(e.Reason) }

// authorize asks a, which may be nil, and counts a refusal.
func authorize(ctx context.Context, a Authorizer, m *Metrics, w Write) error {
	if a == nil {
		return nil
	}
	err := a.Authorize(ctx, w)
	if err == nil {
		return nil
	}
	reason := DenyUnauthenticated
	var denied *DeniedError
	if errors.As(err, &denied) {
		reason = denied.Reason
	}
	m.Denied(reason)
	return err
}
