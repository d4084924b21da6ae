// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"fmt"

	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/policy"
	"github.com/inferencecache/inference-cache/internal/propagate"
)

// policyRules judges CachePolicies.
type policyRules struct{ reader client.Reader }

func (policyRules) judge(p *v1alpha1.CachePolicy) (v verdict) {
	spec := field.NewPath("spec")
	if ttl := p.Spec.EvictionTTL; ttl != nil && ttl.Duration <= 0 {
		v.others = append(v.others, field.Invalid(spec.Child("evictionTTL"), ttl.Duration.String(), "must be above 0"))
	}
	if s := p.Spec.Strategy; s != nil && s.RequireChain != nil && *s.RequireChain && s.EnableChainMatching != nil && !*s.EnableChainMatching {
		v.others = append(v.others, field.Invalid(spec.Child("strategy", "requireChain"), true, "needs enableChainMatching"))
	}
	return v
}

// compare lets a namespace have one policy. Creations that race are settled
// where the policies are pushed.
func (r policyRules) compare(ctx context.Context, p *v1alpha1.CachePolicy, old **v1alpha1.CachePolicy) (errs field.ErrorList, err error) {
	if old != nil {
		return nil, nil
	}
	var list v1alpha1.CachePolicyList
	if err := r.reader.List(ctx, &list, client.InNamespace(p.Namespace)); err != nil {
		return nil, fmt.Errorf("list CachePolicies of the namespace: %w", err)
	}
	for _, other := range others(list.Items, p) {
		errs = append(errs, field.Forbidden(field.NewPath("metadata", "namespace"),
			fmt.Sprintf("namespace %s already has the CachePolicy %s; change that one or delete it first", p.Namespace, other.Name)))
	}
	return errs, nil
}

// tenantRules judges CacheTenants.
type tenantRules struct {
	reader client.Reader
	scope  TenantScope
}

func (r tenantRules) judge(t *v1alpha1.CacheTenant) (v verdict) {
	path := field.NewPath("spec", "tenantID")
	if t.Spec.TenantID == policy.ReservedTenant {
		v.others = append(v.others, field.Forbidden(path, policy.ReservedTenant+" is reserved"))
	}
	if r.scope == TenantScopeNamespace && t.Spec.TenantID != t.Namespace {
		v.others = append(v.others, field.Invalid(path, t.Spec.TenantID,
			fmt.Sprintf("must be the namespace %s: tenant ids are limited to namespaces here", t.Namespace)))
	}
	return v
}

func (r tenantRules) compare(ctx context.Context, t *v1alpha1.CacheTenant, old **v1alpha1.CacheTenant) (errs field.ErrorList, err error) {
	if old != nil && (*old).Spec.TenantID == t.Spec.TenantID {
		return nil, nil
	}
	var list v1alpha1.CacheTenantList
	if err := r.reader.List(ctx, &list, client.InNamespace(t.Namespace)); err != nil {
		return nil, fmt.Errorf("list CacheTenants of the namespace: %w", err)
	}
	for _, other := range others(list.Items, t) {
		if other.Spec.TenantID == t.Spec.TenantID {
			errs = append(errs, field.Duplicate(field.NewPath("spec", "tenantID"),
				fmt.Sprintf("%s (of CacheTenant %s)", t.Spec.TenantID, other.Name)))
		}
	}
	return errs, nil
}

func judgeTemplate(t *v1alpha1.PromptTemplate) (v verdict) {
	found := propagate.JudgeTemplate(t)
	if !found.Accepted {
		v.others = append(v.others, field.Invalid(field.NewPath("spec"), found.Reason, found.Message))
	}
	if found.MutableBeforeStable != "" {
		v.warnings = append(v.warnings, fmt.Sprintf(
			"spec.body: the Mutable slot %q comes before a Stable one, so the text after it is seldom cached", found.MutableBeforeStable))
	}
	return v
}

func judgeTopology(t *v1alpha1.PDTopology) (v verdict) {
	spec := field.NewPath("spec")
	for _, fault := range propagate.JudgeTopology(t) {
		v.others = append(v.others, field.Invalid(spec.Child(fault.List).Index(fault.Index), fault.Reason, fault.Message))
	}
	for i, pool := range t.Spec.PrefillPools {
		v.others = append(v.others, metav1validation.ValidateLabels(pool.MatchLabels, spec.Child("prefillPools").Index(i).Child("matchLabels"))...)
	}
	for i, pool := range t.Spec.DecodePools {
		v.others = append(v.others, metav1validation.ValidateLabels(pool.MatchLabels, spec.Child("decodePools").Index(i).Child("matchLabels"))...)
	}
	for i, kind := range t.Spec.AcceleratorTypes {
		v.others = append(v.others, metav1validation.ValidateLabels(kind.MatchLabels, spec.Child("acceleratorTypes").Index(i).Child("matchLabels"))...)
	}
	return v
}
