// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
)

// View is one consistent state of all policies and quotas. It never changes
// and is safe for concurrent use.
type View struct {
	defaults    Effective
	byNamespace map[string]*Effective
	quotas      map[string]int64
}

// NewView resolves policies and quotas against the server's time to live (0 =
// DefaultTTL). Entries with an empty key are left out; of entries with equal
// keys the last one counts.
func NewView(serverTTL time.Duration, policies []Declared, quotas []Quota) *View {
	view := &View{
		defaults:    unset(serverTTL),
		byNamespace: make(map[string]*Effective, len(policies)),
		quotas:      make(map[string]int64, len(quotas)),
	}
	for _, declared := range policies {
		if declared.Namespace == "" {
			continue
		}
		effective := declared.resolve(view.defaults)
		view.byNamespace[declared.Namespace] = &effective
	}
	for _, quota := range quotas {
		if quota.Tenant != "" {
			view.quotas[quota.Tenant] = max(quota.MaxKeys, 0)
		}
	}
	return view
}

// For returns what holds for a tenant. The result must not be changed.
func (v *View) For(tenant string) *Effective {
	if effective, ok := v.byNamespace[tenant]; ok {
		return effective
	}
	return &v.defaults
}

// Rules returns the part of the view that the index enforces: for tenants the
// view does not name, and by tenant.
func (v *View) Rules() (defaults index.TenantRules, byTenant map[string]index.TenantRules) {
	byTenant = make(map[string]index.TenantRules, len(v.byNamespace)+len(v.quotas))
	for namespace, effective := range v.byNamespace {
		byTenant[namespace] = effective.rules()
	}
	for tenant, maxKeys := range v.quotas {
		rules := v.For(tenant).rules()
		rules.Limited, rules.MaxKeys = true, maxKeys
		byTenant[tenant] = rules
	}
	return v.defaults.rules(), byTenant
}

// Policies returns how many namespaces have a policy.
func (v *View) Policies() int { return len(v.byNamespace) }

// Quotas returns how many tenants have a quota.
func (v *View) Quotas() int { return len(v.quotas) }

func (e *Effective) rules() index.TenantRules {
	return index.TenantRules{TTLMillis: e.TTLMillis, LFU: e.LFU}
}
