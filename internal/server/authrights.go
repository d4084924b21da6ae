// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"

	"github.com/inferencecache/inference-cache/internal/auth"
	"github.com/inferencecache/inference-cache/internal/gate"
	"github.com/inferencecache/inference-cache/internal/ingest"
	"github.com/inferencecache/inference-cache/internal/policy"
)

var _ ingest.Authorizer = (*callGuard)(nil)

// Authorize implements ingest.Authorizer: producers write as their own pod,
// callers without credentials as replicas nobody else owns.
func (g *callGuard) Authorize(ctx context.Context, w ingest.Write) error {
	who, trusted := callerOf(ctx)
	if trusted {
		return nil
	}
	reason := g.refuses(who, w)
	if reason == "" {
		return nil
	}
	g.audit.refused(who.identity.Name, w, reason, g.now())
	return &ingest.DeniedError{Reason: reason}
}

// refuses returns why a write is refused, or "". An allowed one is a sign of
// its publisher.
func (g *callGuard) refuses(who caller, w ingest.Write) ingest.DenyReason {
	id := who.identity
	switch {
	case w.Tenant == hiddenTenant:
		return ingest.DenyTenant
	case !who.known && g.options.Mode != AuthPermissive:
		return ingest.DenyUnauthenticated
	case !who.known:
		if g.producers.owns(w.Tenant, w.Replica, g.now()) {
			return ingest.DenyReplica
		}
		return ""
	case !id.Writes.Has(w.Tenant):
		return ingest.DenyTenant
	case !id.OwnsReplica(w.Replica), w.PodUID != "" && id.PodUID != "" && w.PodUID != id.PodUID:
		return ingest.DenyReplica
	case !g.producers.claim(w, g.now()):
		return ingest.DenyScope
	}
	return ""
}

// hiddenTenant is a name no tenant has: what the caller may not see is looked
// for under it, by the same code, and not found.
const hiddenTenant = "\x00"

// visibleTenant returns the tenant to read for a caller who asks for one: it
// or one that is not there. Names that stand for no tenant stay as they are.
func (g *callGuard) visibleTenant(ctx context.Context, tenant string) string {
	if g == nil || g.mayRead(ctx, tenant) || tenant == "" || tenant == policy.ReservedTenant {
		return tenant
	}
	return hiddenTenant
}

func (g *callGuard) mayRead(ctx context.Context, tenant string) bool {
	who, trusted := callerOf(ctx)
	switch {
	case trusted:
		return true
	case !who.known:
		return g.options.Mode == AuthPermissive && !g.private.Has(tenant)
	case g.granted(&who.identity, tenant):
		return true
	case g.options.Access == nil:
		return false
	case who.asked == tenant:
		return who.mayRead
	}
	return g.options.Access.MayRead(ctx, &who.identity, tenant) == gate.OK
}

// granted reports what the credential or the map allow a caller to read.
func (g *callGuard) granted(id *auth.Identity, tenant string) bool {
	return id.Reads.Has(tenant) || g.tenants != nil && g.tenants.Of(id.Name).Has(tenant)
}

// reviewAccess asks ahead for the tenant that a request names, so that a review
// that fails can be told from one that denies.
func (g *callGuard) reviewAccess(ctx context.Context, who *caller, request any) error {
	named, ok := request.(interface{ GetTenantId() string })
	if !ok || g.options.Access == nil || !who.known {
		return nil
	}
	tenant := named.GetTenantId()
	if tenant == "" || tenant == policy.ReservedTenant || g.granted(&who.identity, tenant) {
		return nil
	}
	verdict := g.options.Access.MayRead(ctx, &who.identity, tenant)
	if verdict == gate.Error {
		return errCannotTellAccess
	}
	who.asked, who.mayRead = tenant, verdict == gate.OK
	return nil
}
