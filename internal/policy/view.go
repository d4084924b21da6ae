// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
)

// View is one consistent state of all policies, quotas and extensions. It
// never changes and is safe for concurrent use.
type View struct {
	snapshot, extensions Origin

	defaults    Effective
	byNamespace map[string]*Effective
	declared    map[string]struct{} // namespaces with a policy
	quotas      map[string]int64
	templates   []Template
	topologies  []PDTopology
}

// NewView resolves a snapshot and extensions against the server's time to live
// (0 = DefaultTTL). It keeps the slices of extensions.
func NewView(serverTTL time.Duration, snapshot *Snapshot, extensions *ExtensionSet) *View {
	view := &View{
		snapshot:    snapshot.Origin,
		extensions:  extensions.Origin,
		defaults:    unset(serverTTL),
		byNamespace: make(map[string]*Effective, len(snapshot.Policies)),
		declared:    make(map[string]struct{}, len(snapshot.Policies)),
		quotas:      make(map[string]int64, len(snapshot.Quotas)),
		templates:   extensions.Templates,
		topologies:  extensions.Topologies,
	}
	for i := range snapshot.Policies {
		declared := &snapshot.Policies[i]
		if named(declared.Namespace) {
			effective := declared.resolve(view.defaults)
			view.byNamespace[declared.Namespace] = &effective
			view.declared[declared.Namespace] = struct{}{}
		}
	}
	for _, extension := range extensions.Policies {
		if named(extension.Namespace) {
			effective := *view.For(extension.Namespace)
			effective.Extensions = extension.Extensions
			view.byNamespace[extension.Namespace] = &effective
		}
	}
	for _, quota := range snapshot.Quotas {
		if named(quota.Tenant) {
			view.quotas[quota.Tenant] = max(quota.MaxKeys, 0)
		}
	}
	return view
}

// named reports whether somebody may declare something for a tenant.
func named(tenant string) bool { return tenant != "" && tenant != ReservedTenant }

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

func (e *Effective) rules() index.TenantRules {
	return index.TenantRules{TTLMillis: e.TTLMillis, LFU: e.LFU}
}

// Policies returns how many namespaces have a policy.
func (v *View) Policies() int { return len(v.declared) }

// Quotas returns how many tenants have a quota.
func (v *View) Quotas() int { return len(v.quotas) }

// Templates returns the templates; they must not be changed.
func (v *View) Templates() []Template { return v.templates }

// Topologies returns the topologies; they must not be changed.
func (v *View) Topologies() []PDTopology { return v.topologies }

// NamesModel says whether an extension is about the model.
func (v *View) NamesModel(model string) bool {
	return slices.ContainsFunc(v.topologies, func(t PDTopology) bool { return t.Model == model })
}

// Origin returns where policies and quotas came from.
func (v *View) Origin() Origin { return v.snapshot }

// ExtensionsOrigin returns where the extensions came from.
func (v *View) ExtensionsOrigin() Origin { return v.extensions }

// Removed returns how many namespaces have a policy in v and none in next.
func (v *View) Removed(next *View) (n int) {
	for namespace := range v.declared {
		if _, kept := next.declared[namespace]; !kept {
			n++
		}
	}
	return n
}
